"""The simulated APIs refuse as Google's do: bad payloads store nothing, details are alike by REST and gRPC."""

from __future__ import annotations

from typing import Any

import pytest
import requests
from google.api_core import exceptions
from google.cloud import tpu_v2
from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport
from google.protobuf import json_format
from google.rpc import error_details_pb2

from tests.sim.test_tpu import PARENT, VERSION, grpc_channel, node, rest_client
from tests.support.sim import RunningSim
from tpuctl.sim.api.tpu_rest import TYPES_OF, routes_of

NODE = {"acceleratorType": "v4-8", "runtimeVersion": VERSION}


def call(sim: RunningSim, verb: str, path: str, body: Any = None) -> tuple[int, Any]:
    answer = sim.call(verb, path, json=body)
    assert sim.world.settle()
    return answer.status_code, answer.json()


def make(sim: RunningSim, id: str = "a", version: str = "v2") -> None:
    assert call(sim, "POST", f"/{version}/{PARENT}/nodes?nodeId={id}", NODE)[0] == 200


@pytest.mark.parametrize(
    ("mask", "change"),
    [
        ("networkConfig", {"networkConfig": "x"}),
        ("metadata", {"metadata": "x"}),
        ("labels", {"labels": [1]}),
        ("dataDisks", {"dataDisks": [{"sourceDisk": 5}]}),
        ("tags", {"tags": [{}]}),
        ("description", {"description": {"a": 1}}),
    ],
)
def test_a_patch_of_the_wrong_type_is_refused_and_poisons_no_list(
    sim: RunningSim, mask: str, change: Any
) -> None:
    make(sim)
    before = sim.world.digest()
    status, body = call(sim, "PATCH", f"/v2/{PARENT}/nodes/a?updateMask={mask}", change)
    assert (status, body["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert "fieldViolations" in body["error"]["details"][0]
    assert sim.world.digest() == before
    assert [each.name for each in rest_client(sim.endpoint, sim.token).list_nodes(parent=PARENT)] == [
        f"{PARENT}/nodes/a"
    ]


def test_a_single_node_spec_is_as_good_as_a_list_of_one(sim: RunningSim) -> None:
    body = {"tpu": {"nodeSpec": {"nodeId": "n", "parent": PARENT, "node": NODE}}, "spot": {}}
    assert call(sim, "POST", f"/v2/{PARENT}/queuedResources?queuedResourceId=o", body)[0] == 200
    assert call(sim, "GET", f"/v2/{PARENT}/queuedResources/o")[1]["state"]["state"] == "ACTIVE"


def test_unknown_query_parameters_are_refused(sim: RunningSim) -> None:
    status, body = call(sim, "GET", f"/v2/{PARENT}/nodes?zone=x&alt=json")
    assert status == 400
    assert body["error"]["message"].startswith(
        'Invalid JSON payload received. Unknown name "zone": Cannot bind'
    )
    assert call(sim, "GET", f"/v2/{PARENT}/nodes?page_size=3&%24alt=json")[0] == 200


def test_bodies_beyond_the_limit_are_refused(sim: RunningSim) -> None:
    huge = {**NODE, "metadata": {"a": "x" * (11 * 1024**2)}}
    status, body = call(sim, "POST", f"/v2/{PARENT}/nodes?nodeId=a", huge)
    assert status == 400
    assert "payload size exceeds the limit" in body["error"]["message"]


@pytest.mark.parametrize(
    ("fault", "wanted"),
    [
        ({"preset": "api-off"}, error_details_pb2.ErrorInfo),
        ({"preset": "no-permission", "name": "tpu.nodes.create"}, error_details_pb2.ErrorInfo),
        ({}, error_details_pb2.QuotaFailure),
    ],
)
def test_errors_have_the_same_details_by_rest_and_grpc(sim: RunningSim, fault: Any, wanted: type) -> None:
    if fault:
        sim.fault(**fault)
    sim.world.set_quotas({"us-central2-b": 0})
    found: list[exceptions.GoogleAPICallError] = []
    with grpc_channel(sim, sim.token) as channel:
        for client in (
            rest_client(sim.endpoint, sim.token),
            tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel)),
        ):
            with pytest.raises(exceptions.GoogleAPICallError) as caught:
                client.create_node(parent=PARENT, node_id="a", node=node())
            found.append(caught.value)
    rest, grpc = found
    assert (rest.code, rest.reason) == (grpc.code, grpc.reason)
    assert any(isinstance(each, wanted) for each in grpc.details)
    told = rest.response.json()["error"]["details"]
    to_json = json_format.MessageToDict
    assert [to_json(each) for each in grpc.details] == [
        {key: value for key, value in each.items() if key != "@type"} for each in told
    ]


