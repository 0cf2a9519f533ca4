"""What an earlier life of a slice left behind goes only when its hosts, all of them, have proved it in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.inventory.test_deletes import ZONE, Hiding, Writable, a_pass, left_behind, standing
from tpuctl.errors import ConflictError
from tpuctl.inventory.delete import find_written
from tpuctl.inventory.reap import survey
from tpuctl.inventory.resources import Fate
from tpuctl.model.cloud import Listing, NodeState
from tpuctl.model.records import SliceState
from tpuctl.state.leases import acquire
from tpuctl.state.repository import get_slice, save
from tpuctl.views.decisions import decisions
from tpuctl.watch.reconciler import run_pass


@pytest.mark.parametrize("queued", [False, True], ids=["node", "queued"])
def test_an_earlier_life_whose_node_is_not_found_once_stays_for_another_pass(place, services, queued: bool):
    left_behind(place, services, queued)
    services.cloud = cloud = Hiding(services.cloud)
    # What is deleted is read by its name before its nodes are.
    [found] = [each.found for each in survey(services).of(Fate.DELETE)]
    cloud.hides = 1
    assert find_written(services, found) == ("unknown disks of node big-1, which is not shown",)
    assert find_written(services, found) == ("data",)
    if queued:
        cloud.hides = 1
        [line] = a_pass(place, cloud)
        assert (line.result, line.why) == (
            "waiting",
            "not deleted yet: node big-1 is not shown, and may be there",
        )
        assert standing(place) == ["big-1"]
        assert get_slice(services, "big").record.orphans == ()
    assert a_pass(place, cloud)[0].result == "done"


class Dark(Hiding):
    """And which cannot list its zone by itself."""

    def list_nodes(self, *zones: str) -> Any:
        return Listing((), frozenset({ZONE})) if zones == (ZONE,) else super().list_nodes(*zones)


def test_an_earlier_life_in_a_zone_that_cannot_be_read_is_not_taken_for_empty(place, services):
    left_behind(place, services, queued=True)
    cloud = Dark(services.cloud)
    cloud.hides = 1
    assert [line.result for line in a_pass(place, cloud)] == ["waiting"]
    assert standing(place) == ["big-1"]


class Young(Writable):
    """And whose nodes are still being made."""

    def find_node(self, zone: str, name: str) -> Any:
        node = super().find_node(zone, name)
        return None if node is None else replace(node, state=NodeState.CREATING, endpoints=())


def test_nobody_is_called_for_an_earlier_life_that_is_still_being_made_unless_it_never_ends(place, services):
    left_behind(place, services)
    cloud = Young(services.cloud)
    assert [line.result for line in a_pass(place, cloud)] == ["waiting"]
    assert get_slice(services, "big").record.orphans == ()
    assert "orphan" not in [row["action"] for row in decisions(services, "big")]
    place.clock.advance(7200.0)
    assert [line.result for line in a_pass(place, cloud)] == ["blocked"]
    assert "orphan" in [row["action"] for row in decisions(services, "big")]


class Meanwhile(Writable):
    """And where something happens while hosts are asked for their keys."""

    def __init__(self, real: Any, happens: Callable[[], None]) -> None:
        super().__init__(real)
        self._happens = happens

    def list_host_keys(self, zone: str, name: str) -> Any:
        self._happens()
        return self._real.list_host_keys(zone, name)


def test_what_another_works_on_when_hosts_have_proved_it_too_late_stays(place, services):
    left_behind(place, services)
    other = place.machine("other")

    def happens() -> None:
        place.clock.advance(61.0)
        acquire(other, "big")

    assert a_pass(place, Meanwhile(services.cloud, happens)) == []
    assert standing(place) == ["big-1"]


def test_what_is_wanted_again_when_hosts_have_proved_it_stays(place, services):
    left_behind(place, services)

    def happens() -> None:
        stored = get_slice(services, "big")
        life = replace(stored.record.incarnation, adopted_uid=services.cloud.find_node(ZONE, "big-1").uid)
        save(services, stored, replace(stored.record, incarnation=life, state=SliceState.READY))

    [line] = a_pass(place, Meanwhile(services.cloud, happens))[:1]
    assert (line.result, "wants it after all" in line.why) == ("blocked", True)
    assert standing(place) == ["big-1"]


def test_a_lease_that_was_renewed_is_free_after_the_pass(place, services):
    left_behind(place, services)
    assert [line.result for line in a_pass(place, services.cloud)] == ["done"]
    acquire(place.machine("other"), "big")


def test_what_is_left_to_a_person_is_said_once_although_its_record_changed_meanwhile(place, services):
    left_behind(place, services)
    watchdog = place.machine(reaches=lambda _: False)
    watchdog.cloud = services.cloud
    real = watchdog.store

    class Contended:
        """A store where another machine writes the slice first, once."""

        left = 1

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def put(self, key: str, data: Any, **more: Any) -> Any:
            if key == "slices/big" and self.left:
                self.left -= 1
                raise ConflictError("changed meanwhile")
            return real.put(key, data, **more)

    watchdog.store = Contended()
    for _ in range(2):
        place.clock.advance(60.0)
        run_pass(watchdog)
    assert watchdog.store.left == 0
    assert [row["action"] for row in decisions(services, "big")].count("orphan") == 1
    assert [each.name for each in get_slice(services, "big").record.orphans] == ["big-1"]
