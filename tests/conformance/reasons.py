"""Checks of the conformance table that are known not to be answered as the real API answers, and why."""

from __future__ import annotations

from collections.abc import Mapping

_NO_STORAGE_BY_GRPC = (
    "Cloud Storage is simulated by its JSON and XML APIs; calls by gRPC are refused as not implemented"
)

REASONS: Mapping[tuple[str, str], str] = {
    ("google-cloud-storage by gRPC", what): _NO_STORAGE_BY_GRPC
    for what in (
        "an object's metadata and ranges of it are read",
        "an object is deleted",
        "an object that is not there is NotFound",
    )
}
"""By name of the client and of the check."""
