"""The system parameters by which a client shapes an answer: `fields` (which parts it wants), `alt` and `$alt`
(its form). https://cloud.google.com/storage/docs/json_api#partial-response, and for all APIs
https://cloud.google.com/apis/docs/system-parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tpuctl.sim.wire.messages import Request
from tpuctl.sim.wire.payload import ApiTypes
from tpuctl.sim.wire.status import invalid_argument, unknown_method


class FieldsError(ValueError):
    """A mask that selects nothing that there can be; its text is the part that is wrong."""


Mask = dict[str, "Mask"]
"""Names and what is wanted of each; empty: all of it."""
_TOKEN = re.compile(r"\s*([A-Za-z0-9_$*-]+|[,/()])")
MAX_DEPTH = 20


def parse_fields(text: str) -> Mask:
    """`items(name,size),nextPageToken` or `a/b`. Raises FieldsError for what is neither."""
    tokens: list[str] = []
    at = 0
    while at < len(text.rstrip()):
        found = _TOKEN.match(text, at)
        if found is None:
            raise FieldsError(text)
        tokens.append(found[1])
        at = found.end()
    mask = _parse_list(tokens, text, 0)
    if tokens:
        raise FieldsError(text)
    return mask


def _parse_list(tokens: list[str], text: str, depth: int) -> Mask:
    mask: Mask = {}
    while True:
        path = [_take_name(tokens, text)]
        while tokens and tokens[0] == "/":
            tokens.pop(0)
            path.append(_take_name(tokens, text))
        below: Mask = {}
        if tokens and tokens[0] == "(":
            tokens.pop(0)
            if depth >= MAX_DEPTH:
                raise FieldsError(text)
            below = _parse_list(tokens, text, depth + 1)
            if not tokens or tokens.pop(0) != ")":
                raise FieldsError(text)
        target = mask
        for name in path[:-1]:
            target = target.setdefault(name, {})
        target.setdefault(path[-1], {}).update(below)
        if not tokens or tokens[0] != ",":
            return mask
        tokens.pop(0)


def _take_name(tokens: list[str], text: str) -> str:
    if not tokens or tokens[0] in ",/()":
        raise FieldsError(text)
    return tokens.pop(0)


def select(data: Any, mask: Mapping[str, Any]) -> Any:
    """The wanted parts of `data`."""
    if not mask or ("*" in mask and not mask["*"]):
        return data
    if isinstance(data, list):
        return [select(each, mask) for each in data]
    if not isinstance(data, dict):
        return data
    below = {key: mask.get(key, mask.get("*")) for key in data}
    return {key: select(value, below[key] or {}) for key, value in data.items() if below[key] is not None}


_PAGE = ("kind", "id", "selfLink", "nextPageToken", "unreachable", "unreachables", "prefixes", "warning")
"""What a list says of itself."""
_FORMS = ("json", "media", "proto")


def shaped(
    request: Request, data: Any, types: ApiTypes | None = None, message: str = "", rows: str = ""
) -> Any:
    """`data` as the request wants it. It is a `message` of the types, or a list of those in `rows`; an unknown
    one is not checked. Raises FieldsError, and ApiError for a form that there is not."""
    query = request.query
    form, *options = (query.get("$alt") or query.get("alt") or ["json"])[-1].split(";")
    if form not in _FORMS:
        raise invalid_argument(f"Invalid value '{form}' of alt. It must be one of: {_FORMS}")
    if form != "json":
        raise unknown_method(f"answers with alt={form}")
    if "enum-encoding=int" in options and types is not None:
        data = _with_numbers(types, message, rows, data)
    text = (query.get("fields") or query.get("$fields") or [""])[-1]
    if not text:
        return data
    mask = parse_fields(text)
    if types is not None:
        _check(types, message, rows, mask)
    return select(data, mask)


def _check(types: ApiTypes, message: str, rows: str, mask: Mask, above: str = "") -> None:
    """Raises FieldsError for a path that there cannot be."""
    if not rows and message not in types.messages:
        return
    page = {**dict.fromkeys(_PAGE, "any"), rows: f"[{message}]"}
    fields: Mapping[str, str] = page if rows else types.messages[message]
    for name, below in mask.items():
        kind = "any" if name == "*" else fields.get(name)
        if kind is None:
            raise FieldsError(f"{above}{name}")
        if not kind.startswith("{"):
            _check(types, kind.strip("[]"), "", below, f"{above}{name}/")


def _with_numbers(types: ApiTypes, kind: str, rows: str, value: Any) -> Any:
    """Enums as their numbers."""
    if rows:
        return {**value, rows: _with_numbers(types, f"[{kind}]", "", value[rows])} if rows in value else value
    if isinstance(value, list):
        return [_with_numbers(types, kind.strip("[]"), "", each) for each in value]
    if kind in types.enums:
        return types.enums[kind].get(value, value)
    fields = types.messages.get(kind)
    if fields is None or not isinstance(value, dict):
        return value
    return {key: _with_numbers(types, fields.get(key, "any"), "", each) for key, each in value.items()}
