"""Stand-ins for crontab(1) and systemctl(1), so that tests of the command line leave the machine's own alone.

The real ones are used in tests/e2e/test_cron.py.
"""

from __future__ import annotations

from pathlib import Path

CRONTAB = """#!/bin/sh
# Like Debian's: `-l` fails without a table, `-` replaces it in one step.
case "$1" in
-l) [ -e "{spool}" ] || {{ echo "no crontab for $(id -un)" >&2; exit 1; }}; cat "{spool}" ;;
-) cat >"{spool}.$$" && mv "{spool}.$$" "{spool}" ;;
*) exit 2 ;;
esac
"""
SYSTEMCTL = """#!/bin/sh
echo "$*" >>"{calls}"
case "$2" in
is-active) [ -e "{folder}/active" ] ;;
restart) touch "{folder}/active" ;;
disable) rm -f "{folder}/active" ;;
esac
"""


class Spool:
    """Programs below `folder/bin`, to be put in front of PATH."""

    def __init__(self, folder: Path) -> None:
        self.table = folder / "crontab"
        self.calls = folder / "systemctl-calls"
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        self._add("crontab", CRONTAB.format(spool=self.table))
        self._add("systemctl", SYSTEMCTL.format(calls=self.calls, folder=folder))

    def _add(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def lines(self) -> list[str]:
        return self.table.read_text(encoding="latin-1").splitlines()
