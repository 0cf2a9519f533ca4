"""Secret Manager, Resource Manager, Cloud Quotas and Service Usage by gRPC, as their libraries call them.

Each call is answered by the one of REST.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tpuctl.sim.wire.grpc_types import message_classes
from tpuctl.sim.wire.messages import Request, Response
from tpuctl.sim.wire.status import unknown_method

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


class ProjectCalls:
    """Answers calls by `rest`, as it answers the same ones of REST."""

    def __init__(self, rest: Callable[[Request], Response]) -> None:
        self._rest = rest

    def find(self, path: str) -> tuple[Any, Callable[[Any, str], Any]] | None:
        """The class of a method's requests, and what answers one of a caller; None where there is no such
        service."""
        service, _, method = path.removeprefix("/").rpartition("/")
        package, _, name = service.rpartition(".")
        if _SERVICES.get(name) != package:
            return None
        call = f"{package}.{method}"
        if call not in _CALLS:
            empty = importlib.import_module("google.protobuf.empty_pb2").Empty
            return empty, partial(_refuse, path)
        return message_classes()[f"{call}Request"], partial(self._answer, package, call)

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
        made = message_classes()[f"{package}.{shown}"]()
        if "done" not in data:
            return json_format.ParseDict(data, made, ignore_unknown_fields=True)
        response = {key: value for key, value in data["response"].items() if key != "@type"}
        json_format.ParseDict(response, made, ignore_unknown_fields=True)
        operations = importlib.import_module("google.longrunning.operations_pb2")
        operation = operations.Operation(name=data["name"], done=data["done"])
        operation.response.type_url = data["response"]["@type"]
        operation.response.value = made.SerializeToString()
        return operation


def _refuse(path: str, _message: Any, _caller: str) -> Any:
    raise unknown_method(path)


def _texts(value: Any) -> list[str]:
    """A field as the query of a URL has it."""
    return [str(each) for each in (value if isinstance(value, list) else [value])]
