# Sets $python to a Python of at least 3.11; ends with code 3 where there is none. Sourced by the scripts beside it.
python=
for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
    if python=$("$candidate" -c 'import sys; sys.version_info < (3, 11) and sys.exit(1); print(sys.executable)' 2>/dev/null)
    then
        break
    fi
    python=
done
if [ -z "$python" ]; then
    echo "$(basename "$0"): needs Python 3.11 or newer; on Debian or Ubuntu: apt install python3 python3-venv" >&2
    exit 3
fi
