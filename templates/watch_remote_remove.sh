#!/bin/sh
# Ends this machine's watch over @SUBJECT@.
# Sent through ssh by `tpuctl watch uninstall --on`; safe to run twice.
set -eu
@EXPORTS@
folder=${XDG_DATA_HOME:-$HOME/.local/share}/tpuctl
cd /
for venv in "$folder"/watch-*; do
    if [ -e "$venv/.ready" ]; then
        "$venv/bin/python" -P -m tpuctl watch uninstall
    fi
done
# The environments stay while another profile or project is watched from here.
if ! crontab -l 2>/dev/null | grep -q '# tpuctl watch '; then
    rm -rf "$folder"/watch-*
fi
