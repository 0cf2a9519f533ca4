"""`disk throughput` against the simulator: one change in six hours, its price, and readers that need it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.jobs import SPEC
from tests.support.services import SimServices, sim_services
from tests.support.sim import running_sim
from tpuctl.disks.clone import clone, create_master
from tpuctl.disks.clone_request import plan_clone
from tpuctl.disks.follow import attach_all, remember
from tpuctl.disks.make import get_record
from tpuctl.disks.rules import DiskRules
from tpuctl.disks.slices import nodes_of
from tpuctl.disks.throughput import set_throughput
from tpuctl.errors import InvalidRequestError, UsageError
from tpuctl.model.disks import DiskMode, DiskRequest
from tpuctl.model.refs import DiskRef
from tpuctl.model.requests import CloneRequest, Purpose
from tpuctl.model.shipped_files import load_disk_rules
from tpuctl.slices.desired import request_slice
from tpuctl.slices.reconcile import advance_slice
from tpuctl.state.repository import get_slice

ZONE = "us-east5-b"
RULES = DiskRules(load_disk_rules())
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimServices]:
    """A master of v6e and its copy, which is a hyperdisk-ml for few readers."""
    folder: Path = tmp_path_factory.mktemp("throughput")
    with running_sim(folder) as sim, sim_services(sim, folder / "state") as made:
        create_master(made, RULES, DiskRequest("data", ZONE, "hyperdisk-balanced", 10, {}), "data")
        clone(made, RULES, CloneRequest("data", zone=ZONE, purpose=Purpose("v6e", 4)))
        yield made


def test_a_copy_is_for_as_many_readers_as_was_said(services: SimServices) -> None:
    request = get_record(services, "data-g1").request
    assert (request.type, request.throughput_mib_s) == ("hyperdisk-ml", 400)
    wanted = plan_clone(services, RULES, CloneRequest("data", zone=ZONE, purpose=Purpose("v6e", 64)))
    assert wanted.record.request.throughput_mib_s == 6400


def test_a_slice_of_many_hosts_waits_with_what_helps_until_the_disk_is_fast_enough(
    services: SimServices,
) -> None:
    spec = replace(SPEC, accelerator_type="v6e-128", zone=ZONE, hosts=32, chips=128, queued=False)
    request_slice(services, "big", spec, pay=False, zones=(ZONE,), admit=lambda: None)
    remember(services, "big", DiskRef("data-g1", "/mnt/data", DiskMode.READ_ONLY))
    for _ in range(20):
        nodes = nodes_of(services, get_slice(services, "big").record)
        if nodes and None not in nodes.values():
            break
        advance_slice(services, "big")
        services.clock.sleep(0.25)
    with pytest.raises(UsageError, match="hosts that read it need 3200") as caught:
        attach_all(services, get_slice(services, "big").record, deadline=services.clock.now() + 30)
    assert caught.value.hint == "tpuctl disk throughput data-g1 3200"
    with pytest.raises(UsageError, match="need 3200"):  # and nobody makes it slower than they need
        set_throughput(services, RULES, "data-g1", 500, dry_run=False)


def test_a_change_says_its_price_and_when_the_next_one_can_be(services: SimServices) -> None:
    planned = set_throughput(services, RULES, "data-g1", 3200, dry_run=True)
    assert planned["said"] == (
        "would give data-g1 3200 MiB/s (about $384.80 a month), from 400 (about $48.80 a month)"
    )
    done = set_throughput(services, RULES, "data-g1", 3200, dry_run=False)
    assert f"it can be changed again at {done['next_at']}" in done["said"]
    disk = services.disks.find_disk(ZONE, "data-g1")
    assert disk is not None
    assert disk.throughput_mib_s == get_record(services, "data-g1").request.throughput_mib_s == 3200
    again = set_throughput(services, RULES, "data-g1", 3200, dry_run=False)
    assert again["said"] == "data-g1 has 3200 MiB/s already"
    with pytest.raises(UsageError, match="was changed less than 6 h ago") as caught:
        set_throughput(services, RULES, "data-g1", 4000, dry_run=False)
    assert caught.value.hint == f"the same command at {done['next_at']}"
    with pytest.raises(InvalidRequestError, match="once every 6 hours"):
        services.disks.set_throughput(ZONE, "data-g1", 4000)


@pytest.mark.parametrize(
    ("name", "mib_s", "said"),
    [
        ("data", 500, "is a hyperdisk-balanced disk, and its throughput cannot be set"),
        ("data-g1", 100, "has 400 to 16000 MiB/s, not 100"),
        ("data-g1", 99_999, "has 400 to 16000 MiB/s, not 99999"),
    ],
)
def test_what_a_disk_cannot_have_is_refused(services: SimServices, name: str, mib_s: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        set_throughput(services, RULES, name, mib_s, dry_run=False)
