"""The whole project: who has what, what is unwanted, and that clean-up takes nothing else."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.jobs import bring_up
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.errors import QuotaError
from tpuctl.inventory.reap import caller_of, reap, survey
from tpuctl.inventory.resources import Fate
from tpuctl.model.cloud import OWNER_LABEL, STORE_LABEL, USER_LABEL, Tier
from tpuctl.money.quota_usage import holders, name_holders
from tpuctl.state.repository import get_slice, save
from tpuctl.views.slices import fleet_rows

ZONE = "us-central2-b"
PARENT = f"projects/sim-project/locations/{ZONE}"


def make_node(place: MemoryPlace, name: str, labels: dict[str, str], zone: str = ZONE) -> None:
    """A node that somebody made without this store."""
    wanted = "v4-8" if zone == ZONE else "v6e-8"
    node = {"acceleratorType": wanted, "runtimeVersion": "tpu-ubuntu2204-base", "labels": labels}
    parent = f"projects/sim-project/locations/{zone}"
    place.world.call("CreateNode", {"parent": parent, "nodeId": name, "node": node})
    place.clock.advance(600.0)


def labels_of(services: MemoryServices, name: str, **changes: str) -> dict[str, str]:
    ours = {
        OWNER_LABEL: name,
        "tpuctl-incarnation": "1",
        STORE_LABEL: services.store.identity(),
        USER_LABEL: services.user,
    }
    return {**ours, **{key.replace("_", "-"): value for key, value in changes.items()}}


def names(place: MemoryPlace) -> set[str]:
    return {node["name"].rsplit("/", 1)[-1] for node in place.world.snapshot()["nodes"]}


def deletions(place: MemoryPlace) -> list[str]:
    return [
        entry.resource.rsplit("/", 1)[-1]
        for entry in place.world.journal.entries()
        if entry.method.endswith(".delete")
    ]


def run_reap(services: MemoryServices, *, all_users: bool = False) -> dict[str, str]:
    found = survey(services, all_users=all_users)
    caller = caller_of(services, all_users=all_users)
    results = reap(services, found.of(Fate.DELETE), caller, deadline=services.clock.now() + 600)
    return {each.found.name: each.result for each in results}


@pytest.fixture
def crowd(place, services) -> None:
    """One wanted slice and one TPU of each kind that is not."""
    bring_up(services, "big")
    make_node(place, "lost-1", labels_of(services, "lost"))
    make_node(place, "theirs-1", labels_of(services, "theirs", tpuctl_user="bob"))
    make_node(place, "fleet-1", labels_of(services, "fleet", tpuctl_store="another"))
    make_node(place, "hand", {})
    make_node(place, "hand", {}, "us-east1-d")


def test_a_reap_takes_what_is_ours_and_unwanted_and_nothing_else(place, services, crowd):
    assert run_reap(services) == {"lost-1": "gone"}
    assert names(place) == {"big-1", "theirs-1", "fleet-1", "hand"}
    assert deletions(place) == ["lost-1"]
    assert run_reap(services) == {}
    entries = [document.data for document in services.store.list("journal/slices/lost/")]
    assert [(entry["action"], entry["user"]) for entry in entries] == [("reap", services.user)]
    assert run_reap(services, all_users=True) == {"theirs-1": "gone"}
    assert names(place) == {"big-1", "fleet-1", "hand"}


def test_nothing_is_deleted_where_a_zone_cannot_be_read_whole(place, services):
    make_node(place, "lost-1", labels_of(services, "lost"))
    place.world.faults.add({"kind": "unreachable", "zone": ZONE, "times": 0})
    found = survey(services)
    assert (found.judged, found.unread) == ((), (ZONE,))
    assert run_reap(services) == {}
    assert deletions(place) == []


def test_an_intent_that_comes_in_between_saves_it(place, services):
    bring_up(services, "big")
    stored = get_slice(services, "big")
    services.store.delete("slices/big", if_generation=stored.generation)
    doomed = survey(services).of(Fate.DELETE)
    assert [each.found.name for each in doomed] == ["big-1"]
    save(services, replace(stored, generation=0), stored.record)
    results = reap(services, doomed, caller_of(services, all_users=False), deadline=services.clock.now() + 600)
    assert [each.result for each in results] == ["kept"]
    assert names(place) == {"big-1"}


def test_a_deletion_that_fails_is_told_and_the_others_go_on(place, services):
    for name in ("a-1", "b-1"):
        make_node(place, name, labels_of(services, name[0]))
    place.world.faults.add(
        {"kind": "error", "method": "nodes.delete", "name": "a-1", "code": 7, "message": "no tpu.nodes.delete"}
    )
    assert run_reap(services) == {"a-1": "failed", "b-1": "gone"}
    assert run_reap(services) == {"a-1": "gone"}


def test_ls_shows_everybodys_with_their_user_and_what_is_unwanted(services, crowd):
    rows, unread = fleet_rows(services)
    assert unread == []
    shown = {
        (row["name"], row["zone"]): (row["state"], row["cloud"], row["user"], row["managed"]) for row in rows
    }
    assert shown == {
        ("big", ZONE): ("ready", "READY", services.user, True),
        ("lost-1", ZONE): ("unwanted", "READY", services.user, False),
        ("theirs-1", ZONE): ("unwanted", "READY", "bob", False),
        ("fleet-1", ZONE): ("other-fleet", "READY", services.user, False),
        ("hand", ZONE): ("unmanaged", "READY", "", False),
        ("hand", "us-east1-d"): ("unmanaged", "READY", "", False),
    }


def test_a_request_that_waits_is_listed_too(place, services):
    node = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    spec = {"parent": PARENT, "nodeId": "n", "node": node}
    place.world.faults.add({"preset": "queued-internal"})
    request = {"parent": PARENT, "queuedResourceId": "hand", "queuedResource": {"tpu": {"nodeSpec": [spec]}}}
    place.world.call("CreateQueuedResource", request)
    place.clock.advance(600.0)
    rows, _ = fleet_rows(services)
    assert [(row["name"], row["state"], row["cloud"]) for row in rows] == [("hand", "unmanaged", "FAILED")]


def test_a_slice_is_not_taken_for_one_of_the_same_name_elsewhere(place, services):
    bring_up(services, "big")
    make_node(place, "big-1", {}, "us-east1-d")
    rows, _ = fleet_rows(services)
    assert sorted((row["name"], row["zone"], row["state"]) for row in rows) == [
        ("big", ZONE, "ready"),
        ("big-1", "us-east1-d", "looks-like-ours"),
    ]


def test_a_quota_refusal_names_the_holders_of_that_pool(place, services):
    bring_up(services, "big")
    make_node(place, "theirs-1", labels_of(services, "theirs", tpuctl_user="bob"))
    make_node(place, "far-1", labels_of(services, "far"), "us-east1-d")
    spec = get_slice(services, "big").record.spec
    held = holders(services, spec)
    assert [(each.resource.user, each.resource.name, each.chips) for each in held] == [
        (services.user, "big-1", 8)
    ]
    on_demand = holders(services, replace(spec, tier=Tier.ON_DEMAND))
    assert [(each.resource.user, each.resource.name) for each in on_demand] == [("bob", "theirs-1")]
    error = name_holders(services, spec, QuotaError("quota used up", hint="ask"))
    assert f"{services.user} holds big-1 (v4-16, {ZONE}, READY)" in error.message
    assert error.details["holders"][0]["chips"] == 8
    message = r"holds big-1 \(v4-16, us-central2-b, READY\)"
    quota = "Quota 'TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI' exhausted. Limit 8 in region us-central2"
    place.world.faults.add({"kind": "error", "method": "queuedResources.create", "code": 8, "message": quota})
    with pytest.raises(QuotaError, match=message) as refused:
        bring_up(services, "more")
    assert "tpuctl down more" in str(refused.value.hint)
    place.world.faults.add({"kind": "error", "method": "nodes.list", "code": 7, "message": "denied"})
    assert name_holders(services, spec, QuotaError("quota used up")).message == "quota used up"
