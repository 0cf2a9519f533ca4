"""Checks of the conformance table that are known not to be answered as the real API answers, and why."""

from __future__ import annotations

from collections.abc import Mapping

_NO_STORAGE_BY_GRPC = (
    "Cloud Storage is simulated by its JSON and XML APIs; calls by gRPC are refused as not implemented, as no "
    "other client of this table makes any unless it is told to"
)
_NO_OS_LOGIN = (
    "there is no OS Login service; hosts where it is asked for take no keys of the metadata, as real ones"
)

REASONS: Mapping[tuple[str, str], str] = {
    **{
        ("google-cloud-storage by gRPC", what): _NO_STORAGE_BY_GRPC
        for what in (
            "an object's metadata and ranges of it are read",
            "an object is deleted",
            "an object that is not there is NotFound",
        )
    },
    ("spotax", "the name to log in with, from OS Login"): _NO_OS_LOGIN,
}
"""By name of the client and of the check."""
