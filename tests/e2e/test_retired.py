"""A name whose record was pruned comes back: it goes on counting, for the cloud, the hosts and the store."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.jobs import bring_up
from tests.support.services import sim_services
from tests.support.sim import running_sim
from tpuctl.model import timeouts
from tpuctl.runs.take_down import take_down
from tpuctl.state.gc import prune
from tpuctl.state.leases import take_lease
from tpuctl.state.repository import find_slice, get_slice


@pytest.fixture
def services(tmp_path):
    with running_sim(tmp_path) as sim, sim_services(sim, tmp_path / "state") as made:
        yield made


def retire_big(services: Any) -> None:
    prune(services.store, timeouts.PRUNE_AFTER_S)
    document = services.store.get("retired")
    resting = {"big": {**document.data["resting"]["big"], "since": 0.0}}
    services.store.put("retired", {**document.data, "resting": resting}, if_generation=document.generation)
    assert prune(services.store, timeouts.PRUNE_AFTER_S).slices == ("big",)
    assert find_slice(services, "big") is None


def test_numbers_go_on_after_a_record_was_pruned(services):
    bring_up(services, "big")
    with take_lease(services, "big") as held:
        fence = held.fence
    take_down(services, "big")
    retire_big(services)
    assert services.store.get("leases/big") is None

    bring_up(services, "big")
    record = get_slice(services, "big").record
    assert (record.incarnation.cloud_name, record.last_incarnation) == ("big-2", 2)
    with take_lease(services, "big") as held:
        assert held.fence > fence
    take_down(services, "big")
    retire_big(services)
    bring_up(services, "big")
    assert get_slice(services, "big").record.incarnation.cloud_name == "big-3"


def test_a_lease_that_is_held_outlives_the_record(services):
    bring_up(services, "big")
    take_down(services, "big")
    document = services.store.get("leases/big")
    held = {**document.data, "owner": "other/1", "expires": services.store.now() + 3600.0}
    services.store.put("leases/big", held, if_generation=document.generation)
    retire_big(services)
    assert services.store.get("leases/big").data["owner"] == "other/1"
    left = services.store.get("leases/big")
    services.store.put("leases/big", {**left.data, "owner": "", "fence": 99}, if_generation=left.generation)
    prune(services.store, timeouts.PRUNE_AFTER_S)
    assert services.store.get("leases/big") is None
    with take_lease(services, "big") as taken:
        assert taken.fence == 100
