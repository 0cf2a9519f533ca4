"""Whether a TPU may be deleted whose hosts write on disks or buckets: what they wrote is to be there then.

Its hosts are asked right before the deletion, in the same step: an older proof says nothing about now.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from tpuctl.inventory.resources import has_ended, written_disks
from tpuctl.lib.text import fold_workers
from tpuctl.model import timeouts
from tpuctl.model.cloud import NodeInfo
from tpuctl.model.records import Incarnation
from tpuctl.model.refs import MountRef
from tpuctl.model.verdict import Wait
from tpuctl.slices.states import SliceEvent


class Written(Struct, frozen=True):
    """What hosts write: disks by name, as their node lists them, and buckets by the paths of their mounts."""

    disks: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        return ", ".join((*(f"disk {name}" for name in self.disks), *(f"mount {path}" for path in self.mounts)))


class HostsLeft(Struct, frozen=True):
    """What became of it on the hosts. `left` may still be written there: by whom, says `why`, unless hosts are
    `silent`. `working`: they are at it."""

    left: Written = Written()
    why: str = ""
    silent: tuple[int, ...] = ()
    working: bool = False

    @property
    def said(self) -> str:
        if self.silent and not self.working:
            return f"worker {fold_workers(self.silent)} does not answer"
        return self.why or "its hosts are at it"


class Go(Struct, frozen=True):
    """It is deleted. `unsaved`: what may be lost by that, in words; empty for nothing."""

    unsaved: str = ""


class Refuse(Struct, frozen=True):
    """A person decides whether what may be lost is lost."""

    why: str
    silent: bool


_WITH_HOSTS = frozenset({SliceEvent.NODE_READY, SliceEvent.UNCLEAR})


def find_written(
    node: NodeInfo | None, mounts: Sequence[MountRef], event: SliceEvent, incarnation: Incarnation
) -> Written:
    """What the hosts of a slice may be writing now, by what its `node` lists, whoever attached it. One that was
    taken away or stopped has no hosts, and hosts that nobody reached yet have no mounts of ours."""
    under_repair = event is SliceEvent.CREATING and incarnation.cloud_ready_at is not None
    if node is None or not (event in _WITH_HOSTS or under_repair or node.runs_in_part):
        return Written()
    written = tuple(each.path for each in mounts if not each.read_only)
    return Written(written_disks(node), written if running_workers(node, incarnation) else ())


def running_workers(node: NodeInfo | None, incarnation: Incarnation) -> tuple[int, ...]:
    """The workers that can be asked: in Compute Engine some may run on when others ended."""
    hosts = enumerate(each.endpoint.instance for each in incarnation.workers)
    return tuple(worker for worker, instance in hosts if not has_ended(node, instance))


def judge_leaving(
    found: HostsLeft,
    *,
    person: bool,
    may_lose: bool,
    since: float,
    now: float,
    patience_s: float = timeouts.UNREACHABLE_MAX_S,
) -> Go | Wait | Refuse:
    """What follows from what hosts said now, `since` they were asked first. `person`: somebody waits for the
    answer; `may_lose`: somebody said that it goes all the same. Else passes ask again and again, but no slice
    costs for ever because its hosts are dead: silent ones have `patience_s`."""
    if found.left == Written():
        return Go()
    unsaved = f"what was not yet on {found.left.said}: {found.said}"
    patience = since + (patience_s if found.silent and not found.working else timeouts.UNREACHABLE_MAX_S)
    if found.working:
        if now < patience:
            return Wait(f"{found.left.said}: {found.said}")
        return Refuse(unsaved, silent=False) if person and not may_lose else Go(unsaved)
    if may_lose:
        return Go(unsaved)
    if person:
        until = since + timeouts.VERDICT_MAX_S
        if found.silent and now < until:  # a preemption shows late
            return Wait(f"{found.said}, and {found.left.said} may not be saved", until)
        return Refuse(unsaved, silent=bool(found.silent))
    if now < patience:
        return Wait(f"{found.said}, and {found.left.said} may not be saved", patience)
    return Go(unsaved)
