"""The `fields` parameter: which parts of an answer a client wants
(https://cloud.google.com/storage/docs/json_api#partial-response)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tpuctl.sim.gcs.wire import GcsError

Mask = dict[str, "Mask"]
"""Names and what is wanted of each; empty: all of it."""
_TOKEN = re.compile(r"\s*([A-Za-z0-9_$*-]+|[,/()])")
MAX_DEPTH = 20


def parse_fields(text: str) -> Mask:
    """`items(name,size),nextPageToken` or `a/b`. 400 for what is neither."""
    tokens: list[str] = []
    at = 0
    while at < len(text.rstrip()):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _invalid(text)
        tokens.append(found[1])
        at = found.end()
    mask = _parse_list(tokens, text, 0)
    if tokens:
        raise _invalid(text)
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
                raise _invalid(text)
            below = _parse_list(tokens, text, depth + 1)
            if not tokens or tokens.pop(0) != ")":
                raise _invalid(text)
        target = mask
        for name in path[:-1]:
            target = target.setdefault(name, {})
        target.setdefault(path[-1], {}).update(below)
        if not tokens or tokens[0] != ",":
            return mask
        tokens.pop(0)


def _take_name(tokens: list[str], text: str) -> str:
    if not tokens or tokens[0] in ",/()":
        raise _invalid(text)
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


def _invalid(text: str) -> GcsError:
    return GcsError(
        400, f"Invalid field selection {text}", reason="invalidParameter", place=("parameter", "fields")
    )
