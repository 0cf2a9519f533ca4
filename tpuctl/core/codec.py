"""Frozen dataclasses to JSON documents and back, so that records have one definition.

Unknown keys in a document are kept out silently only when they come from a newer minor version of the same
record: a reader must survive its successor. Missing keys take the field's default.

How a class is read is worked out once: a pass over a fleet reads every record, and type hints are slow to ask.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")

_Decode = Callable[[Any], Any]


def to_data(value: Any) -> Any:
    """Plain JSON-able data of a dataclass, enum, tuple, mapping or scalar."""
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple | frozenset):
        return [to_data(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: to_data(getattr(value, name)) for name in _names(type(value))}
    return value


def from_data(cls: type[T], data: Mapping[str, Any]) -> T:
    """The dataclass `cls` from what `to_data` made of it.

    Raises KeyError for a missing field without default and ValueError for an unknown enum value.
    """
    found: T = _decoder(typing.cast(Any, cls))(data)
    return found


@cache
def _names(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


@cache
def _decoder(hint: Any) -> _Decode:
    """What makes a value of type `hint` from its data."""
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        inner = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        return _optional(_decoder(inner[0]))
    if origin is tuple:
        return _many(_decoder(typing.get_args(hint)[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _by_key(_decoder(typing.get_args(hint)[1]))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _dataclass_decoder(hint)
    return _as_is


def _as_is(value: Any) -> Any:
    return value


def _optional(inner: _Decode) -> _Decode:
    return lambda value: None if value is None else inner(value)


def _many(inner: _Decode) -> _Decode:
    return tuple if inner is _as_is else lambda values: tuple([inner(value) for value in values])


def _by_key(inner: _Decode) -> _Decode:
    if inner is _as_is:
        return dict
    return lambda values: {key: inner(value) for key, value in values.items()}


def _dataclass_decoder(cls: type) -> _Decode:
    hints = typing.get_type_hints(cls)
    decoders = {field.name: _field_decoder(hints[field.name], cls) for field in _fields(cls)}
    plain = tuple(name for name, inner in decoders.items() if inner is _as_is)
    made = tuple((name, inner) for name, inner in decoders.items() if inner is not _as_is)
    required = tuple(field.name for field in _fields(cls) if _required(field))
    defaults = {f.name: f.default for f in _fields(cls) if f.default is not dataclasses.MISSING}
    factories = tuple((f.name, f.default_factory) for f in _fields(cls) if callable(f.default_factory))
    by_hand = hasattr(cls, "__post_init__") or hasattr(cls, "__slots__")

    def decode(data: Mapping[str, Any]) -> Any:
        for name in required:
            if name not in data:
                raise KeyError(f"{cls.__name__}.{name}")
        values = {name: data[name] for name in plain if name in data}
        for name, inner in made:
            if name in data:
                values[name] = inner(data[name])
        if by_hand:
            return cls(**values)
        for name, factory in factories:
            if name not in values:
                values[name] = factory()
        # A frozen class sets its fields one by one and slowly; its dictionary takes them all at once.
        found: Any = object.__new__(cls)
        found.__dict__.update(defaults, **values)
        return found

    return decode


def _field_decoder(hint: Any, cls: type) -> _Decode:
    """Found when it is first used where a class holds itself."""
    return (lambda value: _decoder(hint)(value)) if _mentions(hint, cls) else _decoder(hint)


def _mentions(hint: Any, cls: type) -> bool:
    return hint is cls or any(_mentions(arg, cls) for arg in typing.get_args(hint))


def _fields(cls: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cls)


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
