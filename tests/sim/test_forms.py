"""What clients may say of any call, and what Google's front end makes of it: forms and parts of answers, other
verbs, projects by their number, permissions that there are, and times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import requests
from google.cloud import tpu_v2
from google.longrunning import operations_pb2

from tests.support.sim import RunningSim, running_sim
from tpuctl.sim.wire.status import PROJECT_NUMBER

ZONE = "us-central2-b"
PARENT = f"projects/sim-project/locations/{ZONE}"
NODE = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}
FLEX = "projects/sim-project/locations/us-east5-a"
V6E = {"acceleratorType": "v6e-8", "runtimeVersion": "v2-alpha-tpuv6e"}
COMPUTE = "compute/v1/projects/sim-project"


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSim]:
    """With a node made by v2alpha1, `one`, of a queued resource, `q`, and a disk, `d`."""
    with running_sim(tmp_path_factory.mktemp("d")) as running:
        spec = {"tpu": {"nodeSpec": [{"parent": PARENT, "nodeId": "one", "node": NODE}]}}
        assert running.call("POST", f"v2/{PARENT}/queuedResources?queuedResourceId=q", json=spec).ok
        assert running.call("POST", f"v2alpha1/{PARENT}/nodes?nodeId=two", json=NODE).ok
        assert running.call("POST", f"{COMPUTE}/zones/{ZONE}/disks", json={"name": "d", "sizeGb": 10}).ok
        assert running.world.settle()
        yield running


def refused(answer: requests.Response, status: int = 400) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "fields", "keys"),
    [
        (f"v2/{PARENT}/nodes/one", "state,name", {"state", "name"}),
        (f"v2/{PARENT}/nodes", "nodes(name)", {"nodes"}),
        (f"v2/{PARENT}/nodes/one", "labels/any,schedulingConfig(spot)", {"schedulingConfig"}),
        (f"{COMPUTE}/zones/{ZONE}/disks/d", "name,sizeGb", {"name", "sizeGb"}),
        (f"{COMPUTE}/zones/{ZONE}/disks", "items/name", {"items"}),
        (f"{COMPUTE}/aggregated/disks", "items/*/disks/name", {"items"}),
        ("v3/projects/sim-project", "projectId", {"projectId"}),
    ],
)
def test_an_answer_has_the_fields_that_were_asked_for(
    sim: RunningSim, path: str, fields: str, keys: set[str]
) -> None:
    answer = sim.call("GET", path, params={"fields": fields})
    assert (answer.status_code, set(answer.json())) == (200, keys), answer.text


@pytest.mark.parametrize("path", [f"v2/{PARENT}/nodes/one", f"{COMPUTE}/zones/{ZONE}/disks/d"])
def test_fields_and_forms_that_there_are_not_are_refused(sim: RunningSim, path: str) -> None:
    assert "bogus" in str(refused(sim.call("GET", path, params={"fields": "name,bogus"})))
    assert "bogus" in str(refused(sim.call("GET", path, params={"alt": "bogus"})))
    assert "does not implement" in refused(sim.call("GET", path, params={"alt": "proto"}))["message"]


def test_enums_come_as_numbers_for_who_wants_them(sim: RunningSim) -> None:
    """Google's REST transports want them so."""
    asked = {"$alt": "json;enum-encoding=int"}
    ready = int(tpu_v2.Node.State.READY)
    assert sim.call("GET", f"v2/{PARENT}/nodes/one", params=asked).json()["state"] == ready
    listed = sim.call("GET", f"v2/{PARENT}/nodes", params=asked).json()["nodes"]
    assert {each["state"] for each in listed} == {ready}
    assert sim.call("GET", f"v2/{PARENT}/nodes/one").json()["state"] == "READY"


def test_a_post_may_stand_for_another_verb(sim: RunningSim) -> None:
    for verb, path, status in (
        ("GET", f"v2/{PARENT}/nodes/one", 200),
        ("PATCH", "storage/v1/b/sim-bucket", 200),
        ("DELETE", f"{COMPUTE}/zones/{ZONE}/disks/none", 404),
    ):
        answer = sim.call("POST", path, headers={"x-http-method-override": verb})
        assert answer.status_code == status, answer.text


def test_a_project_goes_by_its_number_too(sim: RunningSim) -> None:
    told = sim.call("GET", f"v2/{PARENT}/nodes/one").json()["queuedResource"]
    assert told.startswith(f"projects/{PROJECT_NUMBER}/")
    assert sim.call("GET", f"v2/{told}").json()["name"] == f"{PARENT}/queuedResources/q"
    assert sim.call("GET", f"v2/projects/{PROJECT_NUMBER}/locations").ok
    for path in ("zones", f"zones/{ZONE}/disks/d", "global/networks/default"):
        assert sim.call("GET", f"compute/v1/projects/{PROJECT_NUMBER}/{path}").ok
    refused(sim.call("GET", f"v2/projects/999999999999/locations/{ZONE}/nodes"), 403)


