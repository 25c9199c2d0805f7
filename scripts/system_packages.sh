#!/bin/sh
# The system packages of system-packages.txt that this distribution has.
#   scripts/system_packages.sh           the apt line to type
#   scripts/system_packages.sh install   runs it (root)
set -eu
list=$(dirname "$(readlink -f "$0")")/system-packages.txt
names=
while read -r alternatives purpose; do
    case $alternatives in '' | '#'*) continue ;; esac
    chosen=
    for name in $(echo "$alternatives" | tr '|' ' '); do
        if apt-cache show "$name" >/dev/null 2>&1; then
            chosen=$name
            break
        fi
    done
    if [ -n "$chosen" ]; then
        names="$names $chosen"
    else
        echo "system_packages: no package $alternatives here ($purpose): its suite will fail" >&2
    fi
done <"$list"
if [ "${1:-}" = install ]; then
    # shellcheck disable=SC2086  # a list of names
    apt-get install -y -q --no-install-recommends $names
else
    echo "apt install --no-install-recommends$names"
fi
