"""Reconcile context of one slice: services, lease, observation and plan, and its record as last written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from tpuctl.engine.services import Services
from tpuctl.errors import TpuctlError
from tpuctl.model.records import Incarnation, SliceRecord
from tpuctl.slices.observe import Observation
from tpuctl.slices.plan import SlicePlan
from tpuctl.slices.probing import PartitionCheck
from tpuctl.state.journal import record_decision
from tpuctl.state.leases import Lease
from tpuctl.state.repository import Versioned, save


@dataclass
class ReconcileContext:
    """What every effect on a slice is given, and the only way to write its record and its journal."""

    services: Services
    observation: Observation
    plan: SlicePlan
    lease: Lease
    partition: PartitionCheck
    person: bool = False
    may_connect: bool = True
    place: int | None = None
    """The number of the rival at whose place this works: the record is then the slice as seen from there."""

    def __post_init__(self) -> None:
        self._stored = self.observation.stored

    @property
    def fence(self) -> int:
        """The counter of the lease."""
        return self.lease.fence

    @property
    def record(self) -> SliceRecord:
        """As last written, or amended since."""
        return self._stored.record

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
        self._stored = Versioned(record, self._stored.generation)

    def save(self, record: SliceRecord) -> None:
        """Raises StaleRecordError when somebody else wrote since it was read."""
        whole = record if self.place is None else record.led_by(self.place)
        self._stored = Versioned(record, save(self.services, self._stored, whole).generation)

    def journal(self, action: str, reason: str) -> None:
        """Writes into the slice's journal what is about to be done, and why."""
        incarnation = self.record.incarnation
        record_decision(
            self.services,
            self.record.key,
            action,
            reason,
            incarnation=incarnation.cloud_name if incarnation else "",
            fence=self.fence,
        )
