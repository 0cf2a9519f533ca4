"""Finds what is ours and unwanted in all zones, and deletes it until the API says not-found.

Two different reads must agree on a thing and its identity before it is deleted, its intent is read once more
under the lease of its slice, and the decision is in the journal before the call. Zones that could not be read
are named, and nothing in them is touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.engine.events import Note, StepStarted, Waiting
from tpuctl.engine.services import Services
from tpuctl.errors import LeaseHeldError, RateLimitedError, TpuctlError, TransientError
from tpuctl.inventory.delete import delete_owned, find_owned, find_written
from tpuctl.inventory.listing import list_tpus
from tpuctl.inventory.ownership import Refusal, claim_as_labelled, whose
from tpuctl.inventory.resources import (
    Caller,
    Fate,
    Judged,
    gather,
    is_left_of,
    judge,
    listed_nodes,
    written_disks,
)
from tpuctl.lib.names import label_value
from tpuctl.model import timeouts
from tpuctl.model.cloud import (
    CloudResource,
    NodeInfo,
    NodeState,
)
from tpuctl.model.records import SliceRecord
from tpuctl.model.resources import KIND_WORDS, gcloud_command
from tpuctl.state.journal import record_decision
from tpuctl.state.leases import take_lease
from tpuctl.state.repository import list_slices

ASK_AGAIN_S = 60.0
"""A deletion that has not shown after so long is asked for once more: its operation may have failed."""


class TpuSurvey(Struct, frozen=True):
    """Every TPU of the project with its fate, and the zones, or the API, that could not be read."""

    judged: tuple[Judged, ...]
    unread: tuple[str, ...]

    def of(self, *fates: Fate) -> list[Judged]:
        return [each for each in self.judged if each.fate in fates]


class ReapResult(StrEnum):
    """What became of one TPU."""

    GONE = "gone"
    KEPT = "kept"
    """It is wanted, or another, after all."""
    BUSY = "busy"
    FAILED = "failed"
    PENDING = "pending"
    UNSAVED = "unsaved"
    """What its hosts wrote may be lost, and nobody said that it may."""


class Reaped(Struct, frozen=True):
    """What became of one, and why."""

    found: CloudResource
    result: ReapResult
    why: str


def survey(services: Services, *, all_users: bool = False) -> TpuSurvey:
    """Reads the project, then the intents: an intent is older than what it made, so none can be missed."""
    tpus = list_tpus(services)
    caller = caller_of(services, all_users=all_users)
    records = _records(services)
    dark, nodes = tpus.unreachable, tpus.nodes.items
    judged = tuple(
        Judged(found, Fate.UNKNOWN, f"{found.location} could not be read whole")
        if found.location in dark
        else _with_writes(judge(found, records, caller), nodes)
        for found in gather(nodes, tpus.queued.items)
    )
    return TpuSurvey(judged, tuple(tpus.not_read))


def _with_writes(judged: Judged, nodes: Iterable[NodeInfo]) -> Judged:
    """What is to be deleted, with the disks that its hosts can write."""
    found = judged.found
    if judged.fate is not Fate.DELETE:
        return judged
    writes = tuple(disk for node in listed_nodes(found, nodes) for disk in written_disks(node))
    if not writes:
        return judged
    why = f"{judged.why}; only with --force, for its hosts can write {', '.join(writes)}"
    return Judged(found, judged.fate, why, writes)


def caller_of(services: Services, *, all_users: bool) -> Caller:
    return Caller(services.store.identity(), services.user, all_users)


def _records(services: Services) -> dict[str, SliceRecord]:
    return {record.name: record for record in list_slices(services)}


def reap(
    services: Services,
    doomed: Iterable[Judged],
    caller: Caller,
    *,
    deadline: float,
    may_lose: bool = False,
) -> list[Reaped]:
    """Deletes what a survey condemned and waits until the API does not find it.

    Trouble with one stops no other. `deadline` is in seconds since the epoch. `may_lose`: also what can write
    disks, although its hosts are not asked.
    """
    caller = replace(caller, may_lose=may_lose)
    asked: list[Judged] = []
    ended: list[Reaped] = []
    for each in doomed:
        refused = _guarded(services, each, caller)
        if refused is None:
            asked.append(each)
        else:
            ended.append(refused)
    return [*ended, *_wait_until_gone(services, asked, caller, deadline)]


def _guarded(services: Services, judged: Judged, caller: Caller) -> Reaped | None:
    """Asks for one deletion; why not, if it did not."""
    try:
        return _delete(services, judged, caller)
    except LeaseHeldError as error:
        return Reaped(judged.found, ReapResult.BUSY, error.message)
    except (TransientError, RateLimitedError) as error:
        services.emit(Note(judged.found.slice_name, f"{error.message}; it is asked again"))
        return None
    except TpuctlError as error:
        return Reaped(judged.found, ReapResult.FAILED, error.message)


def _delete(services: Services, judged: Judged, caller: Caller) -> Reaped | None:
    """The second read, the decision, the call. Why it was kept, if it was."""
    found, kept = judged.found, ReapResult.KEPT
    key = f"slices/{found.slice_name}"
    with take_lease(services, found.slice_name) as lease:

        def decide(again: CloudResource) -> Refusal | None:
            nonlocal kept
            verdict = judge(again, _records(services), caller)
            if verdict.fate is not Fate.DELETE:
                return Refusal(verdict.why, "tpuctl ls")
            written = find_written(services, again)
            if written and not caller.may_lose:
                kept = ReapResult.UNSAVED
                why = f"its hosts, which are not asked, can write {', '.join(written)}"
                return Refusal(why, "tpuctl reap --force")
            if written:
                text = f"what was not yet on {', '.join(written)}: reap --force asks no hosts"
                record_decision(services, key, "unsaved", text, incarnation=found.name, fence=lease.fence)
            why = (
                f"{found.kind} {found.name} in {found.location}: {verdict.why}; listed and read, id {found.uid}"
            )
            record_decision(services, key, "reap", why, incarnation=found.name, fence=lease.fence)
            services.emit(StepStarted(found.slice_name, f"delete {found.name}", verdict.why))
            return None

        user = None if caller.all_users else label_value(caller.user)
        claim = claim_as_labelled(found, caller.store_id, user)
        refused = delete_owned(services, found, claim, decide).refused
    return None if refused is None else Reaped(found, kept, refused.why)


def _wait_until_gone(
    services: Services, asked: Sequence[Judged], caller: Caller, deadline: float
) -> list[Reaped]:
    clock = services.clock
    began = clock.now()
    next_ask, pause = began + ASK_AGAIN_S, timeouts.POLL_FIRST_S
    left, ended = list(asked), list[Reaped]()
    while True:
        followed = [_follow_end(services, each, caller) for each in left]
        ended += [each for each in followed if isinstance(each, Reaped)]
        left = [each for each in followed if isinstance(each, Judged)]
        if not left:
            return ended
        if clock.now() >= deadline:
            return [*ended, *(Reaped(each.found, ReapResult.PENDING, "still being deleted") for each in left)]
        if clock.now() >= next_ask:
            next_ask = clock.now() + ASK_AGAIN_S
            refused = {each.found.place: _guarded(services, each, caller) for each in left}
            ended += [end for end in refused.values() if end is not None]
            left = [each for each in left if refused[each.found.place] is None]
        services.emit(Waiting("reap", f"{len(left)} to be gone", began, deadline))
        clock.sleep(pause)
        pause = min(timeouts.POLL_MAX_S, pause * timeouts.POLL_FACTOR)


def _follow_end(services: Services, judged: Judged, caller: Caller) -> Judged | Reaped:
    """Its end, if the API shows it: not found, or another under its name. Of a slice in Compute Engine the next
    object is asked for as soon as the one above it is gone."""
    found = judged.found
    try:
        again = find_owned(services, found)
    except (TransientError, RateLimitedError):
        return judged
    except TpuctlError as error:
        return Reaped(found, ReapResult.FAILED, f"asked for, but it cannot be read: {error.message}")
    if again is not None and again.uid == found.uid:
        return judged
    if again is not None and is_left_of(again, found):
        left = replace(judged, found=again)
        return _guarded(services, left, caller) or left
    if again is not None and again.state == NodeState.HALF_MADE:
        # As where a group was adopted by another fleet: its hosts got labels, the rest has the marks it had.
        command = gcloud_command("delete", again.kind, again.name, again.location)
        why = f"its {KIND_WORDS[again.kind]} stays, for {whose(again)}; if it is yours: {command}"
        return Reaped(found, ReapResult.FAILED, why)
    services.emit(Note(found.slice_name, f"{found.name} is gone"))
    return Reaped(found, ReapResult.GONE, judged.why)
