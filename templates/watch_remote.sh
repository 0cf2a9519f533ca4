#!/bin/sh
# Makes this machine a watchdog over @SUBJECT@.
# Sent through ssh by `tpuctl watch install --on`; safe to run twice. Brings no secrets: what this machine may do is
# up to its own service account.
set -eu
umask 077
@EXPORTS@
folder=${XDG_DATA_HOME:-$HOME/.local/share}/tpuctl
wheel=$folder/@WHEEL@
venv=$folder/watch-@DIGEST@

fail() {
    echo "error: $1" >&2
    echo "hint: $2" >&2
    exit 1
}

python=
for candidate in python3.14 python3.13 python3.12 python3.11 python3; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || fail "no Python 3.11 to 3.14 here" "Debian 12 has one: sudo apt-get install -y python3 python3-venv"
command -v crontab >/dev/null || fail "no cron here" "sudo apt-get install -y cron"
"$python" -c 'import venv, ensurepip' 2>/dev/null || fail "$python has no venv" "sudo apt-get install -y python3-venv"

# The marker is written last: an install that broke off is done again from the start.
if [ ! -e "$venv/.ready" ]; then
    rm -rf "$venv"
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel"
    : >"$venv/.ready"
fi
rm -f "$wheel"

cd /
"$venv/bin/python" -P -m tpuctl watch install --yes --every @EVERY@
status=0
"$venv/bin/python" -P -m tpuctl watch once --every @EVERY@ || status=$?
[ "$status" = 0 ] || echo "the first pass ended with $status; from now on cron makes one every @EVERY@ min" >&2
"$venv/bin/python" -P -m tpuctl watch status
