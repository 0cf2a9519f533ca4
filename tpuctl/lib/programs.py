"""Short programs of this machine, run to their end; nothing here goes through a shell."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from tpuctl.errors import TpuctlError

TIMEOUT_S = 20.0
HINTS = {
    "crontab": "install cron (apt-get install cron), or use tpuctl watch install --systemd",
    "systemctl": "tpuctl watch install, without --systemd",
}


def call(words: Sequence[str], stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """Runs a program with messages in English. Raises TpuctlError when it is missing or hangs."""
    environ = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            list(words),
            input=b"" if stdin is None else stdin,
            capture_output=True,
            env=environ,
            timeout=TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise TpuctlError(f"{words[0]} is not installed here", hint=HINTS.get(words[0])) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TpuctlError(f"{' '.join(words)}: {error}") from error


def said(done: subprocess.CompletedProcess[bytes]) -> str:
    """What a program complained about, in one line."""
    text = (done.stderr or done.stdout).decode(errors="replace")
    return " ".join(text.split()) or f"exit status {done.returncode}"
