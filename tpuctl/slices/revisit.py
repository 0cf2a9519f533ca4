"""What a slice has beside its TPU, looked at again once it is ready: disks and mounts are gone after a reboot
of hosts, of which the cloud says nothing. One protocol for all kinds, in passes, by `up` and before a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.engine.services import Services
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.facts import FactsReply
from tpuctl.hosts.requests import FactsRequest
from tpuctl.hosts.targets import host_targets
from tpuctl.model.hosts import HostTarget
from tpuctl.model.records import Desired, SliceRecord, SliceState
from tpuctl.slices.things import fleeting_on_hosts, has_fleeting, lost_buckets
from tpuctl.state.journal import record_decision
from tpuctl.state.leases import take_lease
from tpuctl.state.repository import get_slice, save

if TYPE_CHECKING:
    from tpuctl.things.of_slice import Revisitable


class Revisited(Struct, frozen=True):
    """What is wrong with the disks and mounts of a slice, empty for nothing; `mends`: the slice went back to be
    initialized, which mounts them again. That helps nothing where a bucket does not answer."""

    why: str = ""
    mends: bool = False


def is_revisited(record: SliceRecord) -> bool:
    """Whether hosts are asked how its disks and mounts are."""
    ready = record.state is SliceState.READY and record.desired is Desired.UP
    return ready and has_fleeting(record.spec)


def revisit(services: Services, name: str) -> Revisited:
    """Asks the hosts of a ready slice for its disks, and for its mounts, which come back by themselves while
    their keepers live; where one is not as asked, the slice goes back to be initialized."""
    stored = get_slice(services, name)
    record = stored.record
    kinds = fleeting_on_hosts(services, record)
    if not kinds or record.state is not SliceState.READY:
        return Revisited()
    answers = _ask(HostAgent(services.remote, services.agent_source), host_targets(services, record), kinds)
    why = next((said for worker, facts in answers if (said := _trouble(facts, worker, kinds))), "")
    if why:
        with take_lease(services, name) as lease:
            record_decision(services, record.key, SliceState.INITIALIZING, why, fence=lease.fence)
            save(services, stored, replace(record, state=SliceState.INITIALIZING))
        return Revisited(why, mends=True)
    gone = lost_buckets(services, record)
    if gone:
        path = next(each.path for each in record.spec.mounts if each.bucket == gone[0])
        return Revisited(f"the bucket gs://{gone[0]} is gone: tpuctl mount rm {path} --on {name}")
    return Revisited(first_trouble(answers, kinds))


def first_trouble(hosts: Iterable[tuple[int, FactsReply | None]], kinds: Sequence[Revisitable]) -> str:
    """The first of what hosts have that is not well by what they say, in words; empty for none."""
    said = (
        f"worker {worker}: {kind.name}: {trouble}"
        for worker, facts in hosts
        for kind in kinds
        if facts is not None and (trouble := kind.trouble(facts))
    )
    return next(said, "")


def _ask(
    agent: HostAgent, targets: Sequence[HostTarget], kinds: Sequence[Revisitable]
) -> list[tuple[int, FactsReply | None]]:
    sections = sorted({section for kind in kinds for section in kind.sections})
    answers = agent.ask(targets, FactsRequest(tuple(sections)))
    return [(answer.worker, answer.value) for answer in answers]


def _trouble(facts: FactsReply | None, worker: int, kinds: Sequence[Revisitable]) -> str:
    """Of a host that does not answer others judge."""
    bad = next((kind for kind in kinds if facts is not None and kind.plan(facts)), None)
    if bad is None or facts is None:
        return ""
    return f"worker {worker}: {bad.name}: {bad.trouble(facts)}"
