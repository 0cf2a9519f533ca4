"""Moments as Google's APIs write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

_PACIFIC = timezone(timedelta(hours=-7))
"""Where Compute Engine lives, in summer."""


def rfc3339(seconds: float) -> str:
    """Seconds since the epoch as the API writes timestamps."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def pacific(seconds: float) -> str:
    """The same as Compute Engine writes it: `2024-06-17T18:00:40.463-07:00`."""
    return datetime.fromtimestamp(seconds, _PACIFIC).isoformat(timespec="milliseconds")
