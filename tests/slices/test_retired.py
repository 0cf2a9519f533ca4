"""A name that comes back goes on counting, for the cloud, the hosts and the store."""

from __future__ import annotations

from tests.support.jobs import bring_up
from tpuctl.model import timeouts
from tpuctl.runs.take_down import take_down
from tpuctl.state.gc import prune
from tpuctl.state.leases import take_lease
from tpuctl.state.repository import get_slice


def test_numbers_go_on_when_a_name_comes_back(services):
    bring_up(services, "big")
    with take_lease(services, "big") as before:
        pass
    take_down(services, "big")
    prune(services.store, timeouts.PRUNE_AFTER_S)
    bring_up(services, "big")
    assert get_slice(services, "big").record.incarnation.cloud_name == "big-2"
    with take_lease(services, "big") as held:
        assert held.fence > before.fence
