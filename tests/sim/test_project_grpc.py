"""Secret Manager, Resource Manager, Cloud Quotas and Service Usage by gRPC.

`make conformance` asks by Google's own libraries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from google.rpc import error_details_pb2, status_pb2

from tests.support.sim import RunningSim, running_sim
from tpuctl.sim.api.project_grpc import CALLS, package_of
from tpuctl.sim.wire.grpc_types import message_classes

PROJECT = "projects/sim-project"


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSim]:
    with running_sim(tmp_path_factory.mktemp("d")) as running:
        yield running


def call(sim: RunningSim, path: str, *, token: str = "", **fields: Any) -> Any:
    """One call of `SERVICE.METHOD`, its answer as JSON."""
    name, method = path.split(".")
    known = next(each for each in CALLS.values() if each.service.endswith(f".{name}") and each.rpc == method)
    package = package_of(known)
    request = json_format.ParseDict(fields, message_classes()[f"{package}.{method}Request"]())
    with grpc.insecure_channel(sim.simulator.grpc_endpoint) as channel:
        raw = channel.unary_unary(f"/{package}.{name}/{method}")(
            request.SerializeToString(),
            metadata=[("authorization", f"Bearer {token or sim.token}")],
            timeout=10,
        )
    if known.answer == "Empty":
        return raw
    return json_format.MessageToDict(message_classes()[f"{package}.{known.answer}"].FromString(raw))


def test_secrets_are_made_read_listed_and_deleted(sim: RunningSim) -> None:
    asked = {"replication": {"automatic": {}}, "labels": {"a": "b"}}
    made = call(sim, "SecretManagerService.CreateSecret", parent=PROJECT, secretId="s", secret=asked)
    assert made["labels"] == {"a": "b"}
    version = call(sim, "SecretManagerService.AddSecretVersion", parent=made["name"], payload={"data": "eA=="})
    assert (version["name"], version["state"]) == (f"{made['name']}/versions/1", "ENABLED")
    latest = f"{made['name']}/versions/latest"
    assert call(sim, "SecretManagerService.AccessSecretVersion", name=latest)["payload"]["data"] == "eA=="
    assert call(sim, "SecretManagerService.GetSecretVersion", name=latest) == version
    listed = call(sim, "SecretManagerService.ListSecrets", parent=PROJECT, pageSize=5)
    assert listed["secrets"] == [made]
    versions = call(sim, "SecretManagerService.ListSecretVersions", parent=made["name"])
    assert versions["versions"] == [version]
    assert call(sim, "SecretManagerService.DeleteSecret", name=made["name"]) == b""
    with pytest.raises(grpc.RpcError) as error:
        call(sim, "SecretManagerService.GetSecret", name=made["name"])
    assert error.value.code() == grpc.StatusCode.NOT_FOUND


def test_the_project_its_quotas_and_its_services_are_read(sim: RunningSim) -> None:
    project = call(sim, "Projects.GetProject", name=PROJECT)
    assert (project["projectId"], project["state"]) == ("sim-project", "ACTIVE")
    assert call(sim, "Projects.SearchProjects", query="id:sim-project")["projects"] == [project]
    quotas = call(
        sim, "CloudQuotas.ListQuotaInfos", parent=f"{PROJECT}/locations/global/services/tpu.googleapis.com"
    )
    info = quotas["quotaInfos"][0]
    assert call(sim, "CloudQuotas.GetQuotaInfo", name=info["name"])["quotaId"] == info["quotaId"]
    names = [f"{PROJECT}/services/tpu.googleapis.com"]
    found = call(sim, "ServiceUsage.BatchGetServices", parent=PROJECT, names=names)["services"]
    assert [each["state"] for each in found] == ["ENABLED"]


def test_a_service_is_turned_off_and_on(sim: RunningSim) -> None:
    name = f"{PROJECT}/services/tpu.googleapis.com"
    for method, state in (("DisableService", "DISABLED"), ("EnableService", "ENABLED")):
        raw = call_operation(sim, method, name)
        assert raw.done
        assert raw.response.type_url.endswith(f"serviceusage.v1.{method}Response")
        assert call(sim, "ServiceUsage.GetService", name=name)["state"] == state


def call_operation(sim: RunningSim, method: str, name: str) -> Any:
    from google.longrunning import operations_pb2

    package = "google.api.serviceusage.v1"
    request = message_classes()[f"{package}.{method}Request"](name=name)
    with grpc.insecure_channel(sim.simulator.grpc_endpoint) as channel:
        raw = channel.unary_unary(f"/{package}.ServiceUsage/{method}")(
            request.SerializeToString(), metadata=[("authorization", f"Bearer {sim.token}")], timeout=10
        )
    return operations_pb2.Operation.FromString(raw)


def test_refusals_have_codes_and_details(sim: RunningSim) -> None:
    sim.world.faults.add({"kind": "service-off", "name": "secretmanager.googleapis.com"})
    try:
        with pytest.raises(grpc.RpcError) as error:
            call(sim, "SecretManagerService.ListSecrets", parent=PROJECT)
    finally:
        sim.world.faults.clear()
    assert error.value.code() == grpc.StatusCode.PERMISSION_DENIED
    packed = dict(error.value.trailing_metadata())["grpc-status-details-bin"]
    infos = [each for each in status_pb2.Status.FromString(packed).details if each.Is(INFO)]
    assert len(infos) == 1
    with pytest.raises(grpc.RpcError) as denied:
        call(sim, "Projects.GetProject", token="nobody", name=PROJECT)
    assert denied.value.code() == grpc.StatusCode.UNAUTHENTICATED


INFO = error_details_pb2.ErrorInfo.DESCRIPTOR


def test_methods_that_are_not_simulated_say_so(sim: RunningSim) -> None:
    with grpc.insecure_channel(sim.simulator.grpc_endpoint) as channel:
        method = channel.unary_unary("/google.api.cloudquotas.v1.CloudQuotas/UpdateQuotaPreference")
        with pytest.raises(grpc.RpcError, match="does not implement"):
            method(b"", metadata=[("authorization", f"Bearer {sim.token}")], timeout=10)
