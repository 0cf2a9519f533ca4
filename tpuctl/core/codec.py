"""Frozen dataclasses to JSON documents and back, so that records have one definition.

Unknown keys in a document are kept out silently only when they come from a newer minor version of the same
record: a reader must survive its successor. Missing keys take the field's default.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


def to_data(value: Any) -> Any:
    """Plain JSON-able data of a dataclass, enum, tuple, mapping or scalar."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_data(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple | frozenset):
        return [to_data(item) for item in value]
    return value


def from_data(cls: type[T], data: Mapping[str, Any]) -> T:
    """The dataclass `cls` from what `to_data` made of it.

    Raises KeyError for a missing field without default and ValueError for an unknown enum value.
    """
    hints = _hints(typing.cast(Any, cls))
    values: dict[str, Any] = {}
    for item in dataclasses.fields(typing.cast(Any, cls)):
        if item.name in data:
            values[item.name] = _decode(hints[item.name], data[item.name])
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            raise KeyError(f"{cls.__name__}.{item.name}")
    return cls(**values)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _decode(hint: Any, value: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        inner = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        return None if value is None else _decode(inner[0], value)
    if origin is tuple:
        return tuple(_decode(typing.get_args(hint)[0], item) for item in value)
    if origin is not None and issubclass(origin, Mapping):
        return {key: _decode(typing.get_args(hint)[1], item) for key, item in value.items()}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_data(hint, value)
    return value
