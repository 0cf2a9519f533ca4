"""What a project holds besides TPUs, read by the real adapter from the simulated cloud."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.oauth2.credentials import Credentials

from tests.support.services import SimServices, sim_services
from tests.support.sim import RunningSim, running_sim
from tpuctl.cloud.disks import GoogleInventory
from tpuctl.cloud.rest import RestClient
from tpuctl.errors import DeniedError
from tpuctl.model.cloud import BESIDE_TPUS, ResourceKind
from tpuctl.model.shipped_files import load_accelerators, load_other_prices
from tpuctl.money.bill_report import bill_data, bill_of

ZONE = "us-central2-b"
ROOT = "/compute/v1/projects/sim-project"


@pytest.fixture
def sim(tmp_path) -> Iterator[RunningSim]:
    with running_sim(tmp_path) as running:
        yield running


@pytest.fixture
def rest(sim) -> RestClient:
    return RestClient(sim.endpoint, Credentials(token=sim.token))


@pytest.fixture
def inventory(sim) -> GoogleInventory:
    return GoogleInventory("sim-project", sim.endpoint, sim.endpoint, Credentials(token=sim.token))


@pytest.fixture
def services(sim, tmp_path) -> Iterator[SimServices]:
    with sim_services(sim, tmp_path / "state") as made:
        yield made


def make_disk(rest: RestClient, name: str, zone: str = ZONE, **fields: object) -> None:
    body = {"name": name, "sizeGb": "200", "type": f"zones/{zone}/diskTypes/pd-balanced", **fields}
    rest.change("POST", f"{ROOT}/zones/{zone}/disks", "make a disk", body)


def test_disks_of_all_zones_are_listed_and_gone_when_deleted(rest, inventory):
    make_disk(rest, "one", labels={"tpuctl-user": "ada"})
    make_disk(rest, "two", "us-east1-d")
    found = inventory.list_assets(ResourceKind.DISK)
    assert {(disk.name, disk.location, disk.type, disk.size_gib) for disk in found.items} == {
        ("one", ZONE, "pd-balanced", 200.0),
        ("two", "us-east1-d", "pd-balanced", 200.0),
    }
    assert found.unreachable == frozenset()
    assert next(disk for disk in found.items if disk.name == "one").labels == {"tpuctl-user": "ada"}
    rest.change("DELETE", f"{ROOT}/zones/{ZONE}/disks/one", "delete a disk")
    assert [disk.name for disk in inventory.list_assets(ResourceKind.DISK).items] == ["two"]


def test_a_zone_that_cannot_be_read_is_named_and_not_empty(sim, rest, inventory):
    make_disk(rest, "one")
    make_disk(rest, "two", "us-east1-d")
    sim.fault(kind="unreachable", zone=ZONE, times=0)
    found = inventory.list_assets(ResourceKind.DISK)
    assert [disk.name for disk in found.items] == ["two"]
    assert found.unreachable == frozenset({ZONE})


def test_snapshots_addresses_and_images_are_listed(rest, inventory):
    make_disk(rest, "one")
    source = {"sourceDisk": f"projects/sim-project/zones/{ZONE}/disks/one"}
    rest.change("POST", f"{ROOT}/global/snapshots", "make", {"name": "s", **source})
    rest.change("POST", f"{ROOT}/global/images", "make", {"name": "i", **source})
    rest.change("POST", f"{ROOT}/regions/us-central2/addresses", "make", {"name": "a"})
    rest.change("POST", f"{ROOT}/global/addresses", "make", {"name": "g"})
    names = {kind: {item.name for item in inventory.list_assets(kind).items} for kind in BESIDE_TPUS}
    assert names[ResourceKind.SNAPSHOT] == {"s"}
    assert names[ResourceKind.IMAGE] == {"i"}
    assert names[ResourceKind.ADDRESS] == {"a", "g"}
    assert names[ResourceKind.INSTANCE] == set()


def test_buckets_are_listed_with_their_size(services, inventory):
    (empty,) = inventory.list_assets(ResourceKind.BUCKET).items
    assert (empty.state, empty.size_gib) == ("empty", 0.0)
    services.objects.write("gs://sim-bucket/x", b"0" * 1024)
    (full,) = inventory.list_assets(ResourceKind.BUCKET).items
    assert (full.state, full.at_least) == ("", False)
    assert full.size_gib == pytest.approx(1024 / 2**30)


def test_a_reset_of_the_simulator_empties_it(rest, inventory):
    make_disk(rest, "one")
    rest.change("POST", "/_sim/reset", "reset")
    assert inventory.list_assets(ResourceKind.DISK).items == ()


def the_bill(services, inventory):
    return bill_of(services, inventory, load_accelerators(), load_other_prices())


def test_the_bill_goes_on_where_one_list_is_denied_and_says_so(sim, rest, services, inventory):
    make_disk(rest, "one")
    assert not the_bill(services, inventory).zero
    sim.fault(kind="error", method="disks.aggregatedList", code=7, message="no compute.disks.list", times=0)
    with pytest.raises(DeniedError):
        inventory.list_assets(ResourceKind.DISK)
    bill = the_bill(services, inventory)
    assert [(each.what, "no compute.disks.list" in each.why) for each in bill.unread] == [("disks", True)]
    assert not bill.zero
    assert [line.resource.kind for line in bill.lines] == ["bucket"]


def test_a_damaged_record_of_a_run_is_told_and_the_rest_is_billed(services, inventory):
    services.store.put("runs/r1", {"id": 3}, if_generation=0)
    bill = the_bill(services, inventory)
    assert [(each.what, "r1" in each.why) for each in bill.unread] == [("the record of a run", True)]
    assert [line.resource.kind for line in bill.lines] == ["bucket"]


def test_a_bucket_that_may_not_be_looked_into_is_billed_without_a_size(sim, services, inventory):
    # The list of buckets passes, the list of objects is refused.
    sim.fault(kind="error", method="storage.get", code=7, message="no storage.objects.list", skip=1)
    bill = the_bill(services, inventory)
    assert [(line.resource.name, line.payer, line.per_hour) for line in bill.lines] == [
        ("sim-bucket", "you", None)
    ]


def test_a_bill_changes_nothing_and_its_data_holds_what_was_read(sim, services, inventory):
    before = sim.world.digest()
    bill = the_bill(services, inventory)
    data = bill_data(services, bill, "sim-project", load_accelerators(), load_other_prices())
    assert sim.world.digest() == before
    assert sim.journal.entries() == []
    assert data["zero"] is True
    assert data["found"] == {
        "node": 0,
        "queued": 0,
        "group": 0,
        "template": 0,
        "policy": 0,
        "disk": 0,
        "snapshot": 0,
        "image": 0,
        "address": 0,
        "instance": 0,
        "bucket": 1,
    }
