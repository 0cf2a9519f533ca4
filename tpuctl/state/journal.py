"""The audit trail: every decision with its reason, written before the effect it announces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from msgspec import Struct

from tpuctl.engine.ports import Document
from tpuctl.engine.services import Services
from tpuctl.errors import DamagedRecordError
from tpuctl.state.repository import Repository, decode

DAMAGED = "damaged"
"""The action of what stands for an entry that cannot be read; its reason says what is wrong."""
NEW_RUN = "run"
"""The action of the first entry of a run. What stands before it is of an earlier one of that name."""


class DecisionEntry(Struct, frozen=True):
    """What every entry tells."""

    action: str
    reason: str


ENTRIES = Repository(DecisionEntry, "journal")


def record_decision(
    services: Services,
    subject: str,
    action: str,
    reason: str,
    *,
    incarnation: str = "",
    fence: int = 0,
    event: str = "",
) -> float:
    """Appends one entry to the journal of `subject` (`slices/NAME` or `runs/ID`); returns its time. `event` is
    the id of what happened, the same when a crash has it written again."""
    at = services.store.now()
    services.store.append(
        f"journal/{subject}/",
        {
            "at": at,
            "action": action,
            "reason": reason,
            "incarnation": incarnation,
            "fence": fence,
            "user": services.user,
            "machine": services.machine,
            **({"event": event} if event else {}),
        },
    )
    return at


def read_journal(services: Services, subject: str) -> Sequence[Document]:
    """The entries of a subject, oldest first. Who reads one takes what it tells: entries stay for years."""
    return [*_readable(services.store.list(f"journal/{subject}/"))]


def read_events(services: Services, subject: str, since: float) -> Mapping[str, Mapping[str, Any]]:
    """The entries of a run, asked for at `since`, that have the id of an event, the first of each."""
    found: dict[str, Mapping[str, Any]] = {}
    for document in read_journal(services, subject):
        if document.data["action"] == NEW_RUN:
            found.clear()
        elif document.data["action"] == DAMAGED:  # it may have been that entry
            found = {event: entry for event, entry in found.items() if decided_at(entry) >= since}
        if event := document.data.get("event"):
            found.setdefault(str(event), document.data)
    return found


def read_journals(services: Services, beginning: str) -> Sequence[tuple[str, Document]]:
    """The entries of all subjects that begin so, each with its subject, in one listing."""
    documents = services.store.list(f"journal/{beginning}")
    of_subjects = groupby(documents, lambda each: each.key.removeprefix("journal/").rpartition("/")[0])
    return [(subject, each) for subject, found in of_subjects for each in _readable(found)]


def _readable(documents: Iterable[Document]) -> Iterator[Document]:
    """Entries of one subject; in the place of a damaged one, one that says so: it keeps no other from being
    read. Its time is that of the entry before it, or of the one after it where it is the first."""
    at: float | None = None
    early: list[tuple[Document, str]] = []
    for document in documents:
        try:
            decode(DecisionEntry, document)
        except DamagedRecordError as error:
            if at is None:
                early.append((document, error.message))
            else:
                yield _damaged(document, error.message, at)
            continue
        at = decided_at(document.data)
        yield from (_damaged(each, why, at) for each, why in early)
        early = []
        yield document
    yield from (_damaged(each, why, 0.0) for each, why in early)


def _damaged(document: Document, why: str, at: float) -> Document:
    return Document(document.key, document.generation, {"at": at, "action": DAMAGED, "reason": why})


def decided_at(entry: Mapping[str, Any]) -> float:
    """When a decision was taken; 0 for an entry that does not tell: it says nothing of the others."""
    at = entry.get("at")
    return float(at) if isinstance(at, int | float) and at == at else 0.0
