"""The lifetime of a slice with which a command stays: decided there while no watchdog makes passes."""

from __future__ import annotations

from collections.abc import Sequence

from tpuctl.engine.events import Note
from tpuctl.engine.services import Services
from tpuctl.model.records import Desired, SliceRecord
from tpuctl.slices.lifetime import HostActivity
from tpuctl.state.repository import get_slice
from tpuctl.watch.cycle import watchdog_health
from tpuctl.watch.lifetime import apply_lifetime, read_activity
from tpuctl.watch.pause import paused_why

JUDGED_EVERY_S = 60.0
"""As often as a watchdog makes passes."""


class Attendance:
    """Of one command with slice `name`."""

    def __init__(self, services: Services, name: str) -> None:
        self._services = services
        self._name = name
        self._judged_at = 0.0

    def is_over(self, used: bool) -> bool:
        """Whether the slice is to go. `used`: by this command, whose own connections hosts do not count."""
        record, now = get_slice(self._services, self._name).record, self._services.clock.now()
        if record.desired is Desired.UP and now >= self._judged_at + JUDGED_EVERY_S:
            self._judged_at = now
            said = self._judge(record, used)
            if said:
                self._services.emit(Note(self._name, said))
                record = get_slice(self._services, self._name).record
        return record.desired is not Desired.UP

    def _judge(self, record: SliceRecord, used: bool) -> str:
        services = self._services
        if record.lifetime is None or watchdog_health(services).good or paused_why(services):
            return ""
        return apply_lifetime(services, record, ask=_in_use if used else read_activity)


def _in_use(_services: Services, _record: SliceRecord) -> Sequence[HostActivity]:
    return [HostActivity(0, 1, 0, chips_unknown=False, load_per_cpu=0.0)]
