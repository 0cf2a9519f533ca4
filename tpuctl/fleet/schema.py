"""The JSON schema of a fleet file (draft 2020-12), derived from the shapes that read it, for editors.

It tells keys, types, names and choices; what the tables, the grants and the rest of the file say is for
`tpuctl diff` to tell.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from tpuctl.config.settings import SETTINGS, Setting
from tpuctl.fleet.file import FleetRequest, file_help
from tpuctl.lib.options import Option, hints_of, registry, required
from tpuctl.model.cloud import Tier
from tpuctl.model.run_spec import PolicyRequest, RunRequest
from tpuctl.model.slice_spec import SliceRequest

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_NAMES: Mapping[Any, str] = {SliceRequest: "slice", RunRequest: "run", PolicyRequest: "policy"}
_WORDS = ["string", "number", "boolean"]
_SETTING_TYPES: Mapping[str, Any] = {
    "string": {"type": ["string", "number"]},
    "integer": {"type": "integer"},
    "boolean": {"type": "boolean"},
    "list": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
}


def fleet_schema() -> dict[str, Any]:
    """The schema of a whole `tpuctl.yaml`."""
    return {
        "$schema": DIALECT,
        "title": "tpuctl.yaml",
        "description": "Settings of tpuctl, and the fleet that `tpuctl apply` brings about.",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "settings": {
                "description": "Settings; flags and TPUCTL_ variables rank above them.",
                "type": ["object", "null"],
                "additionalProperties": False,
                "properties": {item.name: _setting(item) for item in SETTINGS},
            },
            "fleet": _object(FleetRequest),
        },
        "$defs": {name: _object(shape) for shape, name in _NAMES.items()},
    }


def _setting(item: Setting) -> dict[str, Any]:
    found = {"description": item.help, **_SETTING_TYPES[item.type]}
    return {**found, "enum": [str(tier) for tier in Tier]} if item.name == "tier" else found


def _object(shape: Any) -> dict[str, Any]:
    hints = hints_of(shape)
    found: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            name: {**_described(shape, name), **_value(hints[name], option)}
            for name, option in registry(shape).items()
        },
    }
    needed = sorted(required(shape))
    return {**found, "required": needed} if needed else found


def _described(shape: Any, name: str) -> dict[str, Any]:
    option = registry(shape)[name]
    found: dict[str, Any] = {"description": file_help(shape, name)}
    return {**found, "examples": list(option.examples)} if option.examples else found


def _value(hint: Any, option: Option) -> dict[str, Any]:
    origin = typing.get_origin(hint)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(typing.get_args(hint)[1], option)
    if origin is tuple:
        items = {"type": "array", "items": {"type": _WORDS if option.text else "string"}}
        return {"anyOf": [{"type": "string"}, items]} if option.single else items
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return {"$ref": f"#/$defs/{_NAMES[hint]}"}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [str(item.value) for item in hint]}
    names = {str: "string", bool: "boolean", int: "integer", float: "number"}
    found: dict[str, Any] = {"type": _WORDS if option.text else names[hint]}
    if option.minimum is not None:
        found["minimum"] = option.minimum
    return {**found, "pattern": f"^{option.key_pattern}$"} if option.key_pattern else found


def _mapping(inner: Any, option: Option) -> dict[str, Any]:
    found: dict[str, Any] = {"type": ["object", "null"]}
    if option.key_pattern:
        found["propertyNames"] = {"pattern": f"^{option.key_pattern}$"}
    found["additionalProperties"] = (
        {"type": _WORDS if option.text else "string"} if inner is str else _value(inner, Option(""))
    )
    return found
