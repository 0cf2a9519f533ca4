"""The JSON schemas (draft 2020-12) in `manifests/`, for editors: derived from the shapes that read these files.

They tell keys, types, names and choices; what tables, locks and the rest of a file say is for `tpuctl diff` and
`tpuctl env lock` to tell.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import msgspec

from tpuctl.config.settings import SETTINGS, Setting
from tpuctl.envs.spec import BuiltFrom, EnvironmentSpec, ExtraFile, KernelSettings, PythonArchive, Unmanaged
from tpuctl.fleet.file import FleetRequest, in_file_words
from tpuctl.lib.options import Option, help_of, hints_of, registry, required
from tpuctl.model.cloud import Tier
from tpuctl.model.run_spec import PolicyRequest, RunRequest
from tpuctl.model.slice_spec import SliceRequest
from tpuctl.provenance.manifest import SCHEMA, RunManifest

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_WORDS = ["string", "number", "boolean"]
_FLEET_SHAPES: Mapping[Any, str] = {SliceRequest: "slice", RunRequest: "run", PolicyRequest: "policy"}
_ENVIRONMENT_SHAPES: Mapping[Any, str] = {
    ExtraFile: "file",
    BuiltFrom: "built_from",
    PythonArchive: "archive",
    Unmanaged: "unmanaged",
    KernelSettings: "kernel",
}
_SETTING_TYPES: Mapping[str, Any] = {
    "string": {"type": ["string", "number"]},
    "integer": {"type": "integer"},
    "boolean": {"type": "boolean"},
    "list": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
}


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


def file_help(shape: Any, name: str) -> str:
    """What a key means, in words of a file."""
    text = help_of(shape, name).replace("; repeatable", "").replace("; repeat it to", "; several to")
    return in_file_words(text, shape)


def fleet_schema() -> dict[str, Any]:
    """The schema of a whole `tpuctl.yaml`."""
    writer = SchemaWriter(_FLEET_SHAPES, file_help)
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
            "fleet": writer.object_of(FleetRequest),
        },
        "$defs": writer.definitions(),
    }


def _setting(item: Setting) -> dict[str, Any]:
    found = {"description": item.help, **_SETTING_TYPES[item.type]}
    return {**found, "enum": [str(tier) for tier in Tier]} if item.name == "tier" else found


def environment_schema() -> dict[str, Any]:
    """The schema of `envs/NAME.yaml`."""
    writer = SchemaWriter(_ENVIRONMENT_SHAPES)
    return {
        "$schema": DIALECT,
        "title": "envs/NAME.yaml",
        "description": "An environment of tpuctl: what programs on hosts find, the same on each of them.",
        **writer.object_of(EnvironmentSpec),
        "$defs": writer.definitions(),
    }


def run_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a whole manifest, from the shapes that read it."""
    _, definitions = msgspec.json.schema_components([RunManifest], ref_template="#/$defs/{name}")
    own = definitions.pop("RunManifest")
    return {
        "$schema": DIALECT,
        "$id": "https://tpuctl.dev/schemas/run.schema.json",
        **own,
        "properties": {**own["properties"], "schema": {"const": SCHEMA}},
        "$defs": {name: definitions[name] for name in sorted(definitions)},
    }
