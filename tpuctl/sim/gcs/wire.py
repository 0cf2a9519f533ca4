"""The forms of the GCS APIs: errors, preconditions, byte ranges and names in paths."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote_to_bytes
from xml.sax.saxutils import escape

from tpuctl.sim.wire.messages import Request, Response, json_response
from tpuctl.sim.wire.status import HTTP_STATUS, ApiError, Code, unknown_method

Data = dict[str, Any]

REASONS: Mapping[int, str] = {
    304: "notModified",
    400: "invalid",
    401: "required",
    403: "forbidden",
    404: "notFound",
    405: "methodNotAllowed",
    409: "conflict",
    410: "gone",
    412: "conditionNotMet",
    416: "requestedRangeNotSatisfiable",
    429: "rateLimitExceeded",
    500: "internalError",
    503: "backendError",
}
XML_CODES: Mapping[int, str] = {
    400: "InvalidArgument",
    401: "AuthenticationRequired",
    403: "AccessDenied",
    404: "NoSuchKey",
    405: "MethodNotAllowed",
    409: "Conflict",
    412: "PreconditionFailed",
    416: "InvalidRange",
    429: "SlowDown",
    500: "InternalError",
    503: "ServiceUnavailable",
}
"""https://cloud.google.com/storage/docs/xml-api/reference-status"""
XML_MESSAGES: Mapping[str, str] = {
    "NoSuchKey": "The specified key does not exist.",
    "AccessDenied": "Access denied.",
    "PreconditionFailed": "At least one of the pre-conditions you specified did not hold.",
}


_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")


class GcsError(Exception):
    """An answer of the API other than success. `reason` is the JSON API's, `code` the XML API's word."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        reason: str = "",
        code: str = "",
        place: tuple[str, str] | None = None,
        details: tuple[Mapping[str, Any], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason or REASONS.get(status, "backendError")
        self._code = code or XML_CODES.get(status, "InternalError")
        self._place = place
        self._details = details

    @classmethod
    def of(cls, error: ApiError) -> GcsError:
        """The same refusal as Cloud Storage would word it."""
        return cls(HTTP_STATUS[error.code], error.message, details=error.details)

    def response(self) -> Response:
        """Google's JSON error body; a 304 has none (RFC 9110)."""
        if self.status == 304:
            return Response(304)
        entry = {"message": self.message, "domain": "global", "reason": self.reason}
        if self._place:
            entry["locationType"], entry["location"] = self._place
        body: Data = {"code": self.status, "message": self.message, "errors": [entry]}
        if self._details:
            status = next(code.name for code in Code if HTTP_STATUS[code] == self.status)
            body |= {"status": status, "details": [dict(each) for each in self._details]}
        return json_response({"error": body}, self.status)

    def xml_response(self) -> Response:
        if self.status == 304:
            return Response(304)
        general = XML_MESSAGES.get(self._code, self.message)
        body = f"<Code>{self._code}</Code><Message>{escape(general)}</Message>"
        if general != self.message:
            body += f"<Details>{escape(self.message)}</Details>"
        return xml_response(f"<Error>{body}</Error>", self.status)


def not_implemented(what: str) -> GcsError:
    """What the real API has and the simulator has not. Not 404, which clients take for an answer, and not 501,
    which they repeat."""
    return GcsError(400, unknown_method(what).message, reason="notImplemented")


def xml_response(body: str, status: int = 200) -> Response:
    text = f"<?xml version='1.0' encoding='UTF-8'?>{body}"
    return Response(status, text.encode(), {"content-type": "application/xml; charset=UTF-8"})


def elements(rows: Iterable[tuple[str, str]]) -> str:
    """XML of names and texts. Control characters, which XML cannot have, are left out."""
    return "".join(f"<{name}>{escape(_UNPRINTABLE.sub('', text))}</{name}>" for name, text in rows)


def etag_of(data: Mapping[str, Any]) -> str:
    """The XML API's ETag of an object: the MD5 in hex for content that has one."""
    if "md5Hash" in data:
        return md5_etag(data["md5Hash"])
    return f'"{data["etag"]}"'


