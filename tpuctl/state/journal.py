"""The audit trail: every decision with its reason, written before the effect it announces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from tpuctl.engine.ports import Document
from tpuctl.engine.services import Services
from tpuctl.errors import DamagedRecordError


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
    return services.store.list(f"journal/{subject}/")


def read_events(services: Services, subject: str) -> Mapping[str, Mapping[str, Any]]:
    """The entries of a subject that have the id of an event, the first of each. What cannot be read is none."""
    found: dict[str, Mapping[str, Any]] = {}
    for document in read_journal(services, subject):
        with suppress(DamagedRecordError):
            if event := document.data.get("event"):
                found.setdefault(str(event), document.data)
    return found


def read_journals(services: Services, beginning: str) -> Sequence[tuple[str, Document]]:
    """The entries of all subjects that begin so, each with its subject, in one listing."""
    documents = services.store.list(f"journal/{beginning}")
    return [(each.key.removeprefix("journal/").rpartition("/")[0], each) for each in documents]


def decided_at(entry: Mapping[str, Any]) -> float:
    """When a decision was taken; 0 for an entry that does not tell: it says nothing of the others."""
    at = entry.get("at")
    return float(at) if isinstance(at, int | float) and at == at else 0.0
