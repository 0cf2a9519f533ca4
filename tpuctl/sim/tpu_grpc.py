"""The Cloud TPU API by gRPC: google.cloud.tpu.v2 and v2alpha1, operations and locations.

The method table is written out, and a test compares it with what the installed client libraries call. Google's
libraries are imported when the door opens, not before.
"""

from __future__ import annotations

import hmac
import importlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tpuctl.sim.kernel import Json
from tpuctl.sim.nodes import camel
from tpuctl.sim.status import ApiError, Code, DroppedConnectionError
from tpuctl.sim.world import World

COMMON_METHODS = {
    "CreateNode": ("CreateNodeRequest", "Operation"),
    "CreateQueuedResource": ("CreateQueuedResourceRequest", "Operation"),
    "DeleteNode": ("DeleteNodeRequest", "Operation"),
    "DeleteQueuedResource": ("DeleteQueuedResourceRequest", "Operation"),
    "GenerateServiceIdentity": ("GenerateServiceIdentityRequest", "GenerateServiceIdentityResponse"),
    "GetAcceleratorType": ("GetAcceleratorTypeRequest", "AcceleratorType"),
    "GetGuestAttributes": ("GetGuestAttributesRequest", "GetGuestAttributesResponse"),
    "GetNode": ("GetNodeRequest", "Node"),
    "GetQueuedResource": ("GetQueuedResourceRequest", "QueuedResource"),
    "GetRuntimeVersion": ("GetRuntimeVersionRequest", "RuntimeVersion"),
    "ListAcceleratorTypes": ("ListAcceleratorTypesRequest", "ListAcceleratorTypesResponse"),
    "ListNodes": ("ListNodesRequest", "ListNodesResponse"),
    "ListQueuedResources": ("ListQueuedResourcesRequest", "ListQueuedResourcesResponse"),
    "ListRuntimeVersions": ("ListRuntimeVersionsRequest", "ListRuntimeVersionsResponse"),
    "ResetQueuedResource": ("ResetQueuedResourceRequest", "Operation"),
    "StartNode": ("StartNodeRequest", "Operation"),
    "StopNode": ("StopNodeRequest", "Operation"),
    "UpdateNode": ("UpdateNodeRequest", "Operation"),
}
ALPHA_METHODS = {
    "ListReservations": ("ListReservationsRequest", "ListReservationsResponse"),
    "PerformMaintenance": ("PerformMaintenanceRequest", "Operation"),
    "PerformMaintenanceQueuedResource": ("PerformMaintenanceQueuedResourceRequest", "Operation"),
    "SimulateMaintenanceEvent": ("SimulateMaintenanceEventRequest", "Operation"),
}
OPERATIONS_METHODS = {
    "CancelOperation": ("CancelOperationRequest", "Empty"),
    "DeleteOperation": ("DeleteOperationRequest", "Empty"),
    "GetOperation": ("GetOperationRequest", "Operation"),
    "ListOperations": ("ListOperationsRequest", "ListOperationsResponse"),
    "WaitOperation": ("WaitOperationRequest", "Operation"),
}
LOCATIONS_METHODS = {
    "GetLocation": ("GetLocationRequest", "Location"),
    "ListLocations": ("ListLocationsRequest", "ListLocationsResponse"),
}
SERVICES = {
    "google.cloud.tpu.v2.Tpu": COMMON_METHODS,
    "google.cloud.tpu.v2alpha1.Tpu": {**COMMON_METHODS, **ALPHA_METHODS},
    "google.longrunning.Operations": OPERATIONS_METHODS,
    "google.cloud.location.Locations": LOCATIONS_METHODS,
}
"""Service → method → names of the request and response messages (google-cloud-tpu 1.28)."""


def _messages(service: str) -> Callable[[str], Any]:
    """How to find the protobuf class of a name that a service's methods use."""
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


def to_request(message: dict[str, Any]) -> Json:
    """A decoded request in the form that REST bodies have: the field mask as a string, names in camelCase."""
    if "updateMask" in message:
        message["updateMask"] = ",".join(camel(each) for each in str(message["updateMask"]).split(","))
    return message


class TpuGrpcDoor:
    """Serves on 127.0.0.1 until `close`; every call needs the metadata `authorization: Bearer TOKEN`."""

    def __init__(self, world: World, token: str, *, port: int = 0, workers: int = 16) -> None:
        import grpc

        self._grpc = grpc
        self._world = world
        self._token = f"Bearer {token}".encode()
        self._json = importlib.import_module("google.protobuf.json_format")
        self._handlers = {
            f"/{service}/{method}": self._handler(service, method, *names)
            for service, methods in SERVICES.items()
            for method, names in methods.items()
        }
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="sim-grpc")
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
        handlers = self._handlers

        class Dispatcher(self._grpc.GenericRpcHandler):  # type: ignore[name-defined, misc]
            def service(self, details: Any) -> Any:
                return handlers.get(details.method)

        return Dispatcher()

    def _handler(self, service: str, method: str, request_name: str, response_name: str) -> Any:
        find = _messages(service)
        request_class, response_class = find(request_name), find(response_name)
        version = "v2alpha1" if ".v2alpha1." in service else "v2"

        def answer(message: Any, context: Any) -> Any:
            try:
                self._admit(context)
                request = to_request(self._json.MessageToDict(message))
                data = self._world.call(method, request, version)
                return self._json.ParseDict(data, response_class(), ignore_unknown_fields=True)
            except ApiError as error:
                context.abort(self._grpc.StatusCode[error.code.name], error.message)
            except DroppedConnectionError:
                context.abort(self._grpc.StatusCode.UNAVAILABLE, "Socket closed")

        return self._grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=request_class.FromString,
            response_serializer=response_class.SerializeToString,
        )

    def _admit(self, context: Any) -> None:
        given = dict(context.invocation_metadata()).get("authorization", "")
        if not hmac.compare_digest(str(given).encode(), self._token):
            raise ApiError(Code.UNAUTHENTICATED, "Request had invalid authentication credentials.")
