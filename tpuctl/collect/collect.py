"""One file with all that hosts and this machine have of a run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from pathlib import Path

from tpuctl import __version__
from tpuctl.collect.collection import Collection
from tpuctl.collect.gather import Gathering
from tpuctl.collect.index import INDEX_NAME, Index
from tpuctl.engine.services import Services
from tpuctl.errors import UsageError
from tpuctl.lib.output_files import refused
from tpuctl.lib.text import parse_sized
from tpuctl.lib.time import render_time
from tpuctl.model.records import RunRecord
from tpuctl.model.shipped_files import load_secret_patterns
from tpuctl.provenance.bundle import begins_bundle
from tpuctl.views.decisions import decisions
from tpuctl.views.run_status import run_status
from tpuctl.workers.file_receiver import free_bytes

LEAST = 1 << 20
"""Bytes: what a collection without any folder of a host takes."""


def begins_collection(head: bytes) -> bool:
    """Whether the first bytes of a file are those of a collection."""
    return begins_bundle(head, INDEX_NAME)


def parse_limit(text: str) -> int:
    """The value of `--limit` in bytes. Raises UsageError."""
    try:
        found = parse_sized(text)
    except ValueError as error:
        raise UsageError.of("limit", f"--limit: {error}", "--limit 2GiB") from error
    if found < LEAST:
        raise UsageError.of("limit", f"--limit {text} is too small for anything of a run", "--limit 2GiB")
    return found


class Collecting:
    """A collection that is made: `gather`, and then `write`, also after `gather` was interrupted."""

    def __init__(
        self, services: Services, run: RunRecord, collection: Collection, workers: Container[int] | None
    ) -> None:
        self._services = services
        self._run = run
        self._collection = collection
        self._gathering = Gathering(services, run, collection, workers)
        self._interrupted = False

    def gather(self) -> None:
        """Asks this machine and the hosts."""
        self._gathering.gather()

    def stop(self) -> None:
        """It was interrupted."""
        self._interrupted = True
        self._gathering.stop("interrupted before that was asked for")

    def write(self, path: Path, flag: str) -> Index:
        """Writes the file; its index. Raises UsageError and TpuctlError."""
        index = Index(
            run=self._run.id,
            slice=self._run.slice_name,
            made=str(render_time(self._services.store.now())),
            tpuctl=__version__,
            status=run_status(self._services, self._run),
            decisions=decisions(self._services, self._run.id),
            limit_bytes=self._collection.limit_bytes,
            host_bytes=self._collection.room.host_bytes,
            interrupted=self._interrupted,
            cause=self._gathering.cause,
        )
        return self._collection.write(self._collection.finish(index), path, flag)


@contextmanager
def collecting(
    services: Services,
    run: RunRecord,
    path: Path,
    workers: Container[int] | None,
    limit_bytes: int,
    free: Callable[[Path], int] = free_bytes,
) -> Iterator[Collecting]:
    """What is gathered lies beside `path` until it is written. Raises as `write_output` does."""
    asked = [
        each for each in (run.attempt.workers if run.attempt else ()) if workers is None or each in workers
    ]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(
            prefix=f".{path.name[:100]}.", dir=path.parent, ignore_cleanup_errors=True
        )
    except OSError as error:
        raise refused(path, "-o", error) from error
    with folder as name:
        collection = Collection(Path(name), load_secret_patterns(), limit_bytes, len(asked), free)
        yield Collecting(services, run, collection, workers)
