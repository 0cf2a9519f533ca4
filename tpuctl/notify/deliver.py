"""Telling hooks what happened: each event at least once for each hook, whichever machine saw it.

One record per hook says how far it has come. It is written after each sending: a crash in between repeats the
event with the same id, and loses none. Who sends has the hook's lease, so that two machines seldom both do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec.structs import replace

from tpuctl.config.hooks import EventKind, Hook
from tpuctl.engine.services import Services
from tpuctl.errors import DamagedRecordError, LeaseHeldError, StaleRecordError
from tpuctl.lib.codec import to_data
from tpuctl.model import timeouts
from tpuctl.model.records import RunRecord, SliceRecord, SliceState
from tpuctl.notify.events import (
    Cursor,
    HookEvent,
    Read,
    is_history,
    run_events,
    slice_events,
    trouble_events,
)
from tpuctl.state.journal import read_events, read_journal
from tpuctl.state.leases import take_lease
from tpuctl.state.repository import RUNS, SLICES, Repository, Versioned
from tpuctl.watch.heartbeat import UNTROUBLED, PassLine, Trouble

HOOKS = Repository(Cursor, "hooks")
Subject = Versioned[SliceRecord] | Versioned[RunRecord]
Subjects = Mapping[str, Subject]
"""The slices and runs of the store, by their keys."""
Send = Callable[[Hook, HookEvent], str]
"""Tells one hook of one event; returns trouble in words, or an empty string. Never raises."""


def deliver_events(
    services: Services,
    hooks: Sequence[Hook],
    lines: Sequence[PassLine],
    troubles: Sequence[Trouble],
    send: Send,
) -> list[str]:
    """Tells every hook what it has not heard yet; returns what went wrong, in words.

    A hook that is new is told of troubles that last, and not of what happened before it was there; so is one
    whose cursor is damaged, because it would be told everything again. One that failed last time comes last, so
    that its time-outs do not take the time of those that work.
    """
    if not hooks:
        return []
    subjects, damaged = _subjects(services)
    notes = []
    deadline = services.clock.now() + timeouts.HOOKS_MAX_S
    for hook in sorted(hooks, key=lambda each: bool(hook_cursor(services, each).error)):
        try:
            notes += _Telling(services, hook, subjects, damaged, lines, troubles, send, deadline).work()
        except (LeaseHeldError, StaleRecordError):
            continue  # another machine tells this hook
    return notes


def _subjects(services: Services) -> tuple[Subjects, Collection[str]]:
    """Those that may have events to send, and the keys of damaged records. These have none; the pass reports
    them."""
    now = services.store.now()
    slices, bad_slices = SLICES.load(services)
    runs, bad_runs = RUNS.load(services, where=lambda data: not is_history(data, now))
    found: dict[str, Subject] = {SLICES.key(name): stored for name, stored in slices.items()}
    found.update((RUNS.key(name), stored) for name, stored in runs.items())
    return found, {*map(SLICES.key, bad_slices), *map(RUNS.key, bad_runs)}


class _Telling:
    """One hook in one pass."""

    def __init__(
        self,
        services: Services,
        hook: Hook,
        subjects: Subjects,
        damaged: Collection[str],
        lines: Sequence[PassLine],
        troubles: Sequence[Trouble],
        send: Send,
        deadline: float,
    ) -> None:
        self._services = services
        self._hook = hook
        self._subjects = subjects
        self._damaged = damaged
        self._resolved = {line.subject for line in lines if line.result in UNTROUBLED}
        self._troubles = _by_cause(troubles, subjects)
        self._send = send
        self._deadline = deadline
        stored = _stored_cursor(services, hook)
        self._cursor, self._generation = stored.record, stored.generation

    def work(self) -> list[str]:
        notes: list[str] = []
        if self._cursor.read is None:
            if self._cursor.error:
                notes.append(f"hook {self._hook.name}: {self._cursor.error}")
            self._save(replace(self._cursor, read=self._read_to_the_end(self._changed())))
        services, old = self._services, self._cursor
        self._cursor = old.without_resolved(services.machine, self._troubles, self._resolved)
        changed = self._changed()
        pending = self._pending(changed)
        if pending and (services.clock.now() >= self._deadline or not self._tell(pending, notes)):
            return notes
        # What this hook does not want counts as told, also if it should want it later.
        cursor = replace(self._cursor, read=self._read_to_the_end(changed))
        if cursor != old:
            self._save(cursor)
        return notes

    def _changed(self) -> dict[str, list[HookEvent]]:
        """What there is to tell of each subject whose record was written since it was read to the end."""
        known = self._cursor.read or {}
        return {
            key: self._events(key, stored)
            for key, stored in self._subjects.items()
            if key not in known or known[key].generation != stored.generation
        }

    def _read_to_the_end(self, changed: Mapping[str, Sequence[HookEvent]]) -> dict[str, Read]:
        """Subjects that are gone are forgotten; a damaged one may be brought back from a backup."""
        known = self._cursor.read or {}
        return {key: known[key] for key in self._damaged if key in known} | {
            key: Read(stored.generation, changed[key][-1].id if changed[key] else "")
            if key in changed
            else known[key]
            for key, stored in self._subjects.items()
        }

    def _events(self, key: str, stored: Subject) -> list[HookEvent]:
        """The record was read before: what is written down from now on is found in its next generation."""
        if isinstance(stored.record, RunRecord):
            journal = read_events(self._services, key, stored.record.created_at)
            return run_events(key, journal, to_data(stored.record))
        return slice_events(key, read_journal(self._services, key))

    def _pending(self, changed: Mapping[str, Sequence[HookEvent]]) -> list[HookEvent]:
        """What this hook wants and was not told, in the order of their ids: so it is for each subject."""
        known = self._cursor.read or {}
        found = [
            event
            for key, events in changed.items()
            for event in events
            if key not in known or event.id > known[key].last
        ]
        in_journal = {each.subject.rpartition("/")[2] for each in found if each.kind is EventKind.NEEDS_HUMAN}
        found += trouble_events(self._troubles, in_journal | self._cursor.troubled.keys())
        return sorted((each for each in found if each.kind in self._hook.events), key=lambda event: event.id)

    def _tell(self, pending: Sequence[HookEvent], notes: list[str]) -> bool:
        """Whether all were told, or given up on; what went wrong is added to `notes`."""
        services, hook = self._services, self._hook
        with take_lease(services, hook.key):
            if HOOKS.generation(services, hook.name) != self._generation:
                raise StaleRecordError(f"another machine called hook {hook.name} at the same time")
            for event in pending:
                if services.clock.now() >= self._deadline:
                    return False
                trouble = self._send(hook, event)
                if trouble:
                    notes.append(f"hook {hook.name}: {event.subject} {event.kind}: {trouble}")
                    if self._cursor.tries + 1 < timeouts.HOOK_TRIES:
                        self._save(replace(self._cursor, tries=self._cursor.tries + 1, error=trouble))
                        return False
                self._save(replace(self._cursor.after(event, services.machine), error=trouble))
        return True

    def _save(self, cursor: Cursor) -> None:
        """Raises StaleRecordError when another machine wrote first: then it is at work on this hook."""
        written = HOOKS.put(self._services, self._hook.name, cursor, self._generation)
        self._generation, self._cursor = written.generation, cursor


def _by_cause(troubles: Sequence[Trouble], subjects: Subjects) -> list[Trouble]:
    """The troubles, those of runs that wait for a slice which was refused or removed as one of that slice."""
    found: dict[str, Trouble] = {}
    for trouble in troubles:
        run = subjects.get(RUNS.key(trouble.subject))
        name = run.record.slice_name if run is not None and isinstance(run.record, RunRecord) else ""
        slice_ = subjects.get(SLICES.key(name))
        if slice_ is not None and slice_.record.state in (SliceState.REFUSED, SliceState.REMOVED):
            trouble = replace(trouble, subject=name)
        found.setdefault(trouble.subject, trouble)
    return list(found.values())


def hook_cursor(services: Services, hook: Hook) -> Cursor:
    """How far a hook has come, and its last error."""
    return _stored_cursor(services, hook).record


def _stored_cursor(services: Services, hook: Hook) -> Versioned[Cursor]:
    """A damaged one is that of a hook that is new, and is written over."""
    try:
        return HOOKS.find(services, hook.name) or Versioned(Cursor(), 0)
    except DamagedRecordError as error:
        said = f"{error.message}; it begins anew, and is not told what happened before"
        return Versioned(Cursor(error=said), HOOKS.generation(services, hook.name))


def sample_event(services: Services) -> HookEvent:
    """Something to try a hook with."""
    return HookEvent(
        EventKind.TEST, "fleet/test", "test", services.clock.now(), "sent by tpuctl watch hooks --test"
    )
