"""Who gets through the simulator's APIs, and what the APIs say to those who do not."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import requests
from google.auth.credentials import AnonymousCredentials
from google.cloud import tpu_v2alpha1
from google.cloud.tpu_v2.services.tpu import transports
from google.cloud.tpu_v2.services.tpu.transports import rest_base
from google.cloud.tpu_v2alpha1.services.tpu import transports as alpha_transports

from tests.support.sim import RunningSim, running_sim
from tpuctl.sim.api.tpu_grpc import METHODS
from tpuctl.sim.wire.calls import tpu_calls

NODES = "/v2/projects/sim-project/locations/us-central2-b/nodes"
EVERY_API = [
    NODES,
    "/v2alpha1/projects/sim-project/locations",
    "/compute/v1/projects/sim-project",
    "/v1/projects/sim-project/services",
    "/v1beta/projects/sim-project/locations/global/services/tpu.googleapis.com/quotaInfos",
    "/v3/projects/sim-project",
    "/storage/v1/b/sim-bucket",
    "/upload/storage/v1/b/sim-bucket/o",
    "/download/storage/v1/b/sim-bucket/o/x",
    "/_sim/state",
    "/_sim/shutdown",
    "/",
]


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSim]:
    with running_sim(tmp_path_factory.mktemp("d")) as running:
        yield running


def ask(
    sim: RunningSim, path: str, *, token: str | None = None, verb: str = "GET", body: Any = None, **headers: str
) -> tuple[int, Any]:
    """Status and decoded body of one request; the simulator's token unless another is given."""
    connection = http.client.HTTPConnection("127.0.0.1", int(sim.endpoint.rsplit(":", 1)[1]), timeout=30)
    try:
        sent = {"authorization": f"Bearer {sim.token if token is None else token}", **headers}
        text = body if isinstance(body, str) else None if body is None else json.dumps(body)
        connection.request(verb, path, body=text, headers=sent)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()


@pytest.mark.parametrize("path", EVERY_API)
@pytest.mark.parametrize("token", ["", "wrong", "Ünïcode"])
def test_no_door_opens_without_the_token(sim: RunningSim, path: str, token: str) -> None:
    status, body = ask(sim, path, token=token.encode().decode("latin-1"))
    reason = "authError" if "storage" in path else "UNAUTHENTICATED"
    assert (status, reason) == (
        401,
        body["error"].get("status", body["error"].get("errors", [{}])[0].get("reason")),
    )
    assert not sim.simulator.stopped.is_set()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", ""])
def test_a_foreign_host_header_is_refused_even_with_the_token(sim: RunningSim, host: str) -> None:
    status, body = ask(sim, NODES, host=host)
    assert (status, body["error"]["status"]) == (403, "PERMISSION_DENIED")


def test_localhost_is_as_good_as_the_address(sim: RunningSim) -> None:
    port = sim.endpoint.rsplit(":", 1)[1]
    assert ask(sim, NODES, host=f"localhost:{port}")[0] == 200


def test_the_token_in_the_path_opens_storage_only(sim: RunningSim) -> None:
    assert ask(sim, f"/_t/{sim.token}/storage/v1/b/sim-bucket", token="")[0] == 200
    assert ask(sim, "/_t/wrong/storage/v1/b/sim-bucket", token="")[0] == 401
    assert ask(sim, f"/_t/{sim.token}{NODES}", token="")[0] == 401
    assert ask(sim, f"/_t/{sim.token}/_sim/state", token="")[0] == 401


def test_calls_that_do_not_exist_here_are_refused_and_change_nothing(sim: RunningSim) -> None:
    before = sim.world.digest()
    for verb, path in [
        ("POST", f"{NODES}/a:reimage"),
        ("POST", "/compute/v1/projects/sim-project/zones/us-central2-b/instances/a/simulateMaintenanceEvent"),
        ("PUT", NODES),
        ("POST", "/v1/projects/sim-project/locations/us-central2-b/nodes"),
    ]:
        status, body = ask(sim, path, verb=verb, body={})
        assert status == 400
        assert "does not implement" in body["error"]["message"]
    assert sim.world.digest() == before


class _Recorder(grpc.Channel):  # type: ignore[misc]
    """A channel that remembers which methods a client library can call, and with which messages."""

    def __init__(self) -> None:
        self.calls: dict[str, tuple[Any, Any]] = {}

    def unary_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any
    ) -> Any:
        self.calls[method] = (request_serializer, response_deserializer)
        return lambda *args, **kwargs: None

    unary_stream = stream_unary = stream_stream = unary_unary

    def subscribe(self, callback: Any, try_to_connect: bool = False) -> None:
        """Part of the interface; nobody waits for connectivity here."""

    def unsubscribe(self, callback: Any) -> None:
        """See `subscribe`."""

    def close(self) -> None:
        """Nothing is open."""


