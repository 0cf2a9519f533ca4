"""Frozen Structs to JSON documents and back, so that records have one definition.

Unknown keys in a document are passed over: a reader must survive its successor. Missing keys take the field's
default. A value of another kind than the field's is refused: a record is either as it was meant or damaged.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def to_data(value: Any) -> Any:
    """Plain JSON-able data of a Struct, enum, tuple, mapping or scalar."""
    return msgspec.to_builtins(value, str_keys=True)


def from_data(cls: type[T], data: Mapping[str, Any]) -> T:
    """The Struct `cls` from what `to_data` made of it.

    Raises ValueError, which names the field that is missing, of another kind, or of an unknown enum value.
    """
    return msgspec.convert(data, cls)


def from_json(cls: type[T], text: str) -> T:
    """As `from_data`, straight from JSON: without the plain data in between it takes a third of the time."""
    return msgspec.json.decode(text, type=cls)


def parse_json_parts(text: str) -> dict[str, msgspec.Raw] | None:
    """The values of a JSON object, each as its text; None where that is not to be had."""
    try:
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeError):
        return None


def parse_json_texts(content: str) -> dict[str, str]:
    """The values of a JSON object, each as its text. Raises ValueError for what is none."""
    parts = parse_json_parts(content)
    if parts is not None:
        return {name: bytes(part).decode() for name, part in parts.items()}
    found = parse_json(content)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return {name: json.dumps(value, ensure_ascii=False) for name, value in found.items()}


def parse_json(content: str | bytes) -> Any:
    """What JSON from outside says: a file, a bucket, a host. Raises ValueError, for what is nested without end
    as well."""
    return _parse(_loads_json, content)


def _loads_json(content: str | bytes) -> Any:
    """Stores hold ten thousand documents, which msgspec reads in half the time. What it refuses, such as NaN,
    the standard library takes, or says where it is wrong."""
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeError):
        return json.loads(content)


def parse_toml(content: str) -> Any:
    """As `parse_json`."""
    return _parse(tomllib.loads, content)


def _parse(loads: Callable[[Any], Any], content: str | bytes) -> Any:
    try:
        return loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
