"""A name that comes back goes on counting, for the cloud, the hosts and the store, also where an older tpuctl
removed its record."""

from __future__ import annotations

import pytest

from tests.support.jobs import bring_up
from tests.support.services import sim_services
from tests.support.sim import running_sim
from tpuctl.model import timeouts
from tpuctl.runs.take_down import take_down
from tpuctl.state.gc import prune
from tpuctl.state.leases import take_lease
from tpuctl.state.repository import get_slice


@pytest.fixture
def services(tmp_path):
    with running_sim(tmp_path) as sim, sim_services(sim, tmp_path / "state") as made:
        yield made


def test_numbers_go_on_whether_the_record_stayed_or_not(services):
    bring_up(services, "big")
    with take_lease(services, "big") as held:
        fence = held.fence
    take_down(services, "big")
    prune(services.store, timeouts.PRUNE_AFTER_S)
    bring_up(services, "big")
    assert get_slice(services, "big").record.incarnation.cloud_name == "big-2"
    take_down(services, "big")

    for key in ("slices/big", "leases/big"):
        services.store.delete(key, if_generation=services.store.get(key).generation)
    numbers = {"big": {"incarnation": 6, "fence": fence + 60}}
    services.store.put("retired", {"numbers": numbers, "resting": {}}, if_generation=0)
    bring_up(services, "big")
    record = get_slice(services, "big").record
    assert (record.incarnation.cloud_name, record.last_incarnation) == ("big-7", 7)
    with take_lease(services, "big") as held:
        assert held.fence > fence + 60
