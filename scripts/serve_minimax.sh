#!/bin/sh
# Serve MiniMax-M2.x. Finds a Python, checks the arguments with it, and hands over to `python -m xpu_moe.launch`.
#   scripts/serve_minimax.sh --demo            a tiny random checkpoint, on any machine
#   scripts/serve_minimax.sh --model PATH --tp 4
#   scripts/serve_minimax.sh --help
set -eu
root=$(dirname "$(dirname "$(readlink -f "$0")")")
. "$root/scripts/find_python.sh"
exec "$python" -P -B "$root/scripts/enter.py" serve "$@"
