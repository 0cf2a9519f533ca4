"""What a user asked to run, checked and complete, and when two requests are the same run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpuctl.lib.codec import to_data
from tpuctl.model.records import Policy


@dataclass(frozen=True)
class RunRequest:
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
    asked = {**_said(dataclasses.replace(request, environment=None)), "bundle": bundle}
    if environment is not None:
        asked["environment"] = environment
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def _said(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults, as plain data."""
    return {
        item.name: _said(found) if dataclasses.is_dataclass(found) else to_data(found)
        for item in dataclasses.fields(value)
        if (found := getattr(value, item.name)) != item.default
    }
