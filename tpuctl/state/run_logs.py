"""Output of runs on this machine: `runs/RUN/ATTEMPT/worker-N.stdout.log` below the state directory."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

from tpuctl.engine.ports import KeptLogs

REMOVED = "removed"
"""In the folder of a run whose output was removed: when that was."""


class LogFiles:
    """Implements `ports.RunLogs`. Files are private to the user, like everything in the state directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def _file(self, run_id: str, attempt: int, worker: int, stream: str) -> Path:
        return self._root / run_id / str(attempt) / f"worker-{worker}.{stream}.log"

    def _open(self, run_id: str, attempt: int, worker: int, stream: str) -> BinaryIO:
        """Only a file: a link in its place would bring another file of this machine into reports and pages."""
        path = self._file(run_id, attempt, worker, stream)
        try:
            return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise FileNotFoundError(errno.ENOENT, "is a link", str(path)) from error

    def path(self, run_id: str, attempt: int, worker: int, stream: str) -> str:
        return str(self._file(run_id, attempt, worker, stream))

    def size(self, run_id: str, attempt: int, worker: int, stream: str) -> int:
        try:
            found = self._file(run_id, attempt, worker, stream).lstat()
        except FileNotFoundError:
            return 0
        return found.st_size if S_ISREG(found.st_mode) else 0

    def read(self, run_id: str, attempt: int, worker: int, stream: str, offset: int, limit: int) -> bytes:
        try:
            with self._open(run_id, attempt, worker, stream) as file:
                file.seek(offset)
                return file.read(limit)
        except FileNotFoundError:
            return b""

    def tail(self, run_id: str, attempt: int, worker: int, stream: str, limit: int) -> bytes:
        """See `ports.RunLogs.tail`."""
        try:
            with self._open(run_id, attempt, worker, stream) as file:
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

    def list(self) -> list[KeptLogs]:
        """See `ports.RunLogs.list`. What goes away meanwhile does not count."""
        found = []
        for folder in sorted(self._root.iterdir()) if self._root.is_dir() else []:
            size, last = 0, 0.0
            for file in folder.glob("*/*.log"):
                with suppress(FileNotFoundError):
                    status = file.stat()
                    size, last = size + status.st_size, max(last, status.st_mtime)
            found.append(KeptLogs(folder.name, size, last))
        return found

    def remove(self, run_id: str, at: float) -> None:
        """See `ports.RunLogs.remove`. The note comes first: whoever finds half of it knows why."""
        folder = self._root / run_id
        with suppress(FileNotFoundError):
            (folder / REMOVED).write_text(f"{at}\n")
            for attempt in folder.iterdir():
                if attempt.is_dir():
                    shutil.rmtree(attempt)

    def removed_at(self, run_id: str) -> float | None:
        """See `ports.RunLogs.removed_at`."""
        try:
            at = float((self._root / run_id / REMOVED).read_text())
        except (FileNotFoundError, ValueError):
            return None
        return None if any(each.is_dir() for each in (self._root / run_id).iterdir()) else at

    def list_removed(self) -> frozenset[str]:
        """See `ports.RunLogs.list_removed`."""
        noted = (file.parent.name for file in self._root.glob(f"*/{REMOVED}"))
        return frozenset(run_id for run_id in noted if self.removed_at(run_id) is not None)

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