def library_methods(transport_class: Any) -> dict[str, tuple[str | None, str]]:
    """Method path → (request, response) as the installed library has them; Google's shared services use plain
    protobuf serializers, which do not tell their request class."""
    recorder = _Recorder()
    transport = transport_class(channel=recorder, credentials=AnonymousCredentials())
    # grpc.intercept_channel wraps lazily; the library's own attributes must point at the recorder.
    transport._logged_channel = transport._grpc_channel = recorder
    transport._stubs = {}
    for name in dir(transport_class):
        if isinstance(getattr(transport_class, name), property):
            getattr(transport, name)
    return {
        path: (getattr(getattr(ask_with, "__self__", None), "__name__", None), answer.__self__.__name__)
        if hasattr(answer, "__self__")
        else (None, "Empty")
        for path, (ask_with, answer) in recorder.calls.items()
    }


@pytest.mark.parametrize("library", [transports.TpuGrpcTransport, alpha_transports.TpuGrpcTransport])
def test_the_grpc_table_is_that_of_the_installed_library(library: Any) -> None:
    ours = {path: names for path, (_, _, names) in METHODS.items()}
    for path, (request, response) in library_methods(library).items():
        assert ours[path][1] == response, path
        assert request in (None, ours[path][0]), path


def test_the_rest_table_is_that_of_the_installed_library() -> None:
    base = rest_base._BaseTpuRestTransport
    theirs = {
        name.removeprefix("_Base"): (option["method"].upper(), option["uri"].removeprefix("/v2/"))
        for name in dir(base)
        if hasattr(getattr(base, name), "_get_http_options")
        for option in getattr(base, name)._get_http_options()
    }
    ours = [each for each in tpu_calls() if "v2" in each.versions and each.http]
    assert {each.rpc: (each.verb, each.template) for each in ours} == theirs


def test_v2alpha1_is_served_by_grpc_with_its_own_types(sim: RunningSim) -> None:
    metadata = [("authorization", f"Bearer {sim.token}")]
    parent = "projects/sim-project/locations/us-central2-b"
    with grpc.insecure_channel(sim.simulator.grpc_endpoint) as channel:
        client = tpu_v2alpha1.TpuClient(transport=alpha_transports.TpuGrpcTransport(channel=channel))
        node = tpu_v2alpha1.Node(accelerator_type="v4-8", runtime_version="tpu-ubuntu2204-base")
        request = tpu_v2alpha1.CreateNodeRequest(parent=parent, node_id="alpha", node=node, request_id="r-1")
        first = client.create_node(request=request, metadata=metadata)
        again = client.create_node(request=request, metadata=metadata)
        assert sim.world.settle()
        assert again.operation.name == first.operation.name
        found = client.get_node(name=f"{parent}/nodes/alpha", metadata=metadata)
        assert found.state == tpu_v2alpha1.Node.State.READY
    sim.world.reset()


def field(number: int, text: str) -> bytes:
    """A string of at most 127 bytes as protobuf writes it."""
    return bytes([number << 3 | 2, len(text)]) + text.encode()


def ask_layout(sim: RunningSim, bucket: str, token: str) -> bytes:
    """The bytes are those of google/storage/control/v2/storage_control.proto."""
    request = field(1, f"projects/_/buckets/{bucket}/storageLayout")
    with grpc.insecure_channel(sim.simulator.grpc_endpoint) as channel:
        call = channel.unary_unary("/google.storage.control.v2.StorageControl/GetStorageLayout")
        return call(request, metadata=[("authorization", f"Bearer {token}")], timeout=30)


def test_folders_are_listed_by_grpc_in_pages(sim: RunningSim) -> None:
    headers = {"Authorization": f"Bearer {sim.token}"}
    tree = {
        "name": "grpc-tree",
        "hierarchicalNamespace": {"enabled": True},
        "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}},
    }
    url = f"{sim.endpoint}/storage/v1/b"
    requests.post(url, params={"project": "p"}, json=tree, headers=headers, timeout=5).raise_for_status()
    for name in ("a/", "b/"):
        requests.post(
            f"{url}/grpc-tree/folders", json={"name": name}, headers=headers, timeout=5
        ).raise_for_status()

    def ask(token: str) -> bytes:
        request = field(1, "projects/_/buckets/grpc-tree") + bytes([2 << 3, 1]) + field(3, token)
        with grpc.insecure_channel(sim.simulator.grpc_endpoint) as channel:
            call = channel.unary_unary("/google.storage.control.v2.StorageControl/ListFolders")
            return bytes(call(request, metadata=[("authorization", f"Bearer {sim.token}")], timeout=30))

    first, second = ask(""), ask("a/")
    assert field(1, "projects/_/buckets/grpc-tree/folders/a/") in first
    assert first.endswith(field(2, "a/"))
    assert field(1, "projects/_/buckets/grpc-tree/folders/b/") in second
    assert b"folders/a/" not in second
    assert not second.endswith(field(2, "b/"))


def test_who_asks_by_grpc_of_what_kind_a_bucket_is_is_told(sim: RunningSim) -> None:
    """gcsfuse does not mount without."""
    name = field(1, "projects/_/buckets/sim-bucket/storageLayout")
    flat = bytes([5 << 3 | 2, 0])
    assert ask_layout(sim, "sim-bucket", sim.token) == name + field(2, "US") + field(3, "multi-region") + flat
    for bucket, token, code in (
        ("no-such-bucket", sim.token, "NOT_FOUND"),
        ("sim-bucket", "x", "UNAUTHENTICATED"),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            ask_layout(sim, bucket, token)
        assert refused.value.code().name == code
