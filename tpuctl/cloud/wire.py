"""Google's JSON, read so that nothing in it loses the rest.

Answers hold what this program has never heard of: fields and enum values of later revisions, and `Any` messages
of types that no library here knows. Protobuf's own JSON parser refuses a whole answer for one of the latter
(`Can not find message descriptor by type_url`), after the call took effect. Here everything unknown is passed
over, what is missing or of another type counts as its default, and only an answer without what it is for (whose
is it, of which name) is given up: as TransientError, so that whoever asked looks again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tpuctl.errors import TransientError

Json = Mapping[str, Any]


def text(value: Any) -> str:
    """A string, or the digits of an int64, which JSON may show either way."""
    if value is None or type(value) is str:  # nearly all: of a thousand nodes sixty thousand are asked for
        return value or ""
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def integer(value: Any, default: int = 0) -> int:
    """A number, also one that comes as a string, as every int64 does."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return default


def moment(value: Any) -> float:
    """Seconds since the epoch of a timestamp in whatever zone; 0 for what is none."""
    try:
        return datetime.fromisoformat(text(value)).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def message(value: Any) -> Json:
    """A message; an empty one for anything else."""
    if value is None or type(value) is dict:  # as `text`: what is asked of `Mapping` is asked in Python
        return value or {}
    return value if isinstance(value, Mapping) else {}


def messages(value: Any) -> tuple[Json, ...]:
    """The messages of a repeated field, in order; what is no message comes as an empty one."""
    return tuple(map(message, value)) if isinstance(value, list) else ()


def first(value: Any) -> Json:
    """The first message of a repeated field; an empty one where there is none."""
    return next(iter(messages(value)), {})


def texts(value: Any) -> tuple[str, ...]:
    """The strings of a repeated field."""
    return tuple(map(text, value)) if isinstance(value, list) else ()


def strings(value: Any) -> dict[str, str]:
    """A map of strings."""
    return {str(key): text(each) for key, each in message(value).items()}


def full_name(answer: Json, what: str) -> str:
    """The resource's name, without which nobody knows what an answer is about. Raises TransientError."""
    name = text(answer.get("name"))
    if not name:
        raise TransientError(f"could not {what}: the answer names no resource")
    return name
