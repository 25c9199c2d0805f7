#!/bin/sh
# Run the tests in an environment of their own (.venv-test), made on the first run. Needs no root.
#   scripts/test.sh fast      under a minute once warm
#   scripts/test.sh           everything but soak
#   scripts/test.sh all       everything
#   scripts/test.sh fast -- tests/launch -k port       arguments for pytest
set -eu
root=$(dirname "$(dirname "$(readlink -f "$0")")")
. "$root/scripts/find_python.sh"
exec "$python" -P -B "$root/scripts/enter.py" test "$@"
