"""Telling hooks what happened: each event at least once for each hook, whichever machine saw it.

One document per hook says how far it has come. It is written after each sending: a crash in between repeats the
event with the same id, and loses none. Who sends has the hook's lease, so that two machines seldom both do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from tpuctl.config.hooks import EventKind, Hook
from tpuctl.engine.ports import Document
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, DamagedRecordError, LeaseHeldError
from tpuctl.lib.codec import to_data
from tpuctl.model import timeouts
from tpuctl.model.records import RunRecord, SliceState
from tpuctl.notify.events import (
    Cursor,
    HookEvent,
    Read,
    is_history,
    run_events,
    slice_events,
    trouble_events,
)
from tpuctl.state.leases import take_lease
from tpuctl.state.repository import decode_readable, find
from tpuctl.watch.heartbeat import UNTROUBLED, PassLine, Trouble

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

    A hook that is new is told of troubles that last, and not of what happened before it was there. One that
    failed last time comes last, so that its time-outs do not take the time of those that work.
    """
    if not hooks:
        return []
    documents = {
        document.key: document
        for prefix in ("slices/", "runs/")
        for document in services.store.list(prefix)
        if _tells(document, services.store.now())
    }
    notes = []
    deadline = services.clock.now() + timeouts.HOOKS_MAX_S
    for hook in sorted(hooks, key=lambda each: bool(hook_cursor(services, each).error)):
        try:
            notes += _Telling(services, hook, documents, lines, troubles, send, deadline).work()
        except (LeaseHeldError, ConflictError):
            continue  # another machine tells this hook
    return notes


def _tells(document: Document, now: float) -> bool:
    """Whether a record has events to send. A damaged one has none; the pass reports it."""
    try:
        return not is_history(document.data, now)
    except DamagedRecordError:
        return False


class _Telling:
    """One hook in one pass."""

    def __init__(
        self,
        services: Services,
        hook: Hook,
        documents: Mapping[str, Document],
        lines: Sequence[PassLine],
        troubles: Sequence[Trouble],
        send: Send,
        deadline: float,
    ) -> None:
        self._services = services
        self._hook = hook
        self._documents = documents
        self._resolved = {line.subject for line in lines if line.result in UNTROUBLED}
        self._troubles = _by_cause(troubles, documents)
        self._send = send
        self._deadline = deadline
        cursor, self._generation = find(services.store, Cursor, hook.key)
        self._cursor = cursor or Cursor()

    def work(self) -> list[str]:
        if self._cursor.read is None:
            self._save(replace(self._cursor, read=self._read_to_the_end(self._changed())))
        services, old = self._services, self._cursor
        self._cursor = old.without_resolved(services.machine, self._troubles, self._resolved)
        changed = self._changed()
        pending = self._pending(changed)
        notes: list[str] = []
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
            key: self._events(document)
            for key, document in self._documents.items()
            if key not in known or known[key].generation != document.generation
        }

    def _read_to_the_end(self, changed: Mapping[str, Sequence[HookEvent]]) -> dict[str, Read]:
        """Subjects that are gone are forgotten."""
        known = self._cursor.read or {}
        return {
            key: Read(document.generation, changed[key][-1].id if changed[key] else "")
            if key in changed
            else known[key]
            for key, document in self._documents.items()
        }

    def _events(self, document: Document) -> list[HookEvent]:
        """The record was read before: what is written down from now on is found in its next generation."""
        if document.key.startswith("runs/"):
            return run_events(document.key, document.data)
        return slice_events(document.key, self._services.store.list(f"journal/{document.key}/"))

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
            found = services.store.get(hook.key)
            if found is None or found.generation != self._generation:
                raise ConflictError(f"another machine called hook {hook.name} at the same time")
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
        """Raises ConflictError when another machine wrote first: then it is at work on this hook."""
        written = self._services.store.put(self._hook.key, to_data(cursor), if_generation=self._generation)
        self._generation, self._cursor = written.generation, cursor


def _by_cause(troubles: Sequence[Trouble], documents: Mapping[str, Document]) -> list[Trouble]:
    """The troubles, those of runs that wait for a slice which was refused or removed as one of that slice."""
    found: dict[str, Trouble] = {}
    for trouble in troubles:
        document = documents.get(f"runs/{trouble.subject}")
        runs, _ = decode_readable(RunRecord, [] if document is None else [document])
        slice_ = documents.get(f"slices/{runs[0].spec.slice_name}") if runs else None
        if slice_ is not None and slice_.data["state"] in (SliceState.REFUSED, SliceState.REMOVED):
            trouble = replace(trouble, subject=slice_.key.removeprefix("slices/"))
        found.setdefault(trouble.subject, trouble)
    return list(found.values())


def hook_cursor(services: Services, hook: Hook) -> Cursor:
    """How far a hook has come, and its last error."""
    return find(services.store, Cursor, hook.key)[0] or Cursor()


def sample_event(services: Services) -> HookEvent:
    """Something to try a hook with."""
    return HookEvent(
        EventKind.TEST, "fleet/test", "test", services.clock.now(), "sent by tpuctl watch hooks --test"
    )
