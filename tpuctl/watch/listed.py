"""A slice in a pass: what the lists of the cloud show of it, and what follows from that before its hosts are
asked."""

from __future__ import annotations

from msgspec import Struct

from tpuctl.engine.services import Services
from tpuctl.model.records import Desired, SliceRecord, SliceState
from tpuctl.model.verdict import Blocked
from tpuctl.slices.desired import goes_after_run
from tpuctl.slices.leaving import Written
from tpuctl.slices.observe import CloudInventory, Observation
from tpuctl.slices.plan import SlicePlan, plan_slice, time_is_over
from tpuctl.slices.racing import race_moves
from tpuctl.slices.states import FINAL_STATES, Effect
from tpuctl.slices.vacate import hosts_to_ask
from tpuctl.state.repository import Versioned


class ListedSlice(Struct, frozen=True):
    """What the lists show of a slice, and what follows from it."""

    observation: Observation
    plan: SlicePlan
    asks_to_leave: bool
    """Its TPU is to be deleted, and its hosts are asked what they write before that."""
    race_moves: bool = False
    """Something is to be done where it is asked for beside."""

    @property
    def record(self) -> SliceRecord:
        return self.observation.record

    @property
    def moves(self) -> bool:
        return self.race_moves or self.plan.moves(self.record)

    @property
    def probes(self) -> bool:
        """Whether its hosts are to be asked, now or in a moment."""
        return self.moves and self.plan.state in {SliceState.BOOTING, SliceState.INITIALIZING}

    def at_rest(self, now: float) -> bool:
        """Whether nothing is to be done or said of it."""
        info = self.observation.info
        refused = self.record.state is SliceState.REFUSED and (info.node is not None or info.queued is not None)
        final = self.record.state in FINAL_STATES
        return final and not refused and not self.moves and not self._waits_for_person(now)

    def _waits_for_person(self, now: float) -> bool:
        """Not where the time that was asked for is over."""
        waits = self.record.desired is Desired.UP and isinstance(self.plan.verdict, Blocked)
        return waits and not time_is_over(self.record, now)


def plan_listed(
    services: Services, stored: Versioned[SliceRecord], inventory: CloudInventory, now: float
) -> ListedSlice:
    """Reads nothing but what `inventory` has."""
    observation = inventory.observe(stored, services.store.identity())
    plan = plan_slice(observation.record, observation.observed, now)
    goes = plan.effect is Effect.DELETE or goes_after_run(observation.record)
    asks = goes and hosts_to_ask(observation, now) != Written()
    return ListedSlice(observation, plan, asks, race_moves(services, stored, inventory))
