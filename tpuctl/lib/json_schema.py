"""JSON schema (draft 2020-12) of what a user may write, derived from the shapes that read it, for editors."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import msgspec

from tpuctl.lib.options import Option, help_of, hints_of, registry, required

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_WORDS = ["string", "number", "boolean"]


class SchemaWriter:
    """Schemas of shapes that refer to each other: `names` are those below `$defs`, `describe` says what a key
    of a shape means."""

    def __init__(self, names: Mapping[Any, str], describe: Callable[[Any, str], str] = help_of) -> None:
        self._names = names
        self._describe = describe

    def definitions(self) -> dict[str, Any]:
        """What stands below `$defs`."""
        return {name: self.object_of(shape) for shape, name in self._names.items()}

    def object_of(self, shape: Any) -> dict[str, Any]:
        """One shape: its keys, and which it needs."""
        hints = hints_of(shape)
        found: dict[str, Any] = {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                name: {**self._described(shape, name), **self._value(hints[name], option)}
                for name, option in registry(shape).items()
            },
        }
        needed = sorted(required(shape))
        return {**found, "required": needed} if needed else found

    def _described(self, shape: Any, name: str) -> dict[str, Any]:
        option = registry(shape)[name]
        found: dict[str, Any] = {"description": self._describe(shape, name)}
        return {**found, "examples": list(option.examples)} if option.examples else found

    def _value(self, hint: Any, option: Option) -> dict[str, Any]:
        origin = typing.get_origin(hint)
        if origin is not None and issubclass(origin, Mapping):
            return self._mapping(typing.get_args(hint)[1], option)
        if origin is tuple:
            inner = typing.get_args(hint)[0]
            word = {"type": _WORDS if option.text else "string"}
            items = {"type": "array", "items": word if inner is str else self._value(inner, Option(""))}
            return {"anyOf": [{"type": "string"}, items]} if option.single else items
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            return {"$ref": f"#/$defs/{self._names[hint]}"}
        if isinstance(hint, type) and issubclass(hint, Enum):
            return {"enum": [str(item.value) for item in hint]}
        names = {str: "string", bool: "boolean", int: "integer", float: "number"}
        found: dict[str, Any] = {"type": _WORDS if option.text else names[hint]}
        if option.minimum is not None:
            found["minimum"] = option.minimum
        return {**found, "pattern": f"^{option.key_pattern}$"} if option.key_pattern else found

    def _mapping(self, inner: Any, option: Option) -> dict[str, Any]:
        found: dict[str, Any] = {"type": ["object", "null"]}
        if option.key_pattern:
            found["propertyNames"] = {"pattern": f"^{option.key_pattern}$"}
        found["additionalProperties"] = (
            {"type": _WORDS if option.text else "string"} if inner is str else self._value(inner, Option(""))
        )
        return found
