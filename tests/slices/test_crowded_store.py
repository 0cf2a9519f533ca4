"""What others write all the time: a statistic that is lost costs no slice."""

from __future__ import annotations

from typing import Any

from tests.support.jobs import bring_up, limit
from tests.support.memory.services import MemoryPlace
from tpuctl.errors import ConflictError
from tpuctl.model.records import SliceState
from tpuctl.state.repository import get_slice
from tpuctl.watch.lifetime import apply_lifetime


class Crowd:
    """A store in which somebody else is always first to write what is under `kind`."""

    def __init__(self, inner: Any, kind: str) -> None:
        self._inner = inner
        self._kind = kind
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def put(self, key: str, data: Any, *, if_generation: int) -> Any:
        if key.startswith(f"{self._kind}/"):
            self.refused += 1
            raise ConflictError(f"{key} was written meanwhile")
        return self._inner.put(key, data, if_generation=if_generation)


def test_a_slice_comes_up_although_nothing_of_capacity_could_be_written(place: MemoryPlace):
    services = place.machine()
    services.store = Crowd(services.store, "capacity")
    assert bring_up(services, "big").state is SliceState.READY
    assert services.store.refused


def test_a_failed_create_waits_as_long_as_if_it_could_be_written(place: MemoryPlace):
    services = place.machine()
    services.store = Crowd(services.store, "capacity")
    place.world.faults.add({"preset": "stockout", "times": 1})
    assert bring_up(services, "big", queued=False).state is SliceState.READY
    assert services.store.refused


def test_what_was_seen_of_the_use_of_a_slice_may_be_lost(place: MemoryPlace):
    services = place.machine()
    bring_up(services, "big")
    limit(services, "big", idle_s=3600.0)
    services.store = Crowd(services.store, "idle")
    place.clock.advance(60.0)
    assert apply_lifetime(services, get_slice(services, "big").record) == ""
    assert services.store.refused
