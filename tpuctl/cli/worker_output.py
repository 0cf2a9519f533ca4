"""Where the output of a command on many workers goes instead of the live view: files, groups or JSON."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tpuctl.errors import UsageError

if TYPE_CHECKING:
    from tpuctl.model.cloud import RemoteResult

STREAMS = ("stdout", "stderr")
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class WorkerFiles:
    """One file per worker and stream below `directory`, written as output arrives and never held in memory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open: dict[Path, BinaryIO] = {}

    def path(self, worker: int, stream: str) -> Path:
        return self._directory / f"worker-{worker}.{stream}"

    def write(self, worker: int, stream: str, data: bytes) -> None:
        """An output sink; see `ports.OutputSink`."""
        path = self.path(worker, stream)
        if path not in self._open:
            handle = os.open(path, NEW_FILE, 0o666)
            self._open[path] = os.fdopen(handle, "wb")
        self._open[path].write(data)

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()

    def read(self, worker: int, stream: str) -> bytes:
        path = self.path(worker, stream)
        return path.read_bytes() if path.exists() else b""

    def digest(self, worker: int) -> str:
        """Equal for workers that wrote the same."""
        found = hashlib.sha256()
        for stream in STREAMS:
            found.update(self.read(worker, stream) + b"\0")
        return found.hexdigest()


def open_output_dir(directory: str) -> WorkerFiles:
    """Files for `--output-dir`. Raises UsageError when it cannot be a directory, or what is there no file."""
    from tpuctl.lib.output_files import check_output

    path = Path(directory)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output-dir {directory}: {error.strerror}", hint="name a directory") from error
    for stream in STREAMS:
        for earlier in path.glob(f"worker-*.{stream}"):
            check_output(earlier, "--output-dir", kind="output", overwrite=True)
    return WorkerFiles(path)


@contextmanager
def temporary_files() -> Iterator[WorkerFiles]:
    """Files that are gone afterwards."""
    import tempfile

    directory = Path(tempfile.mkdtemp(prefix="tpuctl-output-"))
    files = WorkerFiles(directory)
    try:
        yield files
    finally:
        files.close()
        shutil.rmtree(directory)


def print_groups(
    name: str, results: Sequence[RemoteResult], files: WorkerFiles, write: Callable[[str, bytes], None]
) -> None:
    """Prints what workers wrote, identical output once under the folded names of its workers."""
    from tpuctl.lib.text import fold_label, group_equal

    for _, members in group_equal(results, lambda result: files.digest(result.worker)):
        workers = [result.worker for result in members]
        write("stdout", f"── {fold_label(name, workers)} ({len(workers)})\n".encode())
        for stream in STREAMS:
            content = files.read(workers[0], stream)
            if content:
                write(stream, content if content.endswith(b"\n") else content + b"\n")
