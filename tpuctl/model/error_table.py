"""What an error of the Cloud TPU API means.

HTTP 429 and gRPC code 8 have four meanings (no capacity, a quota, a quota of a helper resource, requests per
minute), which only the text tells apart. The texts are a table, `manifests/tables/errors.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from tpuctl.errors import (
    ConflictError,
    DeniedError,
    InvalidRequestError,
    NoCapacityError,
    NotFoundError,
    QuotaError,
    RateLimitedError,
    TpuctlError,
    TransientError,
)


class ErrorKind(StrEnum):
    """What a caller does about it."""

    STOCKOUT = "stockout"
    QUOTA = "quota"
    SIDE_QUOTA = "side-quota"
    RATE_LIMIT = "rate-limit"
    DENIED = "denied"
    NOT_FOUND = "not-found"
    CONFLICT = "conflict"
    INVALID = "invalid"
    TRANSIENT = "transient"


ERRORS: Mapping[ErrorKind, type[TpuctlError]] = {
    ErrorKind.STOCKOUT: NoCapacityError,
    ErrorKind.QUOTA: QuotaError,
    ErrorKind.SIDE_QUOTA: QuotaError,
    ErrorKind.RATE_LIMIT: RateLimitedError,
    ErrorKind.DENIED: DeniedError,
    ErrorKind.NOT_FOUND: NotFoundError,
    ErrorKind.CONFLICT: ConflictError,
    ErrorKind.INVALID: InvalidRequestError,
    ErrorKind.TRANSIENT: TransientError,
}
"""What a kind is raised as."""


class MessageRule(Struct, frozen=True):
    """A pattern searched in the message, ignoring case; the first match of the table wins."""

    pattern: re.Pattern[str]
    kind: ErrorKind
    hint: str | None
    example: str


class ErrorTable(Struct, frozen=True):
    """The rules in order."""

    rules: tuple[MessageRule, ...]

    def match(self, message: str) -> MessageRule | None:
        return next((rule for rule in self.rules if rule.pattern.search(message)), None)


# Names of google.rpc.Code (googleapis/google/rpc/code.proto).
_RPC_NAMES: Mapping[int, str] = {
    1: "CANCELLED",
    2: "UNKNOWN",
    3: "INVALID_ARGUMENT",
    4: "DEADLINE_EXCEEDED",
    5: "NOT_FOUND",
    6: "ALREADY_EXISTS",
    7: "PERMISSION_DENIED",
    8: "RESOURCE_EXHAUSTED",
    9: "FAILED_PRECONDITION",
    10: "ABORTED",
    11: "OUT_OF_RANGE",
    12: "UNIMPLEMENTED",
    13: "INTERNAL",
    14: "UNAVAILABLE",
    15: "DATA_LOSS",
    16: "UNAUTHENTICATED",
}

_BY_STATUS: Mapping[str, ErrorKind] = {
    "CANCELLED": ErrorKind.TRANSIENT,
    "UNKNOWN": ErrorKind.TRANSIENT,
    "INVALID_ARGUMENT": ErrorKind.INVALID,
    "DEADLINE_EXCEEDED": ErrorKind.TRANSIENT,
    "NOT_FOUND": ErrorKind.NOT_FOUND,
    "ALREADY_EXISTS": ErrorKind.CONFLICT,
    "PERMISSION_DENIED": ErrorKind.DENIED,
    "RESOURCE_EXHAUSTED": ErrorKind.STOCKOUT,
    "FAILED_PRECONDITION": ErrorKind.INVALID,
    "ABORTED": ErrorKind.TRANSIENT,
    "OUT_OF_RANGE": ErrorKind.INVALID,
    "UNIMPLEMENTED": ErrorKind.INVALID,
    "INTERNAL": ErrorKind.TRANSIENT,
    "UNAVAILABLE": ErrorKind.TRANSIENT,
    "DATA_LOSS": ErrorKind.TRANSIENT,
    "UNAUTHENTICATED": ErrorKind.DENIED,
}

_BY_HTTP: Mapping[int, ErrorKind] = {
    400: ErrorKind.INVALID,
    401: ErrorKind.DENIED,
    403: ErrorKind.DENIED,
    404: ErrorKind.NOT_FOUND,
    409: ErrorKind.CONFLICT,
    412: ErrorKind.CONFLICT,
    408: ErrorKind.TRANSIENT,
    429: ErrorKind.STOCKOUT,
}

_FINAL = frozenset({ErrorKind.NOT_FOUND, ErrorKind.CONFLICT})
"""Where the status alone is proof and no text may change it: deletes and adoption rely on it."""


def parse_error_table(data: Mapping[str, Any]) -> ErrorTable:
    """The table from the content of `manifests/tables/errors.yaml`."""
    return ErrorTable(
        tuple(
            MessageRule(
                re.compile(row["regex"], re.IGNORECASE), ErrorKind(row["kind"]), row.get("hint"), row["example"]
            )
            for row in data["messages"]
        )
    )


def classify(
    table: ErrorTable,
    *,
    http_status: int | None = None,
    rpc_code: int | None = None,
    status: str | None = None,
    message: str = "",
    details: Iterable[Mapping[str, Any]] = (),
    queued: bool = False,
) -> ErrorKind:
    """By status where that is proof, then by details, then by the table of messages, then by status alone.

    `status` is a name of google.rpc.Code; `details` are google.rpc details as JSON (`@type`, `reason`, …);
    `queued` says that the error is the reason a queued resource failed, where code 13 means that no capacity
    was found (`an internal error has occurred`).
    """
    base = _base_kind(http_status, rpc_code, status)
    if base is not None and base in _FINAL:
        return base
    rule = table.match(message)
    kind = _by_details(details) or (rule.kind if rule else None)
    if kind is not None:
        return kind
    if queued and (rpc_code == 13 or status == "INTERNAL"):
        return ErrorKind.STOCKOUT
    return base or ErrorKind.TRANSIENT


def find_hint(table: ErrorTable, message: str) -> str | None:
    """What the table advises for a message, if it knows it and has advice."""
    rule = table.match(message)
    return rule.hint if rule else None


def _base_kind(http_status: int | None, rpc_code: int | None, status: str | None) -> ErrorKind | None:
    name = status or (_RPC_NAMES.get(rpc_code) if rpc_code is not None else None)
    if name is not None and name in _BY_STATUS:
        return _BY_STATUS[name]
    if http_status is None:
        return None
    if http_status >= 500:
        return ErrorKind.TRANSIENT
    return _BY_HTTP.get(http_status, ErrorKind.INVALID if 400 <= http_status < 500 else None)


def _by_details(details: Iterable[Mapping[str, Any]]) -> ErrorKind | None:
    for detail in details:
        reason = str(detail.get("reason", ""))
        if reason in ("RATE_LIMIT_EXCEEDED", "rateLimitExceeded", "userRateLimitExceeded"):
            return ErrorKind.RATE_LIMIT
        if str(detail.get("@type", "")).endswith("google.rpc.QuotaFailure"):
            return ErrorKind.QUOTA
        if reason in ("LOCATION_POLICY_VIOLATED", "IAM_PERMISSION_DENIED", "SERVICE_DISABLED"):
            return ErrorKind.DENIED
    return None
