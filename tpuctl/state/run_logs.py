"""Output of runs on this machine: `runs/RUN/ATTEMPT/worker-N.stdout.log` below the state directory."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


class LogFiles:
    """Implements `ports.RunLogs`. Files are private to the user, like everything in the state directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def _file(self, run_id: str, attempt: int, worker: int, stream: str) -> Path:
        return self._root / run_id / str(attempt) / f"worker-{worker}.{stream}.log"

    def path(self, run_id: str, attempt: int, worker: int, stream: str) -> str:
        return str(self._file(run_id, attempt, worker, stream))

    def size(self, run_id: str, attempt: int, worker: int, stream: str) -> int:
        try:
            return self._file(run_id, attempt, worker, stream).stat().st_size
        except FileNotFoundError:
            return 0

    def read(self, run_id: str, attempt: int, worker: int, stream: str, offset: int, limit: int) -> bytes:
        try:
            with self._file(run_id, attempt, worker, stream).open("rb") as file:
                file.seek(offset)
                return file.read(limit)
        except FileNotFoundError:
            return b""

    def tail(self, run_id: str, attempt: int, worker: int, stream: str, limit: int) -> bytes:
        """See `ports.RunLogs.tail`."""
        try:
            with self._file(run_id, attempt, worker, stream).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - limit))
                return file.read(limit)
        except FileNotFoundError:
            return b""

    def has(self, run_id: str, attempt: int) -> bool:
        """Whether this machine ever fetched output of an attempt."""
        return (self._root / run_id / str(attempt)).is_dir()

    def set_aside(self, run_id: str) -> None:
        """What is here of another run of that name moves to `RUN.old-N`, which no run can be called."""
        number = 1
        while (self._root / f"{run_id}.old-{number}").exists():
            number += 1
        with suppress(FileNotFoundError):
            (self._root / run_id).rename(self._root / f"{run_id}.old-{number}")

    def append(self, run_id: str, attempt: int, worker: int, stream: str, data: bytes) -> None:
        with self._made(run_id, attempt, worker, stream).open("ab") as file:
            file.write(data)

    def write(self, run_id: str, attempt: int, worker: int, stream: str, offset: int, data: bytes) -> None:
        """See `ports.RunLogs.write`."""
        path = self._made(run_id, attempt, worker, stream)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.seek(offset)
            file.write(data)

    def _made(self, run_id: str, attempt: int, worker: int, stream: str) -> Path:
        path = self._file(run_id, attempt, worker, stream)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path
