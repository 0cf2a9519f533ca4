"""Messages of Google's gRPC APIs whose libraries are no dependencies of tpuctl's: fields and numbers are in a
table (`manifests/tables/grpc_types.json`).

That all are of one package here is not seen on the wire.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from tpuctl.model.shipped_files import read_table
from tpuctl.sim.wire.payload import camel

_SCALARS = {
    **{"double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9},
    **{"bytes": 12, "uint32": 13},
}
_MESSAGE, _ENUM, _OPTIONAL, _REPEATED = 11, 14, 1, 3
_PACKAGE = "tpuctl.sim"
_KNOWN = ("any", "duration", "empty", "field_mask", "timestamp", "wrappers")
"""Files of google.protobuf that fields have types of."""


def _flat(name: str) -> str:
    return name.replace(".", "_")


@cache
def message_classes() -> Mapping[str, Any]:
    """By full name, in a pool of their own, where Google's libraries do not meet them."""
    table = json.loads(read_table("grpc_types.json"))
    descriptors = importlib.import_module("google.protobuf.descriptor_pb2")
    pool = importlib.import_module("google.protobuf.descriptor_pool").DescriptorPool()
    factory = importlib.import_module("google.protobuf.message_factory")
    file = descriptors.FileDescriptorProto(name="tpuctl_sim.proto", package=_PACKAGE, syntax="proto3")
    for known in _KNOWN:
        module = importlib.import_module(f"google.protobuf.{known}_pb2")
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
        file.dependency.append(module.DESCRIPTOR.name)
    for name, values in table["enums"].items():
        # Values of enums share the names of what is around them: each has a message around it.
        enum = file.message_type.add(name=_flat(name)).enum_type.add(name="E")
        for value, number in values.items():
            enum.value.add(name=value, number=number)
    for name, fields in table["messages"].items():
        message = file.message_type.add(name=_flat(name))
        for field, text in fields.items():
            number, _, kind = text.partition(" ")
            _add_field(message, field, int(number), kind)
    pool.Add(file)
    return {
        name: factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{_flat(name)}"))
        for name in table["messages"]
    }


def _add_field(message: Any, name: str, number: int, kind: str) -> None:
    if kind.startswith("{"):
        entry = message.nested_type.add(name=f"{camel(f'x_{name}')[1:]}Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", 1, "string")
        _add_field(entry, "value", 2, kind[1:-1])
        made = message.field.add(name=name, number=number, label=_REPEATED, type=_MESSAGE)
        made.type_name = entry.name
        return
    inner = kind.strip("[]")
    made = message.field.add(name=name, number=number, label=_REPEATED if inner != kind else _OPTIONAL)
    if inner in _SCALARS:
        made.type = _SCALARS[inner]
    elif inner.startswith("enum:"):
        made.type, made.type_name = _ENUM, f".{_PACKAGE}.{_flat(inner[5:])}.E"
    else:
        made.type = _MESSAGE
        made.type_name = f".{inner}" if inner.startswith("google.protobuf.") else f".{_PACKAGE}.{_flat(inner)}"
