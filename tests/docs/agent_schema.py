"""The schema by which the agent checks its requests, made from the Structs that the client has of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from tpuctl.hosts.requests import AgentRequest

HEAD = '''"""What each verb is asked, by field: its kind and, where it may be absent, what it is then.

Made from `tpuctl/hosts/requests.py` by `make docs`; `verbs.check_request` reads it.
"""

REQUESTS: dict = {
'''
LINE_LENGTH = 112
KINDS = {
    msgspec.inspect.StrType: "str",
    msgspec.inspect.IntType: "int",
    msgspec.inspect.FloatType: "float",
    msgspec.inspect.BoolType: "bool",
    msgspec.inspect.EnumType: "str",
    msgspec.inspect.AnyType: "any",
}


def render_agent_schema() -> str:
    """All verbs in the order of their names."""
    requests = sorted(AgentRequest.__subclasses__(), key=lambda each: each.verb)
    return HEAD + "".join(line for each in requests for line in _verb(each)) + "}\n"


def _verb(request: type) -> Iterator[str]:
    info = msgspec.inspect.type_info(request)
    assert isinstance(info, msgspec.inspect.StructType)
    rows = [_line(json.dumps(each.name), _row(each)) for each in info.fields]
    name = json.dumps(request.verb)  # type: ignore[attr-defined]
    yield "".join([f"    {name}: {{\n", *rows, "    },\n"]) if rows else f"    {name}: {{}},\n"


def _line(name: str, row: tuple[Any, ...]) -> str:
    line = f"        {name}: {_literal(row)},\n"
    if len(line) <= LINE_LENGTH + 1:
        return line
    return f"        {name}: (\n" + "".join(f"            {_literal(each)},\n" for each in row) + "        ),\n"


def _row(field: msgspec.inspect.Field) -> tuple[Any, ...]:
    kind = _kind(field.type)
    if field.required:
        return (kind,)
    default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return kind, msgspec.to_builtins(default)


def _kind(found: msgspec.inspect.Type) -> Any:
    inspect = msgspec.inspect
    if isinstance(found, inspect.UnionType):
        [one] = [each for each in found.types if not isinstance(each, inspect.NoneType)]
        return ("maybe", _kind(one))
    if isinstance(found, inspect.VarTupleType):
        return ("list", _kind(found.item_type))
    if isinstance(found, inspect.DictType):
        return ("map", _kind(found.value_type))
    if isinstance(found, inspect.StructType):
        return ("object", {each.encode_name: (_kind(each.type),) for each in found.fields})
    return KINDS[type(found)]


def _literal(value: Any) -> str:
    """As ruff writes it."""
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(each)}" for key, each in value.items()) + "}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_literal, value))}{',' if len(value) == 1 else ''})"
    return repr(value)