def test_operations_of_both_versions_are_read_by_grpc(sim: RunningSim) -> None:
    with grpc.insecure_channel(sim.simulator.grpc_endpoint) as channel:
        call = channel.unary_unary(
            "/google.longrunning.Operations/ListOperations",
            request_serializer=operations_pb2.ListOperationsRequest.SerializeToString,
            response_deserializer=operations_pb2.ListOperationsResponse.FromString,
        )
        asked = operations_pb2.ListOperationsRequest(name=PARENT)
        found = call(asked, metadata=[("authorization", f"Bearer {sim.token}")]).operations
    kinds = {each.response.type_url.rpartition("/")[2] for each in found}
    assert {"google.cloud.tpu.v2alpha1.Node", "google.cloud.tpu.v2.QueuedResource"} <= kinds


def test_an_api_that_was_enabled_is_shown_in_the_answer(sim: RunningSim) -> None:
    answer = sim.call("POST", "v1/projects/sim-project/services/tpu.googleapis.com:enable", json={}).json()
    assert answer["response"]["@type"].endswith("serviceusage.v1.EnableServiceResponse")
    assert answer["response"]["service"]["state"] == "ENABLED"


@pytest.mark.parametrize(
    "config",
    [{"network": "nonet"}, {"subnetwork": "nonet"}, {"network": "projects/sim-project/global/networks/nonet"}],
)
def test_nodes_are_in_networks_that_there_are(sim: RunningSim, config: dict[str, str]) -> None:
    node = {**NODE, "networkConfig": config}
    error = refused(sim.call("POST", f"v2/{PARENT}/nodes?nodeId=n", json=node))
    assert "networks/nonet' was not found" in error["message"]


def test_a_network_that_another_project_shares_is_taken(sim: RunningSim) -> None:
    node = {**NODE, "networkConfig": {"network": "projects/host-project/global/networks/shared"}}
    made = sim.call("POST", f"v2/{PARENT}/nodes?nodeId=lent", json=node)
    assert made.status_code == 200, made.text


def test_requests_of_compute_engine_have_ids_that_are_uuids(sim: RunningSim) -> None:
    for wrong in ("abc", "00000000-0000-0000-0000-000000000000"):
        path = f"{COMPUTE}/zones/{ZONE}/disks?requestId={wrong}"
        assert "requestId" in refused(sim.call("POST", path, json={"name": "e", "sizeGb": 10}))["message"]


def test_the_lists_that_gcloud_asks_for_are_there(sim: RunningSim) -> None:
    snapshots = sim.call("GET", "compute/beta/projects/sim-project/aggregated/snapshots?includeAllScopes=True")
    assert snapshots.json()["items"]["global"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"
    assert sim.call("GET", "compute/v1/projects/ubuntu-os-accelerator-images/global/images").ok


def test_apis_that_are_not_simulated_are_refused_as_such(sim: RunningSim) -> None:
    """And not as objects of a bucket."""
    path = "v1beta1/projects/sim-project/services/tpu.googleapis.com/consumerQuotaMetrics?alt=json"
    assert "does not implement" in refused(sim.call("GET", path))["message"]


@pytest.mark.parametrize(
    "asked",
    [
        {"description": "what it is for"},
        {"acceleratorConfig": {"type": "V4", "topology": "2x2x1"}},
        {"networkConfig": {"network": "default", "enableExternalIps": True}},
        {"networkConfigs": [{"network": "default"}]},
        {"cidrBlock": "10.8.0.0/29"},
        {"serviceAccount": {"email": "mine@sim-project.iam.gserviceaccount.com"}},
        {"schedulingConfig": {"spot": True}},
        {"labels": {"of": "ada"}},
        {"metadata": {"startup-script": "true"}},
        {"tags": ["training"]},
        {"dataDisks": [{"sourceDisk": f"projects/sim-project/zones/{ZONE}/disks/d", "mode": "READ_ONLY"}]},
        {"shieldedInstanceConfig": {"enableSecureBoot": True}},
        {"bootDiskConfig": {"diskSizeGb": "300"}},
        {"autocheckpointEnabled": True},
        {"protectionTier": "CAPACITY_OPTIMIZED"},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_a_node_shows_what_it_was_given(sim: RunningSim, asked: dict[str, Any]) -> None:
    name = f"given-{next(iter(asked)).lower()}"
    version = "v2" if "protectionTier" in asked else "v2alpha1"  # each has fields that the other lacks
    made = sim.call("POST", f"{version}/{PARENT}/nodes?nodeId={name}", json={**NODE, **asked})
    assert made.status_code == 200, made.text
    assert sim.world.settle()
    shown = sim.call("GET", f"{version}/{PARENT}/nodes/{name}").json()
    assert {**NODE, **asked}.keys() <= shown.keys()


@pytest.mark.parametrize(
    "asked",
    [
        {"spot": {}},
        {"guaranteed": {"reserved": True}},
        {"bestEffort": {}},
        {"queueingPolicy": {"validUntilDuration": "3600s"}},
        {"reservationName": f"{FLEX}/reservations/mine"},
        {"provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": "14400s"}},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_a_queued_resource_shows_what_it_was_given(sim: RunningSim, asked: dict[str, Any]) -> None:
    name = f"given-{next(iter(asked)).lower()}"
    spec = {"tpu": {"nodeSpec": [{"parent": FLEX, "nodeId": name, "node": V6E}]}, **asked}
    made = sim.call("POST", f"v2alpha1/{FLEX}/queuedResources?queuedResourceId={name}", json=spec)
    assert made.status_code == 200, made.text
    shown = sim.call("GET", f"v2alpha1/{FLEX}/queuedResources/{name}").json()
    assert {key: shown.get(key) for key in asked} == asked