def test_version_1_reads_what_the_newer_ones_made(sim: RunningSim) -> None:
    make(sim)
    _, places = call(sim, "GET", "/v1/projects/sim-project/locations")
    assert "us-central2-b" in [each["locationId"] for each in places["locations"]]
    assert call(sim, "GET", f"/v1/{PARENT}")[1]["locationId"] == "us-central2-b"
    _, types = call(sim, "GET", f"/v1/{PARENT}/acceleratorTypes")
    assert {"name": f"{PARENT}/acceleratorTypes/v4-8", "type": "v4-8"} in types["acceleratorTypes"]
    assert call(sim, "GET", f"/v1/{PARENT}/acceleratorTypes/v4-8")[1]["type"] == "v4-8"
    _, versions = call(sim, "GET", f"/v1/{PARENT}/tensorflowVersions")
    assert VERSION in [each["version"] for each in versions["tensorflowVersions"]]
    assert call(sim, "GET", f"/v1/{PARENT}/tensorflowVersions/{VERSION}")[1]["version"] == VERSION
    _, listed = call(sim, "GET", f"/v1/{PARENT}/nodes")
    [shown] = listed["nodes"]
    assert shown == call(sim, "GET", f"/v1/{PARENT}/nodes/a")[1]
    assert (shown["apiVersion"], shown["tensorflowVersion"], shown["port"]) == ("V2_ALPHA1", VERSION, "8470")
    assert not {"runtimeVersion", "networkConfig", "acceleratorConfig"} & set(shown)
    assert call(sim, "GET", f"/v1/{PARENT}/operations")[1]["operations"][0]["done"]
    status, body = call(sim, "POST", f"/v1/{PARENT}/nodes?nodeId=b", NODE)
    assert (status, "does not implement" in body["error"]["message"]) == (400, True)
    assert call(sim, "GET", "/v1/projects/sim-project/services")[0] == 200


def test_v2alpha1_has_its_own_enum_values_and_operations_can_be_listed_by_all(sim: RunningSim) -> None:
    make(sim)
    assert call(sim, "GET", f"/v2/{PARENT}/nodes/a")[1]["apiVersion"] == "V2"
    assert call(sim, "GET", f"/v2alpha1/{PARENT}/nodes/a")[1]["apiVersion"] == "V2_ALPHA1"
    path = f"/v2alpha1/{PARENT}/nodes/a:simulateMaintenanceEvent"
    assert call(sim, "POST", path, {"workerIds": ["0"]})[0] == 200
    _, listed = call(sim, "GET", f"/v2/{PARENT}/operations")
    assert {each["response"]["apiVersion"] for each in listed["operations"]} == {"V2", "V2_ALPHA1"}
    assert {each["response"]["@type"].split(".")[-2] for each in listed["operations"]} == {"v2", "v2alpha1"}


