"""The JSON schema of an environment file, for editors. What the lock and the table of versions say is for
`tpuctl env lock` to tell."""

from __future__ import annotations

from typing import Any

from tpuctl.envs.spec import BuiltFrom, EnvironmentSpec, ExtraFile, Kernel, PythonArchive, Unmanaged
from tpuctl.lib.json_schema import DIALECT, SchemaWriter

_NAMES = {
    ExtraFile: "file",
    BuiltFrom: "built_from",
    PythonArchive: "archive",
    Unmanaged: "unmanaged",
    Kernel: "kernel",
}


def environment_schema() -> dict[str, Any]:
    """The schema of `envs/NAME.yaml`."""
    writer = SchemaWriter(_NAMES)
    return {
        "$schema": DIALECT,
        "title": "envs/NAME.yaml",
        "description": "An environment of tpuctl: what programs on hosts find, the same on each of them.",
        **writer.object_of(EnvironmentSpec),
        "$defs": writer.definitions(),
    }
