"""A quota that refuses after the create was taken names its holders like one that refuses at once."""

from __future__ import annotations

import pytest

from tests.support.jobs import bring_up
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.errors import QuotaError
from tpuctl.model.records import SliceState
from tpuctl.state.repository import get_slice
from tpuctl.views.decisions import decisions
from tpuctl.watch.reconciler import run_pass

QUOTA = "Quota 'TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI' exhausted. Limit 8 in region us-central2"
HELD = "bob holds theirs-1 (v4-16, us-central2-b, READY)"
LATE = {
    "in the operation": (False, {"kind": "error", "method": "nodes.create", "in_operation": True}),
    "in the queued resource": (True, {"kind": "queued-failure", "method": "queuedResources.create"}),
    "at once": (False, {"kind": "error", "method": "nodes.create"}),
}


@pytest.fixture
def services(place: MemoryPlace) -> MemoryServices:
    bob = place.machine("bobs")
    bob.user = "bob"
    bring_up(bob, "theirs", queued=False)
    return place.machine()


@pytest.mark.parametrize("when", LATE)
def test_whoever_waits_is_told_who_holds_the_quota(place, services, when):
    queued, fault = LATE[when]
    place.world.faults.add({**fault, "code": 8, "message": QUOTA})
    with pytest.raises(QuotaError) as refused:
        bring_up(services, "big", queued=queued)
    assert QUOTA in refused.value.message
    assert HELD in refused.value.message
    assert refused.value.details["holders"][0]["user"] == "bob"
    assert "tpuctl down big" in str(refused.value.hint)
    told = [row["reason"] for row in decisions(services, "big") if row["action"] == "create-failed"]
    assert len(told) == 1
    assert HELD in told[0]
    for _ in range(20):
        place.clock.advance(60.0)
        run_pass(services)
    assert get_slice(services, "big").record.state is SliceState.READY


def test_a_watchdog_writes_down_who_holds_it(place, services):
    bring_up(services, "big", queued=False)
    place.world.faults.add(
        {**LATE["in the operation"][1], "code": 8, "message": QUOTA, "name": "big-*", "times": 0}
    )
    place.world.preempt("big-1")
    for _ in range(20):
        place.clock.advance(60.0)
        run_pass(services)
    record = get_slice(services, "big").record
    assert record.loss is not None
    assert HELD in record.loss.detail
    notes = [str(document.data) for document in services.store.list("capacity/")]
    assert any(QUOTA in note or "exhausted" in note for note in notes)
    assert not any("bob" in note for note in notes)


def test_a_stockout_names_nobody(place, services):
    place.world.faults.add({"preset": "stockout"})
    bring_up(services, "big", queued=False)
    told = [row["reason"] for row in decisions(services, "big") if row["action"] == "create-failed"]
    assert len(told) == 1
    assert "holds" not in told[0]
