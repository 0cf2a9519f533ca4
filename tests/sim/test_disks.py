"""Disks of the simulator: what Compute Engine and the TPU API take, refuse and show."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.test_compute import BASE, DISKS, ZONE, Lab
from tests.sim.test_tpu import VERSION
from tpuctl.errors import TpuctlError
from tpuctl.sim.wire.status import ApiError

PARENT = f"projects/sim-project/locations/{ZONE}"
OTHER_ZONE = "us-central1-a"
MINUTE = 60.0


@pytest.fixture
def lab() -> Lab:
    return Lab(
        compute_operation=0.0,
        disk_copy=0.0,
        node_create=0.0,
        node_delete=0.0,
        node_patch=0.0,
        host_accounts=0.0,
    )


def shown(lab: Lab, name: str) -> Any:
    return lab.get(f"{DISKS}/{name}")


def type_of(kind: str, zone: str = ZONE) -> str:
    return f"zones/{zone}/diskTypes/{kind}"


def path_of(name: str, zone: str = ZONE) -> str:
    return f"projects/sim-project/zones/{zone}/disks/{name}"


def node(lab: Lab, name: str, kind: str = "v4-8", *disks: Any, zone: str = ZONE, version: str = "v2") -> Any:
    spec = {"acceleratorType": kind, "runtimeVersion": VERSION, "dataDisks": list(disks)}
    parent = f"projects/sim-project/locations/{zone}"
    return lab.world.call("CreateNode", {"parent": parent, "nodeId": name, "node": spec}, version)


def attach(lab: Lab, name: str, *disks: Any, version: str = "v2", zone: str = ZONE) -> Any:
    full = f"projects/sim-project/locations/{zone}/nodes/{name}"
    request = {"node": {"name": full, "dataDisks": list(disks)}, "updateMask": "data_disks"}
    operation = lab.world.call("UpdateNode", request, version)
    return lab.world.call("GetOperation", {"name": operation["name"]})


def ro(name: str, **more: Any) -> Any:
    return {"sourceDisk": path_of(name), "mode": "READ_ONLY", **more}


def rw(name: str, **more: Any) -> Any:
    return {"sourceDisk": path_of(name), "mode": "READ_WRITE", **more}


def refused(call: Any) -> str:
    with pytest.raises(ApiError) as caught:
        call()
    return f"{caught.value.code.name}: {caught.value.message}"


# Compute Engine.


def test_a_copy_is_as_large_as_its_source_and_names_it(lab: Lab) -> None:
    lab.disk("one", sizeGb="20", type=f"zones/{ZONE}/diskTypes/pd-balanced")
    assert lab.call("POST", f"{DISKS}/one/createSnapshot", {"name": "s"})[0] == 200
    assert lab.call("POST", DISKS, {"name": "clone", "sourceDisk": path_of("one")})[0] == 200
    assert lab.call("POST", DISKS, {"name": "restored", "sourceSnapshot": "global/snapshots/s"})[0] == 200
    one, clone, restored = (shown(lab, each) for each in ("one", "clone", "restored"))
    assert (clone["sizeGb"], clone["sourceDisk"], clone["sourceDiskId"]) == ("20", one["selfLink"], one["id"])
    assert clone["type"].endswith("/pd-balanced")
    snapshot = lab.get("/global/snapshots/s")
    assert (restored["sizeGb"], restored["sourceSnapshotId"]) == ("20", snapshot["id"])
    assert restored["sourceSnapshot"] == f"{BASE}/global/snapshots/s"


def test_copies_take_their_time_and_say_what_they_do() -> None:
    lab = Lab(compute_operation=2.0, disk_copy=10.0)
    lab.disk("one")
    lab.clock.advance(3)
    lab.call("POST", f"{DISKS}/one/createSnapshot", {"name": "s"})
    lab.call("POST", DISKS, {"name": "clone", "sourceDisk": path_of("one")})
    seen = [(lab.get("/global/snapshots/s")["status"], shown(lab, "clone")["status"])]
    refusal = lab.call("POST", DISKS, {"name": "early", "sourceSnapshot": "global/snapshots/s"})
    for seconds in (7, 6):
        lab.clock.advance(seconds)
        seen.append((lab.get("/global/snapshots/s")["status"], shown(lab, "clone")["status"]))
    assert seen == [("CREATING", "RESTORING"), ("UPLOADING", "RESTORING"), ("READY", "READY")]
    assert refusal[0] == 400
    assert refusal[1]["error"]["errors"][0]["reason"] == "resourceNotReady"


def failing_copy(*_: object) -> None:
    raise TpuctlError("the disk was written to all the time")


@pytest.mark.parametrize("begins_s", [0.0, 150.0])
def test_a_copy_that_cannot_be_taken_fails_its_operation_and_leaves_nothing(begins_s: float) -> None:
    lab = Lab(compute_operation=2.0, disk_copy=10.0, copy_begins=begins_s)
    lab.disk("one")
    lab.clock.advance(3)
    lab.world.hosts.write_disk = failing_copy  # type: ignore[method-assign]
    asked = [
        lab.call("POST", f"{DISKS}/one/createSnapshot", {"name": "s"})[1],
        lab.call("POST", DISKS, {"name": "clone", "sourceDisk": path_of("one")})[1],
    ]
    assert [each["status"] for each in asked] == ["RUNNING", "RUNNING"]
    lab.clock.advance(begins_s + 20)
    for each in asked:
        ended = lab.get(f"/zones/{ZONE}/operations/{each['name']}")
        assert (ended["status"], ended["error"]["errors"][0]["code"]) == ("DONE", "INTERNAL_ERROR")
    assert lab.names("/global/snapshots") == []
    assert lab.names(DISKS) == ["one"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"sourceDisk": path_of("none")}, "The referenced disk resource cannot be found."),
        ({"sourceSnapshot": "global/snapshots/none"}, "The referenced snapshot resource cannot be found."),
        ({"sourceDisk": path_of("one"), "sizeGb": "10"}, "cannot be smaller than the disk size (20 GB)"),
        ({"sourceSnapshot": "global/snapshots/s", "sizeGb": "10"}, "cannot be smaller than the snapshot size"),
        ({"type": "pd-balanced"}, "The URL is malformed."),
        ({"type": type_of("pd-balanced", OTHER_ZONE)}, "must be in the zone of the disk"),
        ({"sourceDisk": path_of("one"), "sourceSnapshot": "global/snapshots/none"}, "a disk has one source"),
        ({"sourceDisk": path_of("one"), "type": type_of("pd-ssd")}, "type must be that of the source disk"),
        ({"sourceDisk": path_of("far", OTHER_ZONE)}, "must be in the same zone"),
        ({"accessMode": "READ_WRITE_SINGLE", "type": type_of("pd-ssd")}, "only valid for Hyperdisk"),
        (
            {"type": type_of("hyperdisk-balanced"), "accessMode": "READ_ONLY_MANY"},
            "not supported for hyperdisk-balanced",
        ),
        (
            {"type": type_of("hyperdisk-ml"), "sourceSnapshot": "global/snapshots/s"},
            "must have the access mode READ_ONLY",
        ),
        ({"type": type_of("hyperdisk-ml"), "provisionedThroughput": "300"}, "must be between 400"),
        ({"type": type_of("hyperdisk-ml"), "provisionedIops": "300"}, "cannot be set"),
        ({"type": type_of("pd-balanced"), "provisionedThroughput": "300"}, "not supported for pd-balanced"),
    ],
)
def test_disks_that_cannot_be_are_refused(lab: Lab, body: Any, text: str) -> None:
    lab.disk("one", sizeGb="20")
    lab.call("POST", f"/zones/{OTHER_ZONE}/disks", {"name": "far", "sizeGb": "10"})
    lab.call("POST", f"{DISKS}/one/createSnapshot", {"name": "s"})
    status, answer = lab.call("POST", DISKS, {"name": "new", **body})
    assert (status, text in answer["error"]["message"]) == (400, True), answer
    assert lab.names(DISKS) == ["one"]


def test_hyperdisk_ml_gets_the_throughput_that_costs_most_unless_it_is_told(lab: Lab) -> None:
    lab.disk("dear", type=type_of("hyperdisk-ml"), sizeGb="1024")
    lab.disk("cheap", type=type_of("hyperdisk-ml"), sizeGb="1024", provisionedThroughput="400")
    assert shown(lab, "dear")["provisionedThroughput"] == str(24 * 1024)
    assert shown(lab, "cheap")["provisionedThroughput"] == "400"
    assert shown(lab, "dear")["accessMode"] == "READ_WRITE_SINGLE"


def test_a_disk_is_copied_six_times_an_hour(lab: Lab) -> None:
    lab.disk("one")
    errors = []
    for number in range(8):
        _, begun = lab.call("POST", f"{DISKS}/one/createSnapshot", {"name": f"s-{number}"})
        errors.append(lab.get(f"/zones/{ZONE}/operations/{begun['name']}").get("error"))
    assert errors[:6] == [None] * 6
    assert {each["errors"][0]["code"] for each in errors[6:]} == {"RESOURCE_OPERATION_RATE_EXCEEDED"}
    assert len(lab.names("/global/snapshots")) == 6
    lab.clock.advance(61 * MINUTE)
    assert lab.call("POST", f"{DISKS}/one/createSnapshot", {"name": "later"})[1].get("error") is None


def test_disks_grow_and_never_shrink(lab: Lab) -> None:
    lab.disk("one", sizeGb="20")
    assert lab.call("POST", f"{DISKS}/one/resize", {"sizeGb": "30"})[1]["operationType"] == "resizeDisk"
    assert shown(lab, "one")["sizeGb"] == "30"
    for size in ("30", "10", "99999999"):
        assert lab.call("POST", f"{DISKS}/one/resize", {"sizeGb": size})[0] == 400
    assert lab.call("POST", f"{DISKS}/none/resize", {"sizeGb": "30"})[0] == 404


@pytest.mark.parametrize("place", [f"{DISKS}/one", "/global/snapshots/s"])
def test_labels_are_changed_by_who_has_seen_them(lab: Lab, place: str) -> None:
    lab.disk("one", labels={"a": "b"})
    lab.call("POST", f"{DISKS}/one/createSnapshot", {"name": "s", "labels": {"a": "b"}})
    before = lab.get(place)["labelFingerprint"]
    change = {"labels": {"c": "d"}, "labelFingerprint": before}
    assert lab.call("POST", f"{place}/setLabels", change)[0] == 200
    assert lab.get(place)["labels"] == {"c": "d"}
    status, answer = lab.call("POST", f"{place}/setLabels", change)
    assert (status, answer["error"]["errors"][0]["reason"]) == (412, "conditionNotMet")


def test_access_modes_go_one_way_and_while_nobody_uses_the_disk(lab: Lab) -> None:
    zone = "us-east5-a"
    disks = f"/zones/{zone}/disks"
    lab.call("POST", disks, {"name": "ml", "type": type_of("hyperdisk-ml", zone), "sizeGb": "10"})
    disk = f"projects/sim-project/zones/{zone}/disks/ml"
    node(lab, "dev", "v6e-8", {"sourceDisk": disk, "mode": "READ_WRITE"}, zone=zone)
    change = ("PATCH", f"{disks}/ml", {"name": "ml", "accessMode": "READ_ONLY_MANY"})
    status, answer = lab.call(*change, paths="accessMode")
    assert (status, "must be detached" in answer["error"]["message"]) == (400, True)
    attach(lab, "dev", zone=zone)
    assert lab.call(*change, paths="accessMode")[0] == 200
    assert lab.get(f"{disks}/ml")["accessMode"] == "READ_ONLY_MANY"
    back = {"name": "ml", "accessMode": "READ_WRITE_SINGLE"}
    assert lab.call("PATCH", f"{disks}/ml", back, paths="accessMode")[0] == 400
    text = refused(lambda: attach(lab, "dev", {"sourceDisk": disk, "mode": "READ_WRITE"}, zone=zone))
    assert "READ_ONLY_MANY" in text


# Attachment.


def test_a_disk_that_nodes_have_shows_their_machines_and_cannot_be_deleted(lab: Lab) -> None:
    lab.disk("one")
    node(lab, "big", "v4-16", ro("one"))
    found = shown(lab, "one")
    assert [each.rsplit("/", 1)[-1] for each in found["users"]] == ["big-w-0", "big-w-1"]
    assert found["lastAttachTimestamp"]
    status, answer = lab.call("DELETE", f"{DISKS}/one")
    assert (status, answer["error"]["errors"][0]["reason"]) == (400, "resourceInUseByAnotherResource")
    lab.world.call("DeleteNode", {"name": f"{PARENT}/nodes/big"})
    assert "users" not in shown(lab, "one")
    assert shown(lab, "one")["lastDetachTimestamp"]
    assert lab.call("DELETE", f"{DISKS}/one")[0] == 200


@pytest.mark.parametrize(
    ("disks", "text"),
    [
        (
            [ro("none")],
            "NOT_FOUND: The resource 'projects/sim-project/zones/us-central2-b/disks/none' was not found",
        ),
        ([{"sourceDisk": "one"}], "INVALID_ARGUMENT: Invalid source disk"),
        ([{"sourceDisk": path_of("far", OTHER_ZONE)}], "is not in zone"),
        ([ro("one"), ro("one")], "attached twice"),
        ([rw("one")], "read-write mode to more than one worker"),
        ([ro("dear")], "hyperdisk-balanced disk type cannot be attached in read-only mode."),
        ([ro("wrong")], "[hyperdisk-ml] features and"),
        ([ro("one")] * 128, "Maximum disks count"),
    ],
)
def test_lists_that_cannot_be_are_refused_and_change_nothing(lab: Lab, disks: Any, text: str) -> None:
    lab.disk("one")
    lab.disk("dear", type=type_of("hyperdisk-balanced"))
    lab.disk("wrong", type=type_of("hyperdisk-ml"))
    lab.call("POST", f"/zones/{OTHER_ZONE}/disks", {"name": "far"})
    node(lab, "big", "v4-16")
    before = lab.world.digest()
    assert text in refused(lambda: attach(lab, "big", *disks))
    assert text in refused(lambda: node(lab, "more", "v4-16", *disks))
    assert lab.world.digest() == before


def test_who_writes_shares_with_nobody(lab: Lab) -> None:
    lab.disk("one")
    node(lab, "dev", "v4-8", rw("one"))
    node(lab, "other", "v4-8")
    for wanted in (ro("one"), rw("one")):
        text = refused(lambda wanted=wanted: attach(lab, "other", wanted))
        assert f"'{path_of('one')}' is already being used by" in text
        assert "instances/dev-w-0" in text
    attach(lab, "dev")
    assert attach(lab, "dev", ro("one"))["response"]["dataDisks"] == [ro("one")]
    assert attach(lab, "other", ro("one"))["done"]
    assert "already being used" in refused(lambda: node(lab, "third", "v4-8", rw("one")))


def test_a_mode_is_changed_by_detaching_first(lab: Lab) -> None:
    lab.disk("one")
    node(lab, "dev", "v4-8", rw("one"))
    assert "already attached with mode READ_WRITE" in refused(lambda: attach(lab, "dev", ro("one")))


def test_the_whole_list_is_replaced(lab: Lab) -> None:
    for name in ("one", "two"):
        lab.disk(name)
    node(lab, "big", "v4-16", ro("one"))
    assert attach(lab, "big", ro("two"))["response"]["dataDisks"] == [ro("two")]
    assert "users" not in shown(lab, "one")
    assert "dataDisks" not in attach(lab, "big")["response"]


def test_one_worker_of_many_can_write_by_the_alpha_version(lab: Lab) -> None:
    lab.disk("one")
    node(lab, "big", "v4-16")
    attach(lab, "big", rw("one", workerIds=["1"]), version="v2alpha1")
    assert [each.rsplit("/", 1)[-1] for each in shown(lab, "one")["users"]] == ["big-w-1"]
    assert "workerIds" not in lab.world.call("GetNode", {"name": f"{PARENT}/nodes/big"})["dataDisks"][0]


def test_a_disk_that_went_to_somebody_else_meanwhile_fails_the_operation() -> None:
    lab = Lab(compute_operation=0.0, node_create=0.0, node_patch=40.0, host_accounts=0.0)
    lab.disk("one")
    for name in ("dev", "other"):
        node(lab, name)
    first, second = ({"name": attach(lab, name, rw("one"))["name"]} for name in ("dev", "other"))
    lab.clock.advance(41)
    assert lab.world.call("GetOperation", first)["done"]
    assert "already being used" in lab.world.call("GetOperation", second)["error"]["message"]


def test_a_queued_request_whose_disk_is_in_use_fails(lab: Lab) -> None:
    lab.disk("one")
    node(lab, "dev", "v4-8", rw("one"))
    spec = {"acceleratorType": "v4-8", "runtimeVersion": VERSION, "dataDisks": [rw("one")]}
    body = {"tpu": {"nodeSpec": [{"nodeId": "q", "parent": PARENT, "node": spec}]}}
    request = {"parent": PARENT, "queuedResourceId": "q", "queuedResource": body}
    lab.world.call("CreateQueuedResource", request)
    lab.clock.advance(600)
    state = lab.world.call("GetQueuedResource", {"name": f"{PARENT}/queuedResources/q"})["state"]
    assert state["state"] == "FAILED"
    assert "already being used" in str(state)


def test_the_metadata_server_names_the_disks(lab: Lab) -> None:
    for name in ("one", "two"):
        lab.disk(name)
    node(lab, "big", "v4-16", ro("one"), ro("two"))
    (specs,) = lab.world.hosts.specs.values()  # type: ignore[attr-defined]
    told = specs[0].metadata()
    assert told["instance/disks/0/device-name"] == "persistent-disk-0"
    assert (told["instance/disks/2/device-name"], told["instance/disks/2/mode"]) == (
        "persistent-disk-2",
        "READ_ONLY",
    )
    attach(lab, "big", ro("two"))
    assert specs[0].metadata()["instance/disks/1/device-name"] == "persistent-disk-2"


# Quotas.


def region_quota(lab: Lab, metric: str, region: str = "us-central2") -> tuple[float, float]:
    rows = lab.get(f"/regions/{region}")["quotas"]
    [row] = [each for each in rows if each["metric"] == metric]
    return row["limit"], row["usage"]


def failed_with(lab: Lab, answer: Any) -> str:
    """The error of an operation, its code first."""
    status, body = answer
    assert status == 200, body
    scope = f"zones/{ZONE}" if "zone" in body else "global"
    [error] = lab.get(f"/{scope}/operations/{body['name']}")["error"]["errors"]
    return f"{error['code']}: {error['message']}"


def test_gigabytes_of_disks_are_limited_by_region_and_kind(lab: Lab) -> None:
    lab.world.set_quotas({"SSD_TOTAL_GB/us-central2": 50})
    lab.disk("one", sizeGb="30", type=f"zones/{ZONE}/diskTypes/pd-balanced")
    lab.disk("slow", sizeGb="500")
    assert region_quota(lab, "SSD_TOTAL_GB") == (50.0, 30.0)
    assert region_quota(lab, "SSD_TOTAL_GB", "us-central1")[1] == 0.0
    assert region_quota(lab, "DISKS_TOTAL_GB")[1] == 500.0
    refusal = "QUOTA_EXCEEDED: Quota 'SSD_TOTAL_GB' exceeded.  Limit: 50.0 in region us-central2."
    two = {"name": "two", "sizeGb": "21", "type": f"zones/{ZONE}/diskTypes/pd-ssd"}
    assert failed_with(lab, lab.call("POST", DISKS, two)) == refusal
    assert lab.call("GET", f"{DISKS}/two")[0] == 404
    assert failed_with(lab, lab.call("POST", f"{DISKS}/one/resize", {"sizeGb": "51"})) == refusal
    assert shown(lab, "one")["sizeGb"] == "30"
    lab.call("DELETE", f"{DISKS}/one")
    assert region_quota(lab, "SSD_TOTAL_GB") == (50.0, 0.0)
    lab.disk("two", sizeGb="21", type=f"zones/{ZONE}/diskTypes/pd-ssd")


def test_snapshots_are_counted_for_the_project(lab: Lab) -> None:
    lab.world.set_quotas({"SNAPSHOTS": 1})
    lab.disk("one", sizeGb="10")
    assert lab.call("POST", f"{DISKS}/one/createSnapshot", {"name": "s"})[0] == 200
    [row] = [each for each in lab.get("")["quotas"] if each["metric"] == "SNAPSHOTS"]
    assert (row["limit"], row["usage"]) == (1.0, 1.0)
    answer = lab.call("POST", f"{DISKS}/one/createSnapshot", {"name": "t"})
    assert failed_with(lab, answer) == "QUOTA_EXCEEDED: Quota 'SNAPSHOTS' exceeded.  Limit: 1.0 globally."
