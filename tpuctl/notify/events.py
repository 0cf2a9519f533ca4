"""Hooks: what is told to programs and web addresses of the user's own, and when.

Events are read out of the journal and the run records, which are written before the effect they announce.
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
from tpuctl.model.attempts import MOUNT_LOST, NOT_FINITE, ON_CPU, RECOMPILED, SLOW, STALLED
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


def run_events(subject: str, record: Mapping[str, Any]) -> list[HookEvent]:
    """What the record of a run tells: events of its attempt that are in `_OF_TIMELINE`, and that it is over
    without success for good. The journal of runs is not read."""
    events = _timeline_events(subject, record.get("attempt") or {})
    state = str(record["state"])
    if state not in {RunState.GAVE_UP, RunState.FAILED}:
        return events
    at = float(record.get("ended_at") or record["created_at"])
    detail = f"{state}: {record.get('reason') or 'no reason given'}"
    return [*events, HookEvent(EventKind.GAVE_UP, subject, str(EventKind.GAVE_UP), at, detail)]


_OF_TIMELINE = {MOUNT_LOST: EventKind.MOUNT_LOST} | dict.fromkeys(
    (STALLED, SLOW, NOT_FINITE, RECOMPILED, ON_CPU), EventKind.NEEDS_HUMAN
)


def _timeline_events(subject: str, attempt: Mapping[str, Any]) -> list[HookEvent]:
    """Their ids begin with digits, and so sort before that of the end, which is a word."""
    return [
        HookEvent(
            _OF_TIMELINE[entry["event"]],
            subject,
            f"{attempt['number']:05d}-{position:05d}",
            float(entry["at"]),
            str(entry.get("detail", "")),
        )
        for position, entry in enumerate(attempt.get("timeline") or ())
        if entry["event"] in _OF_TIMELINE
    ]


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
