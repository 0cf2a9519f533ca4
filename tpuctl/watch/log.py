"""The log of passes on this machine: lines of text, readable by the user alone, rotated by size."""

from __future__ import annotations

import logging
import os
from logging.handlers import RotatingFileHandler
from pathlib import Path

MAX_BYTES = 1_000_000
KEEP = 3


class _PrivateFile(RotatingFileHandler):
    """Mode 0600 from the first byte, after a rotation too."""

    def _open(self):  # type: ignore[no-untyped-def]
        return os.fdopen(
            os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600),
            "a",
            encoding="utf-8",
            errors="backslashreplace",
        )


class PassLog:
    """Appends lines to `path`. Close it when done."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._handler = _PrivateFile(path, maxBytes=max_bytes, backupCount=KEEP)

    def write(self, stamp: str, text: str) -> None:
        """One line; line breaks in `text` become spaces."""
        line = f"{stamp} {' '.join(text.split())}"
        self._handler.emit(logging.LogRecord("pass", logging.INFO, "", 0, line, None, None))

    def close(self) -> None:
        self._handler.close()
