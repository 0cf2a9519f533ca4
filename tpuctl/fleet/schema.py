"""The JSON schema of a fleet file (draft 2020-12), derived from the shapes that read it, for editors.

It tells keys, types, names and choices; what the tables, the grants and the rest of the file say is for
`tpuctl diff` to tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpuctl.config.settings import SETTINGS, Setting
from tpuctl.fleet.file import FleetRequest, file_help
from tpuctl.lib.json_schema import DIALECT, SchemaWriter
from tpuctl.model.cloud import Tier
from tpuctl.model.run_spec import PolicyRequest, RunRequest
from tpuctl.model.slice_spec import SliceRequest

_NAMES: Mapping[Any, str] = {SliceRequest: "slice", RunRequest: "run", PolicyRequest: "policy"}
_SETTING_TYPES: Mapping[str, Any] = {
    "string": {"type": ["string", "number"]},
    "integer": {"type": "integer"},
    "boolean": {"type": "boolean"},
    "list": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
}


def fleet_schema() -> dict[str, Any]:
    """The schema of a whole `tpuctl.yaml`."""
    writer = SchemaWriter(_NAMES, file_help)
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
