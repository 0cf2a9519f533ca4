"""Secret Manager, Resource Manager, Cloud Quotas and Service Usage by gRPC, as their libraries call them.

Each call is answered by the one of REST.

Their libraries are no dependencies of tpuctl's, so fields and numbers of the messages are in a table
(`manifests/tables/grpc_types.json`).
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from tpuctl.model.shipped_files import read_table
from tpuctl.sim.wire.messages import Request, Response
from tpuctl.sim.wire.payload import camel
from tpuctl.sim.wire.status import ApiError, unknown_method

_SECRETS, _PROJECTS = "google.cloud.secretmanager.v1", "google.cloud.resourcemanager.v3"
_QUOTAS, _USAGE = "google.api.cloudquotas.v1", "google.api.serviceusage.v1"
_SERVICES: Mapping[str, str] = {
    "SecretManagerService": _SECRETS,
    "Projects": _PROJECTS,
    "CloudQuotas": _QUOTAS,
    "ServiceUsage": _USAGE,
}
_ROWS: tuple[tuple[str, str, str, str, str], ...] = (
    (f"{_SECRETS}.CreateSecret", "POST", "/v1/{parent}/secrets", "secret", "Secret"),
    (f"{_SECRETS}.AddSecretVersion", "POST", "/v1/{parent}:addVersion", "*", "SecretVersion"),
    (f"{_SECRETS}.GetSecret", "GET", "/v1/{name}", "", "Secret"),
    (f"{_SECRETS}.ListSecrets", "GET", "/v1/{parent}/secrets", "", "ListSecretsResponse"),
    (f"{_SECRETS}.DeleteSecret", "DELETE", "/v1/{name}", "", ""),
    (f"{_SECRETS}.GetSecretVersion", "GET", "/v1/{name}", "", "SecretVersion"),
    (f"{_SECRETS}.ListSecretVersions", "GET", "/v1/{parent}/versions", "", "ListSecretVersionsResponse"),
    (f"{_SECRETS}.AccessSecretVersion", "GET", "/v1/{name}:access", "", "AccessSecretVersionResponse"),
    (f"{_PROJECTS}.GetProject", "GET", "/v3/{name}", "", "Project"),
    (f"{_PROJECTS}.GetIamPolicy", "POST", "/v3/{resource}:getIamPolicy", "*", "Policy"),
    (f"{_PROJECTS}.SetIamPolicy", "POST", "/v3/{resource}:setIamPolicy", "*", "Policy"),
    (
        f"{_PROJECTS}.TestIamPermissions",
        *("POST", "/v3/{resource}:testIamPermissions", "*", "TestIamPermissionsResponse"),
    ),
    (f"{_PROJECTS}.SearchProjects", "GET", "/v3/projects:search", "", "SearchProjectsResponse"),
    (f"{_QUOTAS}.ListQuotaInfos", "GET", "/v1/{parent}/quotaInfos", "", "ListQuotaInfosResponse"),
    (f"{_QUOTAS}.GetQuotaInfo", "GET", "/v1/{name}", "", "QuotaInfo"),
    (
        f"{_QUOTAS}.CreateQuotaPreference",
        *("POST", "/v1/{parent}/quotaPreferences", "quotaPreference", "QuotaPreference"),
    ),
    (f"{_QUOTAS}.GetQuotaPreference", "GET", "/v1/{name}", "", "QuotaPreference"),
    (
        f"{_QUOTAS}.ListQuotaPreferences",
        *("GET", "/v1/{parent}/quotaPreferences", "", "ListQuotaPreferencesResponse"),
    ),
    (f"{_USAGE}.GetService", "GET", "/v1/{name}", "", "Service"),
    (f"{_USAGE}.ListServices", "GET", "/v1/{parent}/services", "", "ListServicesResponse"),
    (f"{_USAGE}.BatchGetServices", "GET", "/v1/{parent}/services:batchGet", "", "BatchGetServicesResponse"),
    (f"{_USAGE}.EnableService", "POST", "/v1/{name}:enable", "*", "EnableServiceResponse"),
    (f"{_USAGE}.DisableService", "POST", "/v1/{name}:disable", "*", "DisableServiceResponse"),
)
"""Package and method, then its `google.api.http` option and what it answers."""
_CALLS = {row[0]: row[1:] for row in _ROWS}
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
def _classes() -> Mapping[str, Any]:
    """By full name, in a pool of their own, where Google's libraries do not meet them."""
    table = json.loads(read_table("grpc_types.json"))
    descriptors = importlib.import_module("google.protobuf.descriptor_pb2")
    pool = importlib.import_module("google.protobuf.descriptor_pool").DescriptorPool()
    factory = importlib.import_module("google.protobuf.message_factory")
    file = descriptors.FileDescriptorProto(name="project.proto", package=_PACKAGE, syntax="proto3")
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


class ProjectCalls:
    """The handlers, by their paths. `admit` says whose a call's credentials are, or raises ApiError; `refuse`
    ends a call with an error; `rest` answers the same calls by REST."""

    def __init__(
        self,
        grpc: Any,
        admit: Callable[[Any], str],
        refuse: Callable[[Any, ApiError], None],
        rest: Callable[[Request], Response],
    ) -> None:
        self._grpc = grpc
        self._admit = admit
        self._refuse = refuse
        self._rest = rest

    def find(self, path: str) -> Any:
        """None where there is no such service."""
        service, _, method = path.removeprefix("/").rpartition("/")
        package, _, name = service.rpartition(".")
        if _SERVICES.get(name) != package:
            return None
        call = f"{package}.{method}"

        def answer(message: Any, context: Any) -> Any:
            try:
                caller = self._admit(context)
                if call not in _CALLS:
                    raise unknown_method(path)
                return self._answer(package, call, message, caller)
            except ApiError as error:
                return self._refuse(context, error)

        known = call in _CALLS
        return self._grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=_classes()[f"{call}Request"].FromString if known else None,
            response_serializer=lambda answer: answer.SerializeToString(),
        )

    def _answer(self, package: str, call: str, message: Any, caller: str) -> Any:
        json_format = importlib.import_module("google.protobuf.json_format")
        verb, template, body, shown = _CALLS[call]
        fields = json_format.MessageToDict(message)
        path = re.sub(r"{(\w+)}", lambda found: str(fields.pop(found[1], "")), template)
        sent = fields if body == "*" else fields.pop(body, {}) if body else None
        query = {} if body == "*" else {key: _texts(value) for key, value in fields.items()}
        text = b"" if sent is None else json.dumps(sent).encode()
        answer = self._rest(Request(verb, path, query, {}, text, caller=caller))
        data = json.loads(bytes(answer.body) or b"{}")
        if not shown:
            return importlib.import_module("google.protobuf.empty_pb2").Empty()
        made = _classes()[f"{package}.{shown}"]()
        if "done" not in data:
            return json_format.ParseDict(data, made, ignore_unknown_fields=True)
        response = {key: value for key, value in data["response"].items() if key != "@type"}
        json_format.ParseDict(response, made, ignore_unknown_fields=True)
        operations = importlib.import_module("google.longrunning.operations_pb2")
        operation = operations.Operation(name=data["name"], done=data["done"])
        operation.response.type_url = data["response"]["@type"]
        operation.response.value = made.SerializeToString()
        return operation


def _texts(value: Any) -> list[str]:
    """A field as the query of a URL has it."""
    return [str(each) for each in (value if isinstance(value, list) else [value])]
