"""What a pass does and says when lists leave zones out, do not end, or cannot be read at all."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.jobs import SPEC, bring_up
from tests.support.memory.services import MemoryPlace
from tpuctl.errors import TransientError
from tpuctl.model.records import Orphan, SliceState
from tpuctl.slices.observe import list_inventory
from tpuctl.state.repository import get_slice, save
from tpuctl.watch.reconciler import run_pass

OTHER = {"zone": "us-central1-a", "accelerator_type": "v5p-16", "runtime_version": "v2-alpha-tpuv5"}


@pytest.fixture
def place(place: MemoryPlace) -> MemoryPlace:
    bring_up(place.machine(), "big")
    bring_up(place.machine(), "far", **OTHER)
    return place


class Half:
    """A cloud whose wildcard lists leave zones out (`dark`), or do not come to an end (None)."""

    def __init__(self, inner: Any, dark: set[str] | None, *, deaf: set[str] = frozenset()) -> None:
        self._inner, self._dark, self._deaf = inner, dark, deaf
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def list_nodes(self, zone: str = "-") -> Any:
        return self._list(self._inner.list_nodes, zone)

    def list_queued(self, zone: str = "-") -> Any:
        return self._list(self._inner.list_queued, zone)

    def _list(self, read: Any, zone: str) -> Any:
        self.asked.append(zone)
        if zone in self._deaf or (zone == "-" and self._dark is None):
            raise TransientError(f"could not list {zone}: timed out")
        found = read(zone)
        if zone != "-":
            return found
        kept = tuple(each for each in found.items if each.zone not in self._dark)
        return replace(found, items=kept, unreachable=frozenset(self._dark))


@pytest.mark.parametrize("dark", [None, {SPEC.zone}, {SPEC.zone, OTHER["zone"]}])
def test_zones_that_the_wildcard_leaves_out_are_listed_one_by_one(place, dark):
    place.world.preempt("big-1")
    place.clock.advance(120.0)
    services = place.machine()
    services.cloud = Half(services.cloud, dark)
    run_pass(services)
    assert get_slice(services, "big").record.state is not SliceState.READY
    assert get_slice(services, "far").record.state is SliceState.READY
    assert set(services.cloud.asked) <= {"-", SPEC.zone, OTHER["zone"]}


def test_one_zone_that_cannot_be_read_hides_no_other(place):
    place.world.preempt("big-1")
    place.world.preempt("far-1")
    place.clock.advance(120.0)
    services = place.machine()
    services.cloud = Half(services.cloud, None, deaf={OTHER["zone"]})
    run_pass(services)
    assert get_slice(services, "big").record.state is not SliceState.READY
    assert get_slice(services, "far").record.state is SliceState.READY


def test_zones_are_listed_one_by_one_only_where_it_is_needed(place):
    services = place.machine()
    services.cloud = Half(services.cloud, {"europe-west4-a"})
    run_pass(services)
    assert services.cloud.asked == ["-", "-"]


def test_a_pass_that_can_read_nothing_says_so(place):
    place.world.faults.add({"preset": "blip", "times": 0})
    for _ in range(3):
        place.clock.advance(60.0)
        lines = {line.subject: line for line in run_pass(place.machine())}
        assert lines["fleet"].result == "failed"
        assert "nothing in the cloud could be read" in lines["fleet"].why
        assert "Internal error" in lines["fleet"].why
    place.world.faults.clear()
    assert "fleet" not in {line.subject for line in run_pass(place.machine())}


@pytest.mark.parametrize(("deaf", "kept"), [({"europe-west4-a"}, ["big-0"]), (set(), [])])
def test_an_earlier_life_is_forgotten_only_where_its_own_zone_was_read(place, deaf, kept):
    services = place.machine()
    stored = get_slice(services, "big")
    save(services, stored, replace(stored.record, orphans=(Orphan("europe-west4-a", "big-0", 0.0, "silent"),)))
    services.cloud = Half(services.cloud, None, deaf=deaf)
    run_pass(services)
    assert [each.name for each in get_slice(services, "big").record.orphans] == kept


def test_nothing_is_gone_from_a_zone_that_nobody_asked(place):
    services = place.machine()
    services.cloud = Half(services.cloud, None)
    seen = list_inventory(services, {SPEC.zone})
    assert not seen.absent("europe-west4-a", "big-0")
    assert seen.absent(SPEC.zone, "big-0")
    whole = list_inventory(place.machine(), {SPEC.zone})
    assert whole.absent("europe-west4-a", "big-0")
