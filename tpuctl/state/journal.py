"""The audit trail: every decision with its reason, written before the effect it announces."""

from __future__ import annotations

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
