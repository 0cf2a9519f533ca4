"""What a slice has beside its TPU, written down for the hosts that it has and for those that come later."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from tpuctl.engine.reconcile import Outcome, converge
from tpuctl.engine.services import Services
from tpuctl.model.records import SliceRecord
from tpuctl.model.verdict import Done
from tpuctl.state.journal import record_decision
from tpuctl.state.repository import Versioned, get_slice, save

Ref = TypeVar("Ref")


def change_spec(
    services: Services,
    name: str,
    field: str,
    change: Callable[[tuple[Ref, ...]], tuple[Ref, ...]],
    why: str,
    *,
    seen: Versioned[SliceRecord] | None = None,
) -> None:
    """The slice has what `change` makes of its things in `field` from now on. Raises as `converge` does; with
    `seen`, StaleRecordError where anybody has written its record since."""

    def step() -> Outcome:
        stored = seen or get_slice(services, name)
        spec = stored.record.spec
        wanted = change(getattr(spec, field))
        if wanted != getattr(spec, field):
            record_decision(services, stored.record.key, field, why)
            save(services, stored, replace(stored.record, spec=replace(spec, **{field: wanted})))
        return Outcome(Done(), acted=False)

    if seen is not None:
        step()
    else:
        converge(services, name, step)
