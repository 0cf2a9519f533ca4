"""TPUs made by hand, or by a store that is lost, become slices; nothing but `down` takes the first away."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.inventory.test_census import ZONE, deletions, make_node, names
from tests.support.jobs import bring_up
from tests.support.memory.services import MemoryPlace, MemoryServices
from tests.support.memory.store import MemoryServer, MemoryStore
from tpuctl.errors import ConflictError, DeniedError, NotCoveredError, NotFoundError, UsageError
from tpuctl.inventory.reap import survey
from tpuctl.inventory.resources import Fate
from tpuctl.model.cloud import INCARNATION_LABEL, OWNER_LABEL, STORE_LABEL, USER_LABEL, NodeInfo, Tier
from tpuctl.model.records import SliceRecord, SliceState
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.model.slice_spec import SliceOptions
from tpuctl.model.verdict import Blocked
from tpuctl.money.coverage import keep_grant
from tpuctl.money.grants import Grant
from tpuctl.runs.take_down import take_down
from tpuctl.slices.adopt import adopt, find_candidate
from tpuctl.slices.reconcile import advance_slice, wait_for_slice
from tpuctl.state.repository import get_slice
from tpuctl.watch.reconciler import run_pass
from tpuctl.workers.exec import execute

PARENT = f"projects/sim-project/locations/{ZONE}"


def take_over(
    services: MemoryServices, node: str, name: str | None = None, *, add_key: bool = False
) -> SliceRecord:
    found = find_candidate(services, node, None, name)
    record = adopt(services, load_accelerators(), found, login_user="tpuctl", add_key=add_key, pay=True)
    return wait_for_slice(services, record.name, deadline=services.clock.now() + 3600)


def make_with_key(place: MemoryPlace, services: MemoryServices, name: str) -> None:
    node = {
        "acceleratorType": "v4-8",
        "runtimeVersion": "tpu-ubuntu2204-base",
        "labels": {"team": "a"},
        "metadata": {"ssh-keys": f"tpuctl:{services.public_key}", "mine": "kept"},
        "networkConfig": {"enableExternalIps": True},
    }
    place.world.call("CreateNode", {"parent": PARENT, "nodeId": name, "node": node})
    place.clock.advance(600.0)


def shown(services: MemoryServices, name: str):
    node = services.cloud.find_node(ZONE, name)
    assert node is not None
    return node


def test_a_node_made_by_hand_becomes_a_slice_that_runs_commands(place, services):
    make_with_key(place, services, "hand")
    record = take_over(services, "hand")
    assert (record.name, record.state) == ("hand", SliceState.READY)
    results = execute(services, record, ["hostname"])
    assert [result.exit_status for result in results] == [0]
    place.clock.advance(60.0)
    labels = dict(shown(services, "hand").labels)
    store = services.store.identity()
    ours = {OWNER_LABEL: "hand", INCARNATION_LABEL: "1", STORE_LABEL: store, USER_LABEL: services.user}
    assert labels == {"team": "a", **ours}
    assert shown(services, "hand").metadata["mine"] == "kept"
    entries = [document.data for document in services.store.list("journal/slices/hand/")]
    assert shown(services, "hand").uid in str(entries[0]["reason"])


def test_a_node_that_does_not_let_us_in_is_left_as_it_was_unless_the_key_is_added(place, services):
    make_node(place, "hand", {})
    with pytest.raises(DeniedError, match="cannot log in to hand as tpuctl") as refused:
        take_over(services, "hand")
    assert "--add-key" in str(refused.value.hint)
    assert services.store.get("slices/hand") is None
    assert dict(shown(services, "hand").labels) == {}
    assert take_over(services, "hand", add_key=True).state is SliceState.READY


def test_one_made_by_hand_is_deleted_by_nothing_but_down(place, services):
    make_with_key(place, services, "hand")
    take_over(services, "hand")
    before = deletions(place)
    place.world.preempt("hand")
    place.clock.advance(600.0)
    for _ in range(4):
        run_pass(services)
    assert survey(services, all_users=True).of(Fate.DELETE) == []
    assert deletions(place) == before
    outcome, _ = advance_slice(services, "hand")
    assert isinstance(outcome.verdict, Blocked)
    assert "tpuctl down hand" in str(outcome.verdict.hint)
    take_down(services, "hand")
    assert names(place) == set()


def test_after_the_loss_of_the_store_numbers_go_on_and_recovery_too(place, services):
    bring_up(services, "big", **OPTIONS)
    place.world.preempt("big-1")
    place.clock.advance(600.0)
    bring_up(services, "big", **OPTIONS)
    assert get_slice(services, "big").record.last_incarnation == 2
    key = services.public_key
    fresh = place.machine("desktop")
    fresh.store = MemoryStore(MemoryServer(fresh.clock))
    assert fresh.store.identity() != services.store.identity()
    assert [each.fate for each in survey(fresh).judged] == [Fate.OTHER_FLEET]
    assert fresh.public_key != key
    record = take_over(fresh, "big-2", add_key=True)
    assert record.spec == get_slice(services, "big").record.spec
    before = asked_with(shown(fresh, "big-2"))
    assert (record.name, record.last_incarnation, record.state) == ("big", 2, SliceState.READY)
    place.world.preempt("big-2")
    place.clock.advance(600.0)
    renewed = wait_for_slice(fresh, "big", deadline=fresh.clock.now() + 3600)
    assert renewed.incarnation is not None
    assert renewed.incarnation.cloud_name == "big-3"
    assert asked_with(shown(fresh, "big-3")) == before


OPTIONS: dict[str, Any] = {
    "network": "projects/shared/global/networks/other",
    "subnetwork": "projects/shared/regions/us-central2/subnetworks/inner",
    "service_account": "trainer@sim-project.iam.gserviceaccount.com",
    "metadata": {"mine": "kept"},
    "description": "Ablation",
    "tags": ("training",),
    "labels": {"team": "a"},
}


def asked_with(node: NodeInfo) -> tuple[SliceOptions, tuple[str, ...], str]:
    return replace(node.options, metadata={"mine": node.metadata["mine"]}), node.tags, node.labels["team"]


def test_nothing_is_adopted_that_nobody_agreed_to_pay_for(place, services):
    make_with_key(place, services, "hand")
    found = find_candidate(services, "hand", None, None)
    catalog = load_accelerators()
    with pytest.raises(NotCoveredError, match=r"about .* per hour") as refused:
        adopt(services, catalog, found, login_user="tpuctl", add_key=False, pay=False)
    assert "--pay" in str(refused.value.hint)
    assert services.store.get("slices/hand") is None
    grant = Grant(ZONE, Tier.ON_DEMAND, "v4", 4)
    keep_grant(services, grant)
    record = adopt(services, catalog, found, login_user="tpuctl", add_key=False, pay=False)
    assert not record.pay, "an ended grant ends it, too"


def test_what_cannot_be_adopted_is_refused_with_the_reason(place, services):
    with pytest.raises(NotFoundError):
        find_candidate(services, "none", None, None)
    make_node(place, "hand", {})
    make_node(place, "hand", {}, "us-east1-d")
    with pytest.raises(UsageError, match="is the name of 2 nodes") as several:
        find_candidate(services, "hand", None, None)
    assert "us-east1-d" in str(several.value.hint)
    assert find_candidate(services, "hand", ZONE, None).node.zone == ZONE
    fault = {"kind": "unreachable", "zone": "us-east5-a", "times": 0}
    planned = place.world.faults.add(fault)
    with pytest.raises(ConflictError, match="could not be read"):
        find_candidate(services, "hand", None, None)
    place.world.faults.remove(planned.id)
    bring_up(services, "big")
    found = find_candidate(services, "hand", ZONE, "big")
    with pytest.raises(ConflictError, match="another slice called big"):
        adopt(services, load_accelerators(), found, login_user="tpuctl", add_key=False, pay=True)
    assert deletions(place) == []