def md5_etag(md5: str) -> str:
    return f'"{base64.b64decode(md5).hex()}"'


def xml_result(tag: str, rows: Iterable[tuple[str, str]], more: str = "") -> Response:
    """An answer about an upload in parts, in the namespace that google-cloud-storage looks for."""
    return xml_response(
        f"<{tag} xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>{elements(rows)}{more}</{tag}>"
    )


def invalid(message: str) -> GcsError:
    return GcsError(400, message)


def timestamp(seconds: float) -> str:
    """RFC 3339 with milliseconds, as in `timeCreated`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_of(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def etag(*numbers: int) -> str:
    return base64.b64encode(b"".join(number.to_bytes(8, "big") for number in numbers)).decode()


def base_url(request: Request) -> str:
    scheme = request.headers.get("x-forwarded-proto", "http")
    return f"{scheme}://{request.headers.get('host', 'localhost')}"


@dataclass(frozen=True)
class Preconditions:
    """`ifGenerationMatch` and its relatives; `generation` selects one version of the object."""

    generation_match: int | None = None
    generation_not_match: int | None = None
    metageneration_match: int | None = None
    metageneration_not_match: int | None = None
    generation: int | None = None

    @classmethod
    def of(cls, query: Mapping[str, Any], infix: str = "") -> Preconditions:
        """Those of a call's parameters; `infix` "Source" for the source of a copy."""

        def number(name: str) -> int | None:
            return int(query[name]) if name in query else None

        return cls(
            generation_match=number(f"if{infix}GenerationMatch"),
            generation_not_match=number(f"if{infix}GenerationNotMatch"),
            metageneration_match=number(f"if{infix}MetagenerationMatch"),
            metageneration_not_match=number(f"if{infix}MetagenerationNotMatch"),
            # 0 stands for the live object; gcsfuse sends it.
            generation=number("sourceGeneration" if infix else "generation") or None,
        )

    def check(self, current: Mapping[str, Any] | None, *, reading: bool = False) -> None:
        """412 when not met, or 304 for a read that asked for something newer. A missing object has
        generation 0 and no metageneration."""
        generation = int(current["generation"]) if current and "generation" in current else 0
        metageneration = int(current["metageneration"]) if current else None
        failed = GcsError(
            412,
            "At least one of the pre-conditions you specified did not hold.",
            place=("header", "If-Match"),
        )
        wanted = (self.generation_match, generation), (self.metageneration_match, metageneration)
        if any(match not in (None, now) for match, now in wanted):
            raise failed
        other = (self.generation_not_match, generation), (self.metageneration_not_match, metageneration)
        if any(match is not None and match == now for match, now in other):
            raise GcsError(304, "Not modified") if reading else failed


def check_etags(request: Request, mine: str) -> None:
    """`If-Match` and `If-None-Match` of a read (RFC 9110 §13). Raises GcsError, 412 or 304."""

    def names(header: str) -> bool:
        listed = [each.strip().strip('"') for each in request.headers[header].split(",")]
        return "*" in listed or mine.strip('"') in listed

    if "if-match" in request.headers and not names("if-match"):
        raise GcsError(412, "At least one of the pre-conditions you specified did not hold.")
    if "if-none-match" in request.headers and names("if-none-match"):
        raise GcsError(304, "Not modified")


@dataclass(frozen=True)
class ByteRange:
    """Offsets within an object; `stop` is exclusive."""

    start: int
    stop: int

    def header(self, size: int) -> str:
        return f"bytes {self.start}-{self.stop - 1}/{size}"


def parse_range(header: str | None, size: int) -> ByteRange | None:
    """The asked range, None for all of it (also for forms we do not know, RFC 9110 §14.2); 416 outside."""
    found = re.fullmatch(r"bytes=(\d{0,19})-(\d{0,19})", header.replace(" ", "")) if header else None
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


def decode(segment: str) -> str:
    """A percent-encoded part of a path. 400 for what is no UTF-8."""
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise invalid(f"Invalid UTF-8 in the path: {segment}") from None
