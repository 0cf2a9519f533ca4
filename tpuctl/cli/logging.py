"""Log files of one invocation in the state directory: a full debug log, and a crash report when we fail."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

KEEP_LOGS = 50
"""Older log files are removed, so that a watchdog once a minute does not fill a home directory."""

_SECRET = re.compile(r"(?i)(authorization: bearer |access_token=|token[\"']?\s*[:=]\s*[\"']?)([\w.\-/]{8,})")


def mask(text: str) -> str:
    """`text` without the values of tokens."""
    return _SECRET.sub(r"\1***", text)


def fallback_state_dir() -> Path:
    """Where state lives when the configuration cannot be read."""
    named = os.environ.get("TPUCTL_STATE_DIR")
    if named:
        return Path(named)
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "tpuctl"


class _MaskingFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        known = logging.LogRecord("", 0, "", 0, "", None, None).__dict__
        extras = " ".join(
            f"{key}={value}"
            for key, value in record.__dict__.items()
            if key not in known and key not in {"message", "asctime", "taskName"}
        )
        return mask(f"{super().format(record)} {extras}".rstrip())


class _ScreenFormatter(_MaskingFormatter):
    """Without tracebacks: the log file has them."""

    def format(self, record: logging.LogRecord) -> str:
        plain = logging.makeLogRecord({**record.__dict__, "exc_info": None, "exc_text": None})
        return super().format(plain)


def start_logging(state_dir: Path, verbosity: int) -> Path:
    """Sends everything to a file of this invocation, and warnings (or more) to stderr. Returns the file."""
    folder = state_dir / "logs"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.log"
    to_file = logging.FileHandler(path, encoding="utf-8", delay=True)
    to_file.setFormatter(_MaskingFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    to_screen = logging.StreamHandler(sys.stderr)
    screen = _MaskingFormatter if verbosity > 1 else _ScreenFormatter
    to_screen.setFormatter(screen("%(levelname)s %(message)s"))
    to_screen.setLevel([logging.WARNING, logging.INFO, logging.DEBUG][min(verbosity, 2)])
    logger = logging.getLogger("tpuctl")
    logger.setLevel(logging.DEBUG)
    logger.handlers = [to_file, to_screen]
    logger.propagate = False
    _remove_old(folder)
    return path


def _remove_old(folder: Path) -> None:
    for old in sorted(folder.glob("*.log"))[:-KEEP_LOGS]:
        old.unlink(missing_ok=True)


def write_crash_report(arguments: Sequence[str], report: str) -> Path | None:
    """Keeps the traceback of a bug; None when not even that can be written."""
    folder = fallback_state_dir() / "crashes"
    path = folder / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.txt"
    verb = next((word for word in arguments if not word.startswith("-")), "")
    text = f"tpuctl {verb}\npython {sys.version}\n\n{mask(report)}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(text, encoding="utf-8")
    except OSError:
        return None
    return path
