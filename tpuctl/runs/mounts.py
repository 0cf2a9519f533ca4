"""What a run is told of its mounts: what its hosts say of them against what was told before. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.hosts.protocol import SILENT
from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.lib.text import fold_workers
from tpuctl.model.attempts import Attempt, MountState
from tpuctl.model.records import SliceRecord


class MountNews(Struct, frozen=True):
    """A mount that died, or is well again, on some workers."""

    path: str
    workers: tuple[int, ...]
    well: bool
    why: str

    @property
    def text(self) -> str:
        where = f"{self.path} on worker{'' if len(self.workers) == 1 else 's'} {fold_workers(self.workers)}"
        return f"{where} is well again, after: {self.why}" if self.well else f"{where}: {self.why}"


def mounts_now(
    attempt: Attempt, slice_: SliceRecord | None, workers: Sequence[WorkerStatus], lost: Collection[str] = ()
) -> tuple[MountState, ...]:
    """The mounts of the slice that are not well, or were not since the attempt began. What a worker said counts
    while it is silent; what it speaks of no more is well again. `lost`: buckets that are gone, which hosts see
    as empty ones."""
    refs = slice_.spec.mounts if slice_ is not None else ()
    silent = {each.worker for each in workers if each.state in SILENT}
    said = [each if each.worker in silent else replace(each, well=True, kept=True) for each in attempt.mounts]
    said += [state for each in workers for state in each.mounts]
    found = {(each.worker, each.path): each for each in said if each.path in {ref.path for ref in refs}}
    for ref in refs:
        if ref.bucket in lost:
            for worker in attempt.workers:
                why = f"the bucket gs://{ref.bucket} is gone"
                found[worker, ref.path] = MountState(worker, ref.path, well=False, why=why)
    return tuple(found[key] for key in sorted(found))


def mount_news(before: Sequence[MountState], now: Sequence[MountState]) -> list[MountNews]:
    """What is to be told. A mount that died and is well again by now is told of once."""
    known = {(each.worker, each.path): each for each in before}
    found = []
    for each in now:
        old = known.get((each.worker, each.path))
        if old is None or old.well != each.well or (each.well and old.restarts != each.restarts):
            found.append(each)
    return _grouped(found)


def sick_mounts(states: Iterable[MountState]) -> str:
    """The mounts that are not well, in words; empty for none."""
    return "; ".join(each.text for each in _grouped([each for each in states if not each.well]))


def troubled_mounts(states: Iterable[MountState]) -> str:
    """All that an attempt had trouble with, in words, for its end; empty for none."""
    as_they_were = [replace(each, well=False) for each in states]
    return "; ".join(f"mount {each.text}" for each in _grouped(as_they_were))


def _grouped(states: Iterable[MountState]) -> list[MountNews]:
    groups: dict[tuple[str, bool, str], set[int]] = {}
    for each in states:
        groups.setdefault((each.path, each.well, each.why), set()).add(each.worker)
    return [MountNews(path, tuple(sorted(workers)), well, why) for (path, well, why), workers in groups.items()]
