"""When two runs are the same."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import Any

from msgspec import Struct
from msgspec.structs import fields, replace

from tpuctl.lib.codec import to_data
from tpuctl.model.run_spec import RunSpec

_fields = cache(fields)
"""Each call reads all annotations again, and a sweep compares a thousand runs."""


def fingerprint(spec: RunSpec, bundle: str) -> str:
    """Digest of everything that makes two specs the same run.

    What was left at its default is left out, so that a new kind of setting changes no old fingerprint.
    """
    written = {**_written(replace(spec, environment=None)), "bundle": bundle}
    if spec.environment is not None:
        written |= {"environment_name": spec.environment.name, "environment": spec.environment.spec}
    return hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()


def _written(value: Struct) -> dict[str, Any]:
    """The fields of a Struct that differ from their defaults, as plain data."""
    return {
        item.encode_name: _written(found) if isinstance(found, Struct) else to_data(found)
        for item in _fields(type(value))
        if (found := getattr(value, item.name)) != item.default
    }
