"""Hooks: what is told to programs and web addresses of the user's own, and when.

Events are read out of the journal, which is written before the effect that it announces.
Each has an id that is the same on every machine and after every crash: who is told twice knows it again.
Hooks come only from the user's own configuration file: what a shared store or a directory holds is never run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from tpuctl.config.hooks import EventKind
from tpuctl.engine.ports import Document
from tpuctl.lib.time import render_time
from tpuctl.model import timeouts
from tpuctl.model.attempts import (
    GIVEN_UP,
    MOUNT_LOST,
    NOT_FINITE,
    ON_CPU,
    RECOMPILED,
    SLOW,
    STALLED,
    event_id,
)
from tpuctl.model.records import RunState
from tpuctl.state.journal import decided_at
from tpuctl.watch.heartbeat import PassResult, Trouble


class HookEvent(Struct, frozen=True):
    """Something to tell. `id` is the same when it is told again; those of one subject sort as they happened."""

    kind: EventKind
    subject: str
    id: str
    at: float
    detail: str


class Read(Struct, frozen=True):
    """How far one subject was read: the generation of its record, and the id of the last event of it."""

    generation: int
    last: str = ""


class Cursor(Struct, frozen=True):
    """How far one hook has come."""

    read: Mapping[str, Read] | None = None
    """None for a hook that is new: what happened before is not told."""
    troubled: Mapping[str, str] = field(default_factory=dict)
    """Subjects whose trouble was told, and the machine that saw it."""
    tries: int = 0
    """Of the event that is next."""
    error: str = ""

    def after(self, event: HookEvent, machine: str) -> Cursor:
        """The cursor when one event was told, or given up on. Its subject is not read to the end."""
        read, subject = dict(self.read or {}), event.subject
        if "/" in subject:
            read[subject] = Read(0, event.id)
        troubled = dict(self.troubled)
        if event.kind is EventKind.NEEDS_HUMAN:
            # What passes say of a slice that was refused or removed is the same thing.
            troubled[subject.rpartition("/")[2]] = machine
        return replace(self, read=read, troubled=troubled, tries=0)

    def without_resolved(self, machine: str, troubles: Sequence[Trouble], resolved: Collection[str]) -> Cursor:
        """Without troubles that are over: seen settled by anybody, or gone for the machine that saw them."""
        mine = {trouble.subject for trouble in troubles}
        kept = {
            subject: seer
            for subject, seer in self.troubled.items()
            if subject not in resolved and (seer != machine or subject in mine)
        }
        return replace(self, troubled=kept)


def slice_events(subject: str, journal: Sequence[Document]) -> list[HookEvent]:
    """What the journal of a slice, in the order of appending, tells: each under the position of the first entry
    that says it, however often a crash had it written.

    A slice has recovered when it is ready after a loss with no `up` or `down` in between.
    """
    found: dict[tuple[str, EventKind], HookEvent] = {}
    lost = ready = False
    for document in journal:
        entry = document.data
        action = str(entry["action"])
        kind = None
        if action in {"up", "down"}:
            lost = ready = False
        elif action in {"preempted", "unreachable", "create-failed", "absent", "time-over"}:
            kind = None if action in {"create-failed", "absent", "time-over"} else EventKind.PREEMPTED
            lost = lost or ready or kind is not None
        elif action == "ready":
            kind = EventKind.RECOVERED if lost else None
            lost, ready = False, True
        elif action in {"refused", "denied", "removed"}:
            kind = EventKind.NEEDS_HUMAN
        elif action == EventKind.UNSAVED:
            kind = EventKind.UNSAVED
        if kind is not None:
            position, why = document.key.rpartition("/")[2], f"{action}: {entry.get('reason', '')}"
            told = HookEvent(kind, subject, position, decided_at(entry), why)
            found.setdefault((str(entry.get("incarnation", "")), kind), told)
    return list(found.values())


_OF_RUNS = {MOUNT_LOST: EventKind.MOUNT_LOST} | dict.fromkeys(
    (STALLED, SLOW, NOT_FINITE, RECOMPILED, ON_CPU), EventKind.NEEDS_HUMAN
)
"""What hooks are told of attempts, by the actions of the journal."""


def run_events(
    subject: str, journal: Mapping[str, Mapping[str, Any]], record: Mapping[str, Any]
) -> list[HookEvent]:
    """What the journal of a run tells, by the ids of its entries: events of attempts that are in `_OF_RUNS`,
    and that it is over without success for good. An earlier version of tpuctl wrote them into the record alone,
    under the same ids."""
    attempt, state = record.get("attempt") or {}, str(record["state"])
    rows = {
        event_id(attempt["number"], position): (entry["event"], entry["at"], entry.get("detail", ""))
        for position, entry in enumerate(attempt.get("timeline") or ())
    }
    if state in {RunState.GAVE_UP, RunState.FAILED}:
        at = record.get("ended_at") or record["created_at"]
        rows[GIVEN_UP] = (state, at, record.get("reason") or "no reason given")
    rows |= {event: (each["action"], decided_at(each), each["reason"]) for event, each in journal.items()}
    found = []
    for event, (action, at, detail) in sorted(rows.items()):
        kind = EventKind.GAVE_UP if event == GIVEN_UP else _OF_RUNS.get(action)
        if kind is not None:
            said = f"{action}: {detail}" if kind is EventKind.GAVE_UP else str(detail)
            found.append(HookEvent(kind, subject, event, float(at), said))
    return found


def is_history(record: Mapping[str, Any], now: float) -> bool:
    """Whether a record ended so long ago that nobody wants to hear of it."""
    ended = record.get("ended_at")
    return isinstance(ended, int | float) and now - ended > timeouts.HOOK_MEMORY_S


def trouble_events(troubles: Sequence[Trouble], told: Collection[str]) -> list[HookEvent]:
    """Troubles that a person should hear of, except of the subjects in `told`."""
    return [
        HookEvent(
            EventKind.NEEDS_HUMAN,
            trouble.subject,
            f"{EventKind.NEEDS_HUMAN}/{trouble.since:.0f}",
            trouble.since,
            f"{trouble.result}: {trouble.why}",
        )
        for trouble in troubles
        if trouble.subject not in told and _lasts(trouble)
    ]


def _lasts(trouble: Trouble) -> bool:
    return trouble.result == PassResult.BLOCKED or trouble.passes >= timeouts.TROUBLE_PASSES


def render_event(event: HookEvent, *, store_id: str, project: str, profile: str, host: str) -> dict[str, Any]:
    """What a hook is given. `id` is the same for repeats of the same event; `text` is for people."""
    folder, _, name = event.subject.rpartition("/")
    return {
        "id": f"{store_id}/{event.subject}/{event.id}",
        "event": str(event.kind),
        "kind": folder.removesuffix("s") or "subject",
        "name": name,
        "at": render_time(event.at),
        "detail": event.detail,
        "project": project,
        "profile": profile,
        "host": host,
        "text": f"tpuctl ({project}): {name} {event.kind}: {event.detail}",
    }
