"""The audit trail: every decision with its reason, written before the effect it announces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpuctl.engine.services import Services


def record_decision(
    services: Services, subject: str, action: str, reason: str, *, incarnation: str = "", fence: int = 0
) -> None:
    """Appends one entry to the journal of `subject` (`slices/NAME` or `runs/ID`)."""
    services.store.append(
        f"journal/{subject}/",
        {
            "at": services.store.now(),
            "action": action,
            "reason": reason,
            "incarnation": incarnation,
            "fence": fence,
            "user": services.user,
            "machine": services.machine,
        },
    )


def decided_at(entry: Mapping[str, Any]) -> float:
    """When a decision was taken; 0 for an entry that does not tell: it says nothing of the others."""
    at = entry.get("at")
    return float(at) if isinstance(at, int | float) and at == at else 0.0
