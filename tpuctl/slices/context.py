"""One slice while this process holds its lease: what was seen and planned, and its record as last written."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tpuctl.engine.services import Services
from tpuctl.errors import TpuctlError
from tpuctl.model.records import Incarnation, SliceRecord
from tpuctl.slices.observe import SliceLook
from tpuctl.slices.plan import SlicePlan
from tpuctl.slices.probing import Reach
from tpuctl.state.journal import record_decision
from tpuctl.state.leases import Lease
from tpuctl.state.repository import Loaded, save


class HeldSlice:
    """What every effect on a slice is given, and the only road on which one writes its record and its trail."""

    def __init__(
        self, services: Services, look: SliceLook, plan: SlicePlan, lease: Lease, reach: Reach
    ) -> None:
        self.services = services
        self.look = look
        self.plan = plan
        self.reach = reach
        self._fence = lease.fence
        self._loaded = look.loaded

    @property
    def fence(self) -> int:
        """The counter of the lease."""
        return self._fence

    @property
    def record(self) -> SliceRecord:
        """As last written, or amended since."""
        return self._loaded.record

    @property
    def incarnation(self) -> Incarnation:
        """Raises TpuctlError for a slice that has none: its plan is wrong."""
        incarnation = self.record.incarnation
        if incarnation is None:
            raise TpuctlError(f"slice {self.record.name} has no incarnation to act on")
        return incarnation

    def changed(self, **changes: Any) -> SliceRecord:
        """The record with changes of its incarnation."""
        return replace(self.record, incarnation=replace(self.incarnation, **changes))

    def amend(self, record: SliceRecord) -> None:
        """Takes `record` for the slice's without writing it: the next `save` starts from it."""
        self._loaded = Loaded(record, self._loaded.generation)

    def save(self, record: SliceRecord) -> None:
        """Raises StaleRecordError when somebody else wrote since it was read."""
        self._loaded = save(self.services, self._loaded, record)

    def journal(self, action: str, reason: str) -> None:
        """Tells the slice's trail what is about to be done, and why."""
        incarnation = self.record.incarnation
        record_decision(
            self.services,
            self.record.key,
            action,
            reason,
            incarnation=incarnation.cloud_name if incarnation else "",
            fence=self._fence,
        )
