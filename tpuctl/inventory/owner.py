"""Whose a slice is: what deletes acts on the caller's own, and on others' only when that was said."""

from __future__ import annotations

from collections.abc import Iterable

from tpuctl.engine.services import Services
from tpuctl.errors import UsageError
from tpuctl.model.records import SliceRecord


def check_owner(services: Services, records: Iterable[SliceRecord], *, all_users: bool) -> None:
    """Raises UsageError if one of `records` is somebody else's and not all users' slices are meant."""
    others = [record for record in records if record.owner != services.user]
    if others and not all_users:
        said = ", ".join(f"{record.name} ({record.owner}'s)" for record in others)
        names = " ".join(record.name for record in others)
        raise UsageError(
            f"not yours: {said}; you are {services.user}",
            hint=f"ask them, or tpuctl down {names} --all-users",
            details={"owners": {record.name: record.owner for record in others}},
        )
