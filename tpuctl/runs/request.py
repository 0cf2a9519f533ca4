"""What a user asked to run, checked and complete, and when two requests are the same run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import fields, replace

from tpuctl.lib.codec import to_data
from tpuctl.model.records import Policy


class RunRequest(Struct, frozen=True):
    """What a user asked to run. `workers` None means all."""

    slice_name: str
    argv: tuple[str, ...]
    cwd: str
    policy: Policy
    variables: Mapping[str, str]
    secrets: Mapping[str, str]
    workers: tuple[int, ...] | None = None
    environment_name: str | None = None
    environment: bytes | None = None
    checkpoint_dir: str | None = None
    """A `gs://` prefix; with `checkpoint_per_run` each run gets its own directory below it."""
    checkpoint_per_run: bool = False
    no_checkpoint: bool = False
    any_region: bool = False
    """The slice may be hunted in zones away from the checkpoints."""
    owns_slice: bool = False
    keep_slice: bool = False

    def checkpoint_place(self, run_id: str) -> str | None:
        """Where the run of this id has its checkpoints."""
        if self.checkpoint_dir is None or not self.checkpoint_per_run:
            return self.checkpoint_dir
        return f"{self.checkpoint_dir.rstrip('/')}/{run_id}"


def fingerprint(request: RunRequest, bundle: str) -> str:
    """Digest of everything that makes two requests the same run.

    What was left at its default is left out, so that a new kind of setting changes no old fingerprint.
    """
    environment = None if request.environment is None else hashlib.sha256(request.environment).hexdigest()
    asked = {**_said(replace(request, environment=None)), "bundle": bundle}
    if environment is not None:
        asked["environment"] = environment
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def _said(value: Struct) -> dict[str, Any]:
    """The fields of a Struct that differ from their defaults, as plain data."""
    return {
        item.name: _said(found) if isinstance(found, Struct) else to_data(found)
        for item in fields(value)
        if (found := getattr(value, item.name)) != item.default
    }