def test_operations_are_listed_in_pages_and_filtered(sim: RunningSim) -> None:
    for id in ("a", "b", "c"):
        make(sim, id)
    _, first = call(sim, "GET", f"/v2/{PARENT}/operations?pageSize=2")
    _, rest = call(sim, "GET", f"/v2/{PARENT}/operations?pageSize=2&pageToken={first['nextPageToken']}")
    assert (len(first["operations"]), len(rest["operations"]), "nextPageToken" in rest) == (2, 1, False)
    _, found = call(sim, "GET", f"/v2/{PARENT}/operations?filter=metadata.target:nodes/b")
    assert [each["metadata"]["target"] for each in found["operations"]] == [f"{PARENT}/nodes/b"]
    assert call(sim, "GET", f"/v2/{PARENT}/operations?filter=((")[0] == 400
    assert call(sim, "GET", f"/v2/{PARENT}/operations?pageSize=-1")[0] == 400


@pytest.mark.parametrize("token", ["x", "====", "bnVsbA==", "WzFd", "é"])
def test_page_tokens_that_nobody_gave_out_are_refused(sim: RunningSim, token: str) -> None:
    assert call(sim, "GET", f"/v2/{PARENT}/nodes?pageToken={token}")[0] == 400


def test_accelerator_types_are_filtered(sim: RunningSim) -> None:
    _, found = call(sim, "GET", f"/v2/{PARENT}/acceleratorTypes?filter=type%3D%22v4-8%22")
    assert [each["type"] for each in found["acceleratorTypes"]] == ["v4-8"]


def test_maintenance_of_a_queued_resource_can_be_asked_for(sim: RunningSim) -> None:
    body = {"tpu": {"nodeSpec": [{"nodeId": "n", "node": NODE}]}}
    assert call(sim, "POST", f"/v2/{PARENT}/queuedResources?queuedResourceId=o", body)[0] == 200
    status, info = call(sim, "GET", f"/v2alpha1/{PARENT}/queuedResources/o:getMaintenanceInfo")
    assert (status, info) == (200, {"nodeUpcomingMaintenances": []})


@pytest.mark.parametrize("version", sorted(TYPES_OF))
def test_the_discovery_document_names_every_method_under_its_own_path(sim: RunningSim, version: str) -> None:
    answer = requests.get(f"{sim.endpoint}/$discovery/rest?version={version}", timeout=30)
    document = answer.json()
    assert (answer.status_code, document["name"], document["version"]) == (200, "tpu", version)

    def methods(place: Any) -> list[Any]:
        below = [found for each in place.get("resources", {}).values() for found in methods(each)]
        return [*place.get("methods", {}).values(), *below]

    found = methods(document)
    routes = routes_of(version)
    assert len(found) == len(routes)
    for method in found:
        param = method["parameterOrder"][0]
        value = method["parameters"][param]["pattern"].strip("^$").replace("[^/]+", "x")
        path = "/" + method["path"].replace(f"{{+{param}}}", value)
        fitting = [each.call.verb for each in routes if each.pattern.fullmatch(path)]
        assert method["httpMethod"] in fitting, path
        assert method.get("request", {"$ref": "Empty"})["$ref"] in document["schemas"]
    assert requests.get(f"{sim.endpoint}/$discovery/rest?version=v9", timeout=30).status_code == 400


def test_who_asks_for_no_version_gets_the_preferred_one_and_its_scope(sim: RunningSim) -> None:
    document = requests.get(f"{sim.endpoint}/$discovery/rest", timeout=30).json()
    assert document["version"] == "v2"
    assert list(document["auth"]["oauth2"]["scopes"]) == ["https://www.googleapis.com/auth/cloud-platform"]


def test_v2alpha_is_v2alpha1_by_the_name_that_ray_uses(sim: RunningSim) -> None:
    make(sim, version="v2alpha")
    assert call(sim, "GET", f"/v2alpha/{PARENT}/nodes/a")[1]["apiVersion"] == "V2_ALPHA1"


def test_an_empty_list_is_left_out(sim: RunningSim) -> None:
    assert call(sim, "GET", f"/v2/{PARENT}/nodes") == (200, {})
    assert call(sim, "GET", f"/v2/{PARENT}/operations") == (200, {})
    assert "items" not in call(sim, "GET", "/compute/v1/projects/sim-project/global/images")[1]
