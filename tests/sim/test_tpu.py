"""Google's own client against the simulated TPU API: one suite, by REST and by gRPC.

By REST that client cannot parse the operations of the real API, as long as nothing in the process knows
`google.cloud.common.OperationMetadata`; this suite teaches it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.api_core.client_options import ClientOptions
from google.api_core.future import polling
from google.cloud import tpu_v2, tpu_v2alpha1
from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport
from google.cloud.tpu_v2alpha1.services.tpu.transports import TpuGrpcTransport as AlphaGrpcTransport
from google.oauth2.credentials import Credentials
from google.protobuf import descriptor_pb2, descriptor_pool, field_mask_pb2

from tests.support.sim import RunningSim, running_sim

ZONE = "us-central2-b"
PARENT = f"projects/sim-project/locations/{ZONE}"
EVERYWHERE = "projects/sim-project/locations/-"
VERSION = "tpu-ubuntu2204-base"
FAST = polling.DEFAULT_POLLING.with_delay(initial=0.02, maximum=0.1, multiplier=1.5)
STATE = tpu_v2.Node.State
QUEUED = tpu_v2.QueuedResourceState.State
METADATA = "type.googleapis.com/google.cloud.common.OperationMetadata"


@pytest.fixture(scope="module", autouse=True)
def known_metadata() -> None:
    """google/cloud/common/operation_metadata.proto: the message of google.cloud.tpu under another package."""
    file = descriptor_pb2.FileDescriptorProto(
        name="google/cloud/common/operation_metadata.proto",
        package="google.cloud.common",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto"],
    )
    tpu_v2.OperationMetadata.pb().DESCRIPTOR.CopyToProto(file.message_type.add())
    descriptor_pool.Default().Add(file)


class _Details(grpc.ClientCallDetails):  # type: ignore[misc]
    def __init__(self, details: grpc.ClientCallDetails, metadata: list[tuple[str, str]]) -> None:
        self.method = details.method
        self.timeout = details.timeout
        self.metadata = [*(details.metadata or ()), *metadata]
        self.credentials = details.credentials
        self.wait_for_ready = details.wait_for_ready
        self.compression = details.compression


class _WithToken(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._metadata = [("authorization", f"Bearer {token}")]

    def intercept_unary_unary(self, call: Any, details: Any, request: Any) -> Any:
        return call(_Details(details, self._metadata), request)


def rest_client(endpoint: str, token: str) -> tpu_v2.TpuClient:
    return tpu_v2.TpuClient(
        transport="rest",
        credentials=Credentials(token=token),
        client_options=ClientOptions(api_endpoint=endpoint),
    )


def grpc_channel(sim: RunningSim, token: str) -> grpc.Channel:
    channel = grpc.insecure_channel(sim.simulator.grpc_endpoint)
    return grpc.intercept_channel(channel, _WithToken(token))


@pytest.fixture(params=["rest", "grpc"])
def client(request: pytest.FixtureRequest, sim: RunningSim) -> Iterator[tpu_v2.TpuClient]:
    if request.param == "rest":
        yield rest_client(sim.endpoint, sim.token)
        return
    with grpc_channel(sim, sim.token) as channel:
        yield tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel))


def node(accelerator: str = "v4-8", **fields: Any) -> tpu_v2.Node:
    return tpu_v2.Node(accelerator_type=accelerator, runtime_version=VERSION, **fields)


def queued(node_id: str, accelerator: str = "v4-8", **fields: Any) -> tpu_v2.QueuedResource:
    spec = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=PARENT, node_id=node_id, node=node(accelerator))
    return tpu_v2.QueuedResource(tpu=tpu_v2.QueuedResource.Tpu(node_spec=[spec]), **fields)


def create_queued(client: tpu_v2.TpuClient, sim: RunningSim, name: str, accelerator: str = "v4-8") -> None:
    client.create_queued_resource(
        parent=PARENT,
        queued_resource_id=name,
        queued_resource=queued(name, accelerator, spot=tpu_v2.QueuedResource.Spot()),
    ).result(polling=FAST)
    assert sim.world.settle()


def code_of(error: exceptions.GoogleAPICallError) -> str:
    """The google.rpc status, which the REST client leaves in the body."""
    if error.grpc_status_code is not None:
        return str(error.grpc_status_code.name)
    return str(error.response.json()["error"]["status"])


def test_a_wrong_zone_type_runtime_id_or_label_is_refused_before_anything_is_made(
    client: tpu_v2.TpuClient, sim: RunningSim
) -> None:
    wrong = [
        (PARENT, "a", node("v6e-1"), "could not be found in the zonal accelerator configurations"),
        (PARENT, "a", tpu_v2.Node(accelerator_type="v4-8", runtime_version="nope"), "runtime version"),
        (PARENT, "A_b", node(), "Invalid node id"),
        (PARENT, "a", node(labels={"Bad": "x"}), "Invalid label key"),
    ]
    for parent, name, body, text in wrong:
        with pytest.raises(exceptions.GoogleAPICallError, match=text) as refused:
            client.create_node(parent=parent, node_id=name, node=body)
        assert code_of(refused.value) == "INVALID_ARGUMENT"
    with pytest.raises(exceptions.Forbidden, match="or it may not exist"):
        client.create_node(parent="projects/sim-project/locations/mars-north1-a", node_id="a", node=node())
    assert not sim.world.snapshot()["nodes"]
    assert [entry.status for entry in sim.journal.entries()] == ["INVALID_ARGUMENT"] * 4 + ["PERMISSION_DENIED"]


def test_patch_replaces_only_the_masked_fields(client: tpu_v2.TpuClient) -> None:
    made = client.create_node(
        parent=PARENT, node_id="a", node=node(labels={"old": "1"}, metadata={"m": "1"})
    ).result(polling=FAST)
    change = tpu_v2.Node(name=made.name, labels={"new": "2"}, metadata={"ignored": "1"})
    changed = client.update_node(node=change, update_mask=field_mask_pb2.FieldMask(paths=["labels"])).result(
        polling=FAST
    )
    assert (dict(changed.labels), dict(changed.metadata)) == ({"new": "2"}, {"m": "1"})
    with pytest.raises(exceptions.GoogleAPICallError, match="Invalid update mask"):
        client.update_node(node=change, update_mask=field_mask_pb2.FieldMask(paths=["accelerator_type"]))


def test_stop_and_start_work_for_single_on_demand_hosts_only(client: tpu_v2.TpuClient) -> None:
    made = client.create_node(parent=PARENT, node_id="a", node=node()).result(polling=FAST)
    stopped = client.stop_node(request={"name": made.name}).result(polling=FAST)
    started = client.start_node(request={"name": made.name}).result(polling=FAST)
    assert (stopped.state, started.state) == (STATE.STOPPED, STATE.READY)
    assert started.network_endpoints == made.network_endpoints
    client.create_node(parent=PARENT, node_id="big", node=node("v4-16")).result(polling=FAST)
    spot = node(scheduling_config=tpu_v2.SchedulingConfig(spot=True))
    client.create_node(parent=PARENT, node_id="spot", node=spot).result(polling=FAST)
    for name, text in (("big", "multi-host"), ("spot", "preemptible")):
        with pytest.raises(exceptions.GoogleAPICallError, match=text):
            client.stop_node(request={"name": f"{PARENT}/nodes/{name}"})


def test_guest_attributes_hold_the_host_keys_of_the_asked_workers(client: tpu_v2.TpuClient) -> None:
    made = client.create_node(parent=PARENT, node_id="a", node=node("v4-16")).result(polling=FAST)

    def keys(*workers: str) -> list[dict[str, str]]:
        found = client.get_guest_attributes(request={"name": made.name, "worker_ids": list(workers)})
        return [{i.key: i.value for i in one.query_value.items} for one in found.guest_attributes]

    assert len(keys("")) == len(keys()) == 2
    assert keys("1") == [keys("")[1]]
    assert len({each["ssh-ed25519"] for each in keys("")}) == 2
    assert [each["hostname"][-4:] for each in keys("")] == ["-w-0", "-w-1"]
    found = client.get_guest_attributes(request={"name": made.name, "query_path": "deviceInfo/hostname"})
    assert {item.namespace for one in found.guest_attributes for item in one.query_value.items} == {
        "deviceInfo"
    }
    with pytest.raises(exceptions.GoogleAPICallError, match="Invalid worker id"):
        keys("7")


def test_a_preempted_direct_node_stays_listed_and_only_delete_helps(
    client: tpu_v2.TpuClient, sim: RunningSim
) -> None:
    made = client.create_node(parent=PARENT, node_id="a", node=node()).result(polling=FAST)
    assert sim.preempt("a") == [made.name]
    assert [n.state for n in client.list_nodes(parent=PARENT)] == [STATE.PREEMPTED]
    change = tpu_v2.Node(name=made.name, labels={})
    with pytest.raises(
        exceptions.GoogleAPICallError,
        match=r"Cloud TPU received a bad request\. update is not supported while in state PREEMPTED \[EID: 0x",
    ):
        client.update_node(node=change, update_mask=field_mask_pb2.FieldMask(paths=["labels"]))
    with pytest.raises(exceptions.GoogleAPICallError, match="start is not supported"):
        client.start_node(request={"name": made.name})
    client.delete_node(name=made.name).result(polling=FAST)
    assert not list(client.list_nodes(parent=PARENT))


def test_a_preempted_queued_node_is_gone_and_its_request_suspended(
    client: tpu_v2.TpuClient, sim: RunningSim
) -> None:
    create_queued(client, sim, "q")
    sim.preempt("q")
    assert sim.world.settle()
    found = client.get_queued_resource(name=f"{PARENT}/queuedResources/q")
    assert found.state.state == QUEUED.SUSPENDED
    assert found.state.state_initiator == tpu_v2.QueuedResourceState.StateInitiator.SERVICE
    with pytest.raises(exceptions.NotFound):
        client.get_node(name=f"{PARENT}/nodes/q")
    with pytest.raises(exceptions.GoogleAPICallError, match="reset is not supported"):
        client.reset_queued_resource(name=found.name)
    with pytest.raises(exceptions.Conflict):
        create_queued(client, sim, "q")
    client.delete_queued_resource(name=found.name).result(polling=FAST)
    create_queued(client, sim, "q")


def test_deleting_the_node_of_a_queued_resource_suspends_it_in_the_users_name(
    client: tpu_v2.TpuClient, sim: RunningSim
) -> None:
    create_queued(client, sim, "q")
    client.delete_node(name=f"{PARENT}/nodes/q").result(polling=FAST)
    assert sim.world.settle()
    state = client.get_queued_resource(name=f"{PARENT}/queuedResources/q").state
    assert state.state == QUEUED.SUSPENDED
    assert state.state_initiator == tpu_v2.QueuedResourceState.StateInitiator.USER


def test_v2alpha1_by_grpc_is_the_same_cloud_under_other_names(sim: RunningSim) -> None:
    """What the installed library can say of v2alpha1, which has no transport by REST."""
    with grpc_channel(sim, sim.token) as channel:
        client = tpu_v2alpha1.TpuClient(transport=AlphaGrpcTransport(channel=channel))
        params = tpu_v2alpha1.QueuedResource.Tpu.NodeSpec.MultiNodeParams(node_count=2, node_id_prefix="m")
        body = tpu_v2alpha1.Node(
            accelerator_config=tpu_v2alpha1.AcceleratorConfig(type_="V4", topology="2x2x1"),
            runtime_version=VERSION,
            tags=["lab"],
        )
        spec = tpu_v2alpha1.QueuedResource.Tpu.NodeSpec(parent=PARENT, multi_node_params=params, node=body)
        asked = tpu_v2alpha1.QueuedResource(
            tpu=tpu_v2alpha1.QueuedResource.Tpu(node_spec=[spec]),
            guaranteed=tpu_v2alpha1.QueuedResource.Guaranteed(reserved=True),
        )
        sim.world.steering.set_reservation("ours", ZONE, "v4", 32)
        client.create_queued_resource(parent=PARENT, queued_resource_id="q", queued_resource=asked)
        assert sim.world.settle()
        found = client.get_queued_resource(name=f"{PARENT}/queuedResources/q")
        assert found.guaranteed.reserved
        nodes = list(client.list_nodes(parent=PARENT))
    assert [(n.name.rsplit("/", 1)[-1], n.accelerator_type, list(n.tags)) for n in nodes] == [
        ("m-0", "v4-8", ["lab"]),
        ("m-1", "v4-8", ["lab"]),
    ]
    assert all(n.multislice_node for n in nodes)
    plain = rest_client(sim.endpoint, sim.token)
    assert [n.state for n in plain.list_nodes(parent=PARENT)] == [STATE.READY, STATE.READY]


def test_dead_queued_resources_keep_eating_the_quota(tmp_path: Path) -> None:
    with running_sim(tmp_path, quotas={f"{ZONE}/v4": 8}) as sim:
        client = rest_client(sim.endpoint, sim.token)
        create_queued(client, sim, "q", "v4-16")
        sim.preempt("q")
        assert sim.world.settle()
        with pytest.raises(exceptions.TooManyRequests, match=r"Limit: 16 in zone us-central2-b\."):
            client.create_node(parent=PARENT, node_id="a", node=node())
        client.delete_queued_resource(name=f"{PARENT}/queuedResources/q").result(polling=FAST)
        client.create_node(parent=PARENT, node_id="a", node=node()).result(polling=FAST)


def test_operations_are_listed_cancelled_and_deleted(client: tpu_v2.TpuClient) -> None:
    assert client.get_location({"name": PARENT}).location_id == ZONE
    operation = client.create_node(parent=PARENT, node_id="a", node=node())
    operation.result(polling=FAST)
    name = operation.operation.name
    assert [each.name for each in client.list_operations({"name": PARENT}).operations] == [name]
    client.cancel_operation({"name": name})
    client.delete_operation({"name": name})
    with pytest.raises(exceptions.NotFound):
        client.get_operation({"name": name})


def test_reads_change_nothing(client: tpu_v2.TpuClient, sim: RunningSim) -> None:
    client.create_node(parent=PARENT, node_id="a", node=node()).result(polling=FAST)
    create_queued(client, sim, "q")
    before = (sim.world.digest(), len(sim.journal.entries()))
    for parent in (PARENT, EVERYWHERE):
        list(client.list_nodes(parent=parent))
        list(client.list_queued_resources(parent=parent))
    client.get_node(name=f"{PARENT}/nodes/a")
    client.get_queued_resource(name=f"{PARENT}/queuedResources/q")
    client.get_guest_attributes(request={"name": f"{PARENT}/nodes/a"})
    client.list_operations({"name": PARENT})
    list(client.list_accelerator_types(parent=PARENT))
    assert (sim.world.digest(), len(sim.journal.entries())) == before
