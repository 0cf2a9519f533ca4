"""Every way to ask for capacity, through the real adapter: what the API was told, as it shows it afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from google.oauth2.credentials import Credentials

from tests.support.sim import RunningSim, running_sim
from tpuctl.cloud.tpu import GoogleCloud
from tpuctl.errors import InvalidRequestError, QuotaError
from tpuctl.lib.names import node_names
from tpuctl.model.cloud import NodeState, QueuedState, Tier
from tpuctl.model.slice_spec import SliceSpec

ZONE = "us-central2-b"
FLEX_ZONE = "us-east5-a"
V4, V6E = "tpu-ubuntu2204-base", "v2-alpha-tpuv6e"


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[RunningSim]:
    with running_sim(tmp_path, quotas={f"{FLEX_ZONE}/v6e": 16}) as running:
        yield running


@pytest.fixture
def cloud(sim: RunningSim) -> GoogleCloud:
    return GoogleCloud("sim-project", sim.endpoint, Credentials(token=sim.token))


def a_request(name: str = "big-1", **fields: Any) -> tuple[str, SliceSpec]:
    """Id and specification of what is created."""
    values: dict[str, Any] = {
        "hosts": 1,
        "chips": 4,
        "zone": ZONE,
        "accelerator_type": "v4-8",
        "runtime_version": V4,
        "tier": Tier.SPOT,
        "labels": {"tpuctl-slice": "big"},
        "metadata": {"ssh-keys": "ada:key"},
    }
    return name, SliceSpec(**{**values, **fields})


def flexible(**fields: Any) -> tuple[str, SliceSpec]:
    values: dict[str, Any] = {
        "zone": FLEX_ZONE,
        "accelerator_type": "v6e-8",
        "runtime_version": V6E,
        "tier": Tier.FLEX_START,
        "run_duration_s": 14400.0,
    }
    return a_request(**{**values, **fields})


def read(sim: RunningSim, what: str, version: str = "v2alpha1", zone: str = ZONE) -> dict[str, Any]:
    """A resource as one version of the API shows it."""
    url = f"{sim.endpoint}/{version}/projects/sim-project/locations/{zone}/{what}"
    answer = requests.get(url, headers={"Authorization": f"Bearer {sim.token}"}, timeout=10)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def queue(cloud: GoogleCloud, sim: RunningSim, request: tuple[str, SliceSpec]) -> dict[str, Any]:
    """The queued resource once everything that is due has happened."""
    node_id, spec = request
    cloud.create_queued(node_id, spec)
    assert sim.world.settle()
    return read(sim, f"queuedResources/{node_id}", zone=spec.zone)


def test_flex_start_goes_to_v2alpha1_and_is_seen_by_v2(cloud: GoogleCloud, sim: RunningSim) -> None:
    cloud.create_queued(*flexible())
    found = cloud.find_queued(FLEX_ZONE, "big-1")
    assert found is not None
    assert found.labels == {"tpuctl-slice": "big"}
    shown = read(sim, "queuedResources/big-1", zone=FLEX_ZONE)
    assert (shown["provisioningModel"], shown["runDuration"]) == ("FLEX_START", {"maxRunDuration": "14400s"})
    plain = read(sim, "queuedResources/big-1", "v2", FLEX_ZONE)
    assert not {"provisioningModel", "runDuration"} & set(plain)
    assert "runDuration" in read(sim, "queuedResources/big-1", zone=FLEX_ZONE), "reading by v2 changed it"


def test_at_the_end_of_its_run_the_nodes_are_gone_and_the_request_is_suspended(
    cloud: GoogleCloud, sim: RunningSim
) -> None:
    cloud.create_queued(*flexible(run_duration_s=0.2))
    deadline = time.monotonic() + 20
    while (found := cloud.find_queued(FLEX_ZONE, "big-1")) and found.state is not QueuedState.SUSPENDED:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert found is not None
    assert found.initiator == "SERVICE"
    assert cloud.find_node(FLEX_ZONE, "big-1") is None


def test_a_flex_start_node_says_when_it_ends(cloud: GoogleCloud, sim: RunningSim) -> None:
    cloud.create_queued(*flexible())
    deadline = time.monotonic() + 20
    while (node := cloud.find_node(FLEX_ZONE, "big-1")) is None or node.state is not NodeState.READY:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    sim_node = read(sim, "nodes/big-1", zone=FLEX_ZONE)
    assert "terminationTimestamp" in sim_node["schedulingConfig"]


def test_flex_start_draws_on_the_preemptible_quota(cloud: GoogleCloud) -> None:
    cloud.create_queued(*flexible())
    cloud.create_queued(*flexible(name="big-2"))
    with pytest.raises(QuotaError, match="TPUV6EPreemptiblePerProject"):
        cloud.create_queued(*flexible(name="big-3"))


def test_flex_start_elsewhere_is_refused_in_the_operation(cloud: GoogleCloud, sim: RunningSim) -> None:
    operation = cloud.create_queued(*flexible(zone="us-east1-d"))
    assert sim.world.settle()
    found = cloud.find_operation(operation.name)
    assert found is not None
    assert found.error is not None
    assert "FLEX_START provisioning model is not supported" in found.error.message
    assert cloud.find_queued("us-east1-d", "big-1") is None


def test_a_run_that_is_too_long_is_refused_at_once(cloud: GoogleCloud) -> None:
    with pytest.raises(InvalidRequestError, match="at most 7 days"):
        cloud.create_queued(*flexible(run_duration_s=8 * 86400.0))


def test_a_request_that_waits_too_long_expires_and_stays_until_it_is_deleted(
    cloud: GoogleCloud, sim: RunningSim
) -> None:
    # The API lists the type in this zone although there is no capacity for it, ever.
    cloud.create_queued(
        *a_request(
            zone="us-east1-d", accelerator_type="v5p-8", runtime_version="v2-alpha-tpuv5", valid_for_s=0.2
        )
    )
    deadline = time.monotonic() + 20
    while (found := cloud.find_queued("us-east1-d", "big-1")) and found.state is not QueuedState.FAILED:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert found is not None
    assert found.error is not None
    assert "expired" in found.error.message
    cloud.delete_queued("us-east1-d", "big-1")
    assert sim.world.settle()
    assert cloud.find_queued("us-east1-d", "big-1") is None


def test_a_time_that_has_passed_is_refused(cloud: GoogleCloud) -> None:
    with pytest.raises(InvalidRequestError, match="in the past"):
        cloud.create_queued(*a_request(valid_until=time.time() - 60))


def test_the_end_of_the_queueing_is_told_as_a_time_or_a_duration(cloud: GoogleCloud, sim: RunningSim) -> None:
    cloud.create_queued(*a_request(valid_until=4_000_000_000.0))
    cloud.create_queued(*a_request(name="big-2", valid_for_s=3600.0))
    assert read(sim, "queuedResources/big-1")["queueingPolicy"] == {"validUntilTime": "2096-10-02T07:06:40Z"}
    assert read(sim, "queuedResources/big-2")["queueingPolicy"] == {"validUntilDuration": "3600s"}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (None, f"projects/sim-project/locations/{ZONE}/reservations/-"),
        ("mine", f"projects/sim-project/locations/{ZONE}/reservations/mine"),
        (f"projects/other/locations/{ZONE}/reservations/r", f"projects/other/locations/{ZONE}/reservations/r"),
    ],
)
def test_a_reservation_is_named_in_full(
    cloud: GoogleCloud, sim: RunningSim, name: str | None, shown: str
) -> None:
    sim.world.steering.set_reservation((name or "any").rsplit("/")[-1], ZONE, "v4", 32)
    found = queue(cloud, sim, a_request(tier=Tier.RESERVED, reservation=name))
    assert found["reservationName"] == shown
    assert "spot" not in found
    queued = cloud.find_queued(ZONE, "big-1")
    assert queued is not None
    assert queued.tier is Tier.RESERVED


def test_a_shape_is_asked_for_as_such_and_read_back_as_a_type(cloud: GoogleCloud, sim: RunningSim) -> None:
    cloud.create_node(*a_request(accelerator_type="v4-32", config_type="V4", topology="2x2x4"))
    assert sim.world.settle()
    node = cloud.find_node(ZONE, "big-1")
    assert node is not None
    assert len(node.endpoints) == 4
    assert node.accelerator_type == "v4-32"


def test_a_shape_outside_of_the_table_is_known_to_the_api_too(cloud: GoogleCloud) -> None:
    cloud.create_queued(*a_request(accelerator_type="v4-384", config_type="V4", topology="4x4x12"))
    found = cloud.find_queued(ZONE, "big-1")
    assert found is not None
    assert found.accelerator_type == "v4-384"
    with pytest.raises(InvalidRequestError, match="could not be found"):
        cloud.create_queued(*a_request(name="big-2", config_type="V4", topology="4x12x4"))


@pytest.mark.parametrize("direct", [True, False])
def test_network_account_tags_and_boot_disk_arrive(cloud: GoogleCloud, sim: RunningSim, direct: bool) -> None:
    request = a_request(
        network="default",
        subnetwork="default",
        external_ips=False,
        service_account="sa@sim-project.iam.gserviceaccount.com",
        tags=("training", "lab"),
        boot_disk_gib=300,
    )
    if direct:
        cloud.create_node(*request)
    else:
        cloud.create_queued(*request)
    assert sim.world.settle()
    shown = read(sim, "nodes/big-1")
    assert shown["networkConfig"]["network"] == "projects/sim-project/global/networks/default"
    assert (
        shown["networkConfig"]["subnetwork"] == "projects/sim-project/regions/us-central2/subnetworks/default"
    )
    assert shown["networkEndpoints"][0]["accessConfig"] == {}
    assert shown["serviceAccount"]["email"] == "sa@sim-project.iam.gserviceaccount.com"
    assert shown["tags"] == ["training", "lab"]
    assert shown["bootDiskConfig"]["diskSizeGb"] == "300"
    assert "diskSizeGb" not in read(sim, "nodes/big-1", "v2")["bootDiskConfig"]


def test_a_boot_disk_smaller_than_its_image_is_refused(cloud: GoogleCloud) -> None:
    with pytest.raises(InvalidRequestError, match="size of the image"):
        cloud.create_node(*a_request(boot_disk_gib=10))


@pytest.mark.parametrize("tier", [Tier.SPOT, Tier.FLEX_START])
def test_several_slices_are_one_request_with_nodes_in_order(
    cloud: GoogleCloud, sim: RunningSim, tier: Tier
) -> None:
    asked = a_request(slices=2) if tier is Tier.SPOT else flexible(slices=2)
    cloud.create_queued(*asked)
    found = cloud.find_queued(asked[1].zone, "big-1")
    assert found is not None
    assert found.node_ids == node_names("big-1", 2) == ("big-1-0", "big-1-1")
    if tier is Tier.SPOT:
        assert sim.world.settle()
        nodes = [cloud.find_node(ZONE, name) for name in found.node_ids]
        assert [node.state for node in nodes if node] == [NodeState.READY] * 2
        assert read(sim, "nodes/big-1-0", "v2")["multisliceNode"] is True


def test_v2_refuses_what_only_v2alpha1_has(sim: RunningSim) -> None:
    url = f"{sim.endpoint}/v2/projects/sim-project/locations/{FLEX_ZONE}/queuedResources?queuedResourceId=q"
    body = {
        "provisioningModel": "FLEX_START",
        "tpu": {"nodeSpec": [{"nodeId": "q", "node": {"acceleratorType": "v6e-8", "runtimeVersion": V6E}}]},
    }
    answer = requests.post(url, json=body, headers={"Authorization": f"Bearer {sim.token}"}, timeout=10)
    assert answer.status_code == 400
    assert "Unknown name \"provisioningModel\" at 'queued_resource'" in answer.json()["error"]["message"]
    assert not sim.world.snapshot()["queuedResources"]


def test_gclouds_mixture_of_standard_and_spot_is_refused_in_its_own_words(sim: RunningSim) -> None:
    url = f"{sim.endpoint}/v2alpha1/projects/sim-project/locations/{ZONE}/queuedResources?queuedResourceId=q"
    body = {
        "provisioningModel": "STANDARD",
        "spot": {},
        "tpu": {"nodeSpec": [{"nodeId": "q", "node": {"acceleratorType": "v4-8", "runtimeVersion": V4}}]},
    }
    answer = requests.post(url, json=body, headers={"Authorization": f"Bearer {sim.token}"}, timeout=10)
    assert "STANDARD provisioning model incompatible with spot requests" in answer.json()["error"]["message"]
