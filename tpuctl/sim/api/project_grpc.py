"""Secret Manager, Resource Manager, Cloud Quotas and Service Usage by gRPC, as their libraries call them.

Each call is answered by the one of REST.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from tpuctl.sim.wire.calls import Call, project_calls
from tpuctl.sim.wire.grpc_types import message_classes
from tpuctl.sim.wire.messages import Request, Response
from tpuctl.sim.wire.status import unknown_method

CALLS = {f"/{each.service}/{each.rpc}": each for each in project_calls() if each.rpc}
"""By path."""
_SERVICES = frozenset(each.service for each in project_calls())


class ProjectCalls:
    """Answers calls by `rest`, as it answers the same ones of REST."""

    def __init__(self, rest: Callable[[Request], Response]) -> None:
        self._rest = rest

    def find(self, path: str) -> tuple[Any, Callable[[Any, str], Any]] | None:
        """The class of a method's requests, and what answers one of a caller; None where there is no such
        service."""
        service, _, _ = path.removeprefix("/").rpartition("/")
        if service not in _SERVICES:
            return None
        if path not in CALLS:
            return _empty(), partial(_refuse, path)
        call = CALLS[path]
        return message_classes()[f"{package_of(call)}.{call.rpc}Request"], partial(self._answer, call)

    def _answer(self, call: Call, message: Any, caller: str) -> Any:
        json_format = importlib.import_module("google.protobuf.json_format")
        fields = json_format.MessageToDict(message)
        path = re.sub(r"{(\w+)=[^}]+}", lambda found: str(fields.pop(found[1], "")), call.template)
        sent = fields if call.body == "*" else fields.pop(call.body, {}) if call.body else None
        query = {} if call.body == "*" else {key: _texts(value) for key, value in fields.items()}
        text = b"" if sent is None else json.dumps(sent).encode()
        answer = self._rest(Request(call.verb, path, query, {}, text, caller=caller))
        data = json.loads(bytes(answer.body) or b"{}")
        if call.answer == "Empty":
            return _empty()()
        made = message_classes()[f"{package_of(call)}.{call.answer}"]()
        if "done" not in data:
            return json_format.ParseDict(data, made, ignore_unknown_fields=True)
        response = {key: value for key, value in data["response"].items() if key != "@type"}
        json_format.ParseDict(response, made, ignore_unknown_fields=True)
        operations = importlib.import_module("google.longrunning.operations_pb2")
        operation = operations.Operation(name=data["name"], done=data["done"])
        operation.response.type_url = data["response"]["@type"]
        operation.response.value = made.SerializeToString()
        return operation


def package_of(call: Call) -> str:
    """The package of its messages."""
    return call.service.rpartition(".")[0]


def _empty() -> Any:
    return importlib.import_module("google.protobuf.empty_pb2").Empty


def _refuse(path: str, _message: Any, _caller: str) -> Any:
    raise unknown_method(path)


def _texts(value: Any) -> list[str]:
    """A field as the query of a URL has it."""
    return [str(each) for each in (value if isinstance(value, list) else [value])]
