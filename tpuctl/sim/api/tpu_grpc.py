"""The Cloud TPU API by gRPC: google.cloud.tpu.v2 and v2alpha1, operations and locations.

The methods are those of REST, and a test compares them with what the installed client libraries call. Google's
libraries are imported when somebody calls, not before.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tpuctl.sim.api.project_grpc import ProjectCalls
from tpuctl.sim.gcs.grpc import ControlCalls
from tpuctl.sim.gcs.server import Storage
from tpuctl.sim.wire.calls import Call, tpu_calls
from tpuctl.sim.wire.messages import Request, Response
from tpuctl.sim.wire.payload import camel
from tpuctl.sim.wire.status import ApiError, Code, DroppedConnectionError, Json
from tpuctl.sim.world.iam import caller_of
from tpuctl.sim.world.operations import METADATA_TYPE
from tpuctl.sim.world.world import World

_SHARED = {
    "operations": "google.longrunning.Operations",
    "locations": "google.cloud.location.Locations",
}
"""Collections whose calls are in a service that all APIs have."""


def _services_of(call: Call) -> list[str]:
    collection = call.id.partition(".")[0]
    if collection in _SHARED and call.rpc != "GenerateServiceIdentity":
        return [_SHARED[collection]]
    return [f"google.cloud.tpu.{each}.Tpu" for each in call.versions if each != "v1" and call.answer]


METHODS = {
    f"/{service}/{call.rpc}": (service, call.rpc, (f"{call.rpc}Request", call.answer))
    for call in tpu_calls()
    for service in _services_of(call)
}
"""Path → service, method, and names of the request and response messages (google-cloud-tpu 1.28)."""
Answer = Callable[[Any, str], Any]
"""What answers a message of a caller."""
_DETAILS_KEY = "grpc-status-details-bin"
"""Where clients look for a `google.rpc.Status`: https://google.aip.dev/193."""

_SAME_FIELDS = "type.googleapis.com/google.cloud.tpu.v2.OperationMetadata"


def _messages(service: str) -> Callable[[str], Any]:
    """How to find the protobuf class of a name that a service's methods use."""
    importlib.import_module("google.rpc.error_details_pb2")  # the types of details, for Any
    operations = importlib.import_module("google.longrunning.operations_pb2")
    empty = importlib.import_module("google.protobuf.empty_pb2")
    locations = importlib.import_module("google.cloud.location.locations_pb2")

    def find(name: str) -> Any:
        if name == "Empty":
            return empty.Empty
        if name == "Operation" or service == "google.longrunning.Operations":
            return getattr(operations, name)
        if service == "google.cloud.location.Locations":
            return getattr(locations, name)
        module = "tpu_" + service.split(".")[3]
        return getattr(importlib.import_module(f"google.cloud.{module}"), name).pb()

    return find


def request_classes() -> dict[str, Any]:
    """The protobuf class of the request of every method, by the method's path."""
    return {path: _messages(service)(names[0]) for path, (service, _, names) in METHODS.items()}


def to_request(message: dict[str, Any], fields: Collection[str]) -> Json:
    """A decoded request in the form that REST calls have: the field mask as a string, names in camelCase, and
    names of resources even where there are none, which no URL leaves out."""
    if "updateMask" in message:
        message["updateMask"] = ",".join(camel(each) for each in str(message["updateMask"]).split(","))
    for name in ("name", "parent"):
        if name in fields:
            message.setdefault(name, "")
    if "updateMask" in fields:
        message.setdefault("node", {}).setdefault("name", "")
    return message


def _packed_status(error: ApiError) -> bytes:
    """The error as a whole, with the details that its REST form has, too."""
    json_format = importlib.import_module("google.protobuf.json_format")
    status = importlib.import_module("google.rpc.status_pb2").Status()
    return bytes(json_format.ParseDict(error.to_status(), status).SerializeToString())


