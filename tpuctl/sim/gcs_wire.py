"""The forms of the GCS JSON API: errors, preconditions, byte ranges and names in paths."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from tpuctl.sim.messages import Request, Response, json_response

REASONS: Mapping[int, str] = {
    304: "notModified",
    400: "invalid",
    403: "retentionPolicyNotMet",
    404: "notFound",
    405: "methodNotAllowed",
    409: "conflict",
    410: "gone",
    412: "conditionNotMet",
    416: "requestedRangeNotSatisfiable",
    501: "notImplemented",
}


class GcsError(Exception):
    """An answer of the API other than success."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    def response(self) -> Response:
        """Google's JSON error body; a 304 has none (RFC 9110)."""
        if self.status == 304:
            return Response(304)
        entry = {"message": self.message, "domain": "global", "reason": REASONS[self.status]}
        body = {"code": self.status, "message": self.message, "errors": [entry]}
        return json_response({"error": body}, self.status)


def parameter(request: Request, name: str) -> str | None:
    values = request.query.get(name)
    return values[0] if values else None


def whole_number(text: str | None, name: str) -> int | None:
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise GcsError(400, f"Invalid value for {name}: {text}") from None


def timestamp(seconds: float) -> str:
    """RFC 3339 with milliseconds, as in `timeCreated`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True)
class Preconditions:
    """`ifGenerationMatch` and its relatives; `generation` selects one version of the object."""

    generation_match: int | None = None
    generation_not_match: int | None = None
    metageneration_match: int | None = None
    metageneration_not_match: int | None = None
    generation: int | None = None

    @classmethod
    def of(cls, request: Request, infix: str = "") -> Preconditions:
        """Those of a request; `infix` "Source" for the source of a copy."""

        def number(name: str) -> int | None:
            return whole_number(parameter(request, name), name)

        return cls(
            generation_match=number(f"if{infix}GenerationMatch"),
            generation_not_match=number(f"if{infix}GenerationNotMatch"),
            metageneration_match=number(f"if{infix}MetagenerationMatch"),
            metageneration_not_match=number(f"if{infix}MetagenerationNotMatch"),
            generation=number("sourceGeneration" if infix else "generation"),
        )

    def check(self, current: Mapping[str, Any] | None, *, reading: bool = False) -> None:
        """412 when not met, or 304 for a read that asked for something newer. A missing object has
        generation 0 and no metageneration."""
        generation = int(current["generation"]) if current and "generation" in current else 0
        metageneration = int(current["metageneration"]) if current else None
        failed = GcsError(412, "At least one of the pre-conditions you specified did not hold.")
        if self.generation_match is not None and self.generation_match != generation:
            raise failed
        if self.metageneration_match is not None and self.metageneration_match != metageneration:
            raise failed
        same = self.generation_not_match is not None and self.generation_not_match == generation
        same_meta = (
            self.metageneration_not_match is not None and self.metageneration_not_match == metageneration
        )
        if same or same_meta:
            raise GcsError(304, "Not modified") if reading else failed


@dataclass(frozen=True)
class ByteRange:
    """Offsets within an object; `stop` is exclusive."""

    start: int
    stop: int

    def header(self, size: int) -> str:
        return f"bytes {self.start}-{self.stop - 1}/{size}"


def parse_range(header: str | None, size: int) -> ByteRange | None:
    """The asked range, None for all of it (also for forms we do not know, RFC 9110 §14.2); 416 outside."""
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", header.replace(" ", "")) if header else None
    if found is None or found.group(0) == "bytes=-":
        return None
    first, last = found.groups()
    if first == "":
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(size, int(last) + 1) if last else size
    if start >= stop:
        raise GcsError(416, f"The requested range cannot be satisfied: {header} of {size} bytes")
    return ByteRange(start, stop)


@dataclass(frozen=True)
class ObjectName:
    """`bucket` and the object's `name`, decoded."""

    bucket: str
    name: str

    @classmethod
    def decode(cls, bucket: str, name: str) -> ObjectName:
        return cls(unquote(bucket), unquote(name))
