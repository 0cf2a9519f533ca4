"""The one call of Storage Control v2 that gcsfuse and gcsfs make: of what kind is a bucket?

See googleapis/googleapis, google/storage/control/v2/storage_control.proto. Its library is no dependency of
tpuctl's, so the two messages are written out.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

from tpuctl.sim.gcs.wire import GcsError
from tpuctl.sim.wire.status import ApiError, Code

GET_STORAGE_LAYOUT = "/google.storage.control.v2.StorageControl/GetStorageLayout"
_NAME = re.compile(r"projects/[^/]+/buckets/([^/]+)/storageLayout")
_STRING, _BOOL, _MESSAGE = 9, 8, 11
_PACKAGE = "google.storage.control.v2"
_MESSAGES = {
    "GetStorageLayoutRequest": (("name", 1, _STRING), ("prefix", 2, _STRING), ("request_id", 3, _STRING)),
    "HierarchicalNamespace": (("enabled", 1, _BOOL),),
    "StorageLayout": (
        ("name", 1, _STRING),
        ("location", 2, _STRING),
        ("location_type", 3, _STRING),
        ("hierarchical_namespace", 5, _MESSAGE),
    ),
}
"""Fields with their numbers and `google.protobuf.FieldDescriptorProto.Type`. That HierarchicalNamespace is a
message of its own here is not seen on the wire."""


def _classes() -> dict[str, Any]:
    """In a pool of their own, where Google's library does not meet them."""
    descriptors = importlib.import_module("google.protobuf.descriptor_pb2")
    pool = importlib.import_module("google.protobuf.descriptor_pool").DescriptorPool()
    factory = importlib.import_module("google.protobuf.message_factory")
    file = descriptors.FileDescriptorProto(name="storage_control.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            made = message.field.add(name=field, number=number, type=kind, label=1)
            if kind == _MESSAGE:
                made.type_name = f".{_PACKAGE}.HierarchicalNamespace"
    pool.Add(file)
    return {
        name: factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


def layout_handler(
    grpc: Any, admit: Callable[[Any], None], location_of: Callable[[str], tuple[str, str]]
) -> Any:
    """Answers GetStorageLayout. `admit` checks a call's credentials and raises ApiError; `location_of` gives a
    bucket's location and its type, and raises GcsError."""
    classes = _classes()

    def answer(request: Any, context: Any) -> Any:
        found = _NAME.fullmatch(request.name)
        try:
            admit(context)
            if found is None:
                raise ApiError(Code.INVALID_ARGUMENT, f'Invalid resource name "{request.name}".')
            location, kind = location_of(found[1])
        except ApiError as error:
            context.abort(grpc.StatusCode[error.code.name], error.message)
        except GcsError as error:
            context.abort(grpc.StatusCode.NOT_FOUND, error.message)
        layout = classes["StorageLayout"](name=request.name, location=location, location_type=kind)
        layout.hierarchical_namespace.SetInParent()
        return layout

    return grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=classes["GetStorageLayoutRequest"].FromString,
        response_serializer=classes["StorageLayout"].SerializeToString,
    )