def _to_message(data: Json, message: Any) -> Any:
    """`data` as a message of its type.

    The metadata of an operation is of a type without a library here; google.cloud.tpu has one with the same
    fields and numbers (google/cloud/common/operation_metadata.proto), which packs it.
    """
    json_format = importlib.import_module("google.protobuf.json_format")
    importlib.import_module("google.cloud.tpu_v2")  # its OperationMetadata, for Any
    for operation in (data, *data.get("operations", ())):
        if "tpu.v2alpha1." in str((operation.get("response") or {}).get("@type")):
            importlib.import_module("google.cloud.tpu_v2alpha1")
        if (operation.get("metadata") or {}).get("@type") == METADATA_TYPE:
            operation["metadata"]["@type"] = _SAME_FIELDS
    json_format.ParseDict(data, message, ignore_unknown_fields=True)
    for found in (message, *getattr(message, "operations", ())):
        if getattr(getattr(found, "metadata", None), "type_url", "") == _SAME_FIELDS:
            found.metadata.type_url = METADATA_TYPE
    return message


class TpuGrpcApi:
    """Serves on 127.0.0.1 until `close`; every call needs the metadata `authorization: Bearer TOKEN`."""

    def __init__(
        self,
        world: World,
        token: str,
        *,
        port: int = 0,
        storage: Storage,
        project: Callable[[Request], Response],
    ) -> None:
        """`storage`: for who asks Storage Control; `project` answers the APIs of the project by REST."""
        import grpc

        self._grpc = grpc
        self._world = world
        self._token = token
        self._finders = (self._find_rpc, ControlCalls(storage).find, ProjectCalls(project).find)
        self._handlers: dict[str, Any] = {}
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="sim-grpc")
        self._server = grpc.server(self._pool, options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((self._dispatcher(),))
        self.port = int(self._server.add_insecure_port(f"127.0.0.1:{port}"))

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self._server.start()

    def close(self) -> None:
        self._server.stop(grace=None).wait()
        self._pool.shutdown(wait=True)

    def _dispatcher(self) -> Any:
        find = self._find_handler

        class Dispatcher(self._grpc.GenericRpcHandler):  # type: ignore[name-defined, misc]
            def service(self, details: Any) -> Any:
                return find(details.method)

        return Dispatcher()

    def _find_handler(self, path: str) -> Any:
        """The handler of a method, made when it is first called; None where there is no such method."""
        if path not in self._handlers:
            found = next((found for find in self._finders if (found := find(path)) is not None), None)
            self._handlers[path] = None if found is None else self._handler(*found)
        return self._handlers[path]

    def _handler(self, request_class: Any, call: Answer) -> Any:
        def answer(message: Any, context: Any) -> Any:
            try:
                return call(message, self._admit(context))
            except ApiError as error:
                context.set_trailing_metadata(((_DETAILS_KEY, _packed_status(error)),))
                context.abort(self._grpc.StatusCode[error.code.name], error.message)
            except DroppedConnectionError:
                context.abort(self._grpc.StatusCode.UNAVAILABLE, "Socket closed")

        return self._grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=request_class.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )

    def _find_rpc(self, path: str) -> tuple[Any, Answer] | None:
        if path not in METHODS:
            return None
        service, method, names = METHODS[path]
        request_class, response_class = map(_messages(service), names)
        json_format = importlib.import_module("google.protobuf.json_format")
        version = "v2alpha1" if ".v2alpha1." in service else "v2"
        fields = {each.json_name for each in request_class.DESCRIPTOR.fields}

        def answer(message: Any, _caller: str) -> Any:
            request = to_request(json_format.MessageToDict(message), fields)
            return _to_message(self._world.call(method, request, version), response_class())

        return request_class, answer

    def _admit(self, context: Any) -> str:
        """Who calls."""
        given = str(dict(context.invocation_metadata()).get("authorization", ""))
        caller = caller_of(self._token, given.removeprefix("Bearer ")) if given.startswith("Bearer ") else None
        if caller is not None:
            return caller
        raise ApiError(Code.UNAUTHENTICATED, "Request had invalid authentication credentials.")
