"""Telling hooks what happened: once in total for each hook, also with several machines and after a crash.

One document per hook holds what it was told and who is telling it now. It is claimed by compare-and-set before
anything is sent and written after each sending, so that two machines with the same hook do not both send, and a
crash in between repeats one event with the same id. Machines with different hooks do not hinder each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from tpuctl.config.hooks import Hook, Occasion
from tpuctl.engine.ports import Document
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, DamagedRecordError
from tpuctl.lib.codec import to_data
from tpuctl.model import timeouts
from tpuctl.model.records import SliceState
from tpuctl.notify.events import (
    Happening,
    Ledger,
    Seen,
    forget_resolved,
    is_history,
    mark_failed,
    mark_told,
    run_happenings,
    slice_happenings,
    subjects_in_journal,
    trouble_happenings,
)
from tpuctl.state.repository import decode
from tpuctl.watch.heartbeat import UNTROUBLED, PassLine, Trouble

Send = Callable[[Hook, Happening], str]
"""Tells one hook of one happening; returns trouble in words, or an empty string. Never raises."""


def tell_hooks(
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
    for hook in sorted(hooks, key=lambda each: bool(hook_state(services, each).error)):
        try:
            notes += _Telling(services, hook, documents, lines, troubles, send, deadline).work()
        except ConflictError:
            continue  # another machine has just begun to tell this hook
    return notes


def _tells(document: Document, now: float) -> bool:
    """A damaged record has nothing to tell; that it is one, the pass says."""
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
        self._generation = 0
        self._ledger = Ledger()

    def work(self) -> list[str]:
        document = self._services.store.get(self._hook.key)
        if document is None:
            everything = {key: self._look(found) for key, found in self._documents.items()}
            self._save(Ledger(seen={key: _all_told(*look) for key, look in everything.items()}))
        else:
            self._generation = document.generation
            self._ledger = decode(Ledger, document)
        if self._is_held():
            return []
        machine = self._services.machine
        free = replace(self._ledger, holder="", expires=0.0)
        fresh = self._with_news(forget_resolved(free, machine, self._troubles, self._resolved))
        pending = self._pending(fresh)
        if not pending or self._services.clock.now() >= self._deadline:
            if not pending and fresh != self._ledger:
                self._save(fresh)
            return []
        return self._tell_all(fresh, pending)

    def _is_held(self) -> bool:
        holder, me = self._ledger.holder, self._services.lease_owner
        if holder in {"", me} or self._services.store.now() >= self._ledger.expires:
            return False
        return self._services.process_alive(holder)

    def _with_news(self, ledger: Ledger) -> Ledger:
        """The ledger with the generations of all records that are there; those that are gone are forgotten.

        What is pending of a changed record is found before its new generation counts as looked at.
        """
        self._changed = {
            key: self._look(document)
            for key, document in self._documents.items()
            if key not in ledger.seen or ledger.seen[key].generation != document.generation
        }
        seen = {key: found for key, found in ledger.seen.items() if key in self._documents}
        for key, (generation, happenings) in self._changed.items():
            told = seen[key].told if key in seen else ()
            # What this hook does not want counts as told, also if it should want it later.
            seen[key] = Seen(
                generation,
                tuple(
                    each.token
                    for each in happenings
                    if each.token in told or each.occasion not in self._hook.events
                ),
            )
        return ledger if seen == ledger.seen else replace(ledger, seen=seen)

    def _look(self, document: Document) -> tuple[int, list[Happening]]:
        """The generation first: what is written down after it is found when the next one is looked at."""
        if document.key.startswith("runs/"):
            return document.generation, run_happenings(document.key, document.data)
        journal = [entry.data for entry in self._services.store.list(f"journal/{document.key}/")]
        return document.generation, slice_happenings(document.key, journal)

    def _pending(self, ledger: Ledger) -> list[Happening]:
        found = [
            happening
            for key, (_, happenings) in self._changed.items()
            for happening in happenings
            if happening.token not in ledger.seen[key].told
        ]
        known = subjects_in_journal(found)
        found += [each for each in trouble_happenings(self._troubles, ledger) if each.subject not in known]
        wanted = [happening for happening in found if happening.occasion in self._hook.events]
        return sorted(wanted, key=lambda happening: happening.at)

    def _tell_all(self, fresh: Ledger, pending: list[Happening]) -> list[str]:
        """Under the claim. Records whose news could not be told keep their old generation and are looked at
        again in the next pass."""
        store, clock = self._services.store, self._services.clock
        expires = store.now() + timeouts.HOOK_CLAIM_S
        unfinished = {
            happening.subject: self._ledger.seen.get(happening.subject, Seen(0)) for happening in pending
        }
        held = {
            key: replace(found, generation=unfinished[key].generation) if key in unfinished else found
            for key, found in fresh.seen.items()
        }
        self._save(replace(fresh, seen=held, holder=self._services.lease_owner, expires=expires))
        notes: list[str] = []
        for happening in pending:
            if clock.now() >= self._deadline:
                break
            trouble = self._send(self._hook, happening)
            if trouble:
                notes.append(f"hook {self._hook.name}: {happening.subject} {happening.occasion}: {trouble}")
                failed = mark_failed(self._ledger, happening, trouble)
                if failed.tries < timeouts.HOOK_TRIES:
                    self._save(failed)
                    break
                self._save(mark_told(failed, happening, self._services.machine))
                continue
            self._save(replace(mark_told(self._ledger, happening, self._services.machine), error=""))
        self._release(fresh, pending)
        return notes

    def _release(self, fresh: Ledger, pending: list[Happening]) -> None:
        left = {each.subject for each in pending if not self._was_told(each)}
        seen = {
            key: found if key in left else replace(found, generation=fresh.seen[key].generation)
            for key, found in self._ledger.seen.items()
        }
        self._save(replace(self._ledger, seen=seen, holder="", expires=0.0))

    def _was_told(self, happening: Happening) -> bool:
        seen = self._ledger.seen.get(happening.subject)
        return happening.subject in self._ledger.troubled if seen is None else happening.token in seen.told

    def _save(self, ledger: Ledger) -> None:
        """Raises ConflictError when another machine wrote first: then it is at work on this hook."""
        written = self._services.store.put(self._hook.key, to_data(ledger), if_generation=self._generation)
        self._generation, self._ledger = written.generation, ledger


def _by_cause(troubles: Sequence[Trouble], documents: Mapping[str, Document]) -> list[Trouble]:
    """The troubles, those of runs that wait for a slice which was refused or removed as one of that slice."""
    found: dict[str, Trouble] = {}
    for trouble in troubles:
        run = documents.get(f"runs/{trouble.subject}")
        slice_ = None if run is None else documents.get(f"slices/{run.data['slice_name']}")
        if slice_ is not None and slice_.data["state"] in (SliceState.REFUSED, SliceState.REMOVED):
            trouble = replace(trouble, subject=slice_.key.removeprefix("slices/"))
        found.setdefault(trouble.subject, trouble)
    return list(found.values())


def _all_told(generation: int, happenings: Sequence[Happening]) -> Seen:
    return Seen(generation, tuple(happening.token for happening in happenings))


def hook_state(services: Services, hook: Hook) -> Ledger:
    """What a hook was told so far."""
    document = services.store.get(hook.key)
    return Ledger() if document is None else decode(Ledger, document)


def sample_happening(services: Services) -> Happening:
    """Something to try a hook with."""
    return Happening(
        Occasion.TEST, "fleet/test", "test", services.clock.now(), "sent by tpuctl watch hooks --test"
    )
