"""Vendor errors to ours, once, by status, then details, then the table of messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import requests
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message

from tpuctl.core.messages import ErrorKind, classify, find_hint
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
from tpuctl.resources import load_error_table

_CLASSES: dict[ErrorKind, type[TpuctlError]] = {
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

_CONNECTION_ERRORS = (
    auth.TransportError,
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
    api.RetryError,
)
NETWORK_HINT = "look at the network, a proxy or the endpoint in `tpuctl config show`, or try again"
_REQUEST = re.compile(r"^(GET|POST|PUT|PATCH|DELETE) https?://\S+: ")
"""What api_core puts in front of a REST API's own words."""
_SERVER = re.compile(r"host='([^']+)', port=(\d+)")
_CAUSE = re.compile(r"\[Errno -?\d+\] ([A-Za-z ]+)|(timed out|certificate verify failed)")
LOGIN_HINT = "gcloud auth application-default login"


def translate(error: Exception, what: str) -> TpuctlError:
    """Our error for anything a Google client or its transport raised. `what` says what was being done."""
    if isinstance(error, TpuctlError):
        return error
    if isinstance(error, _CONNECTION_ERRORS):
        return TransientError(f"could not {what}: {_silence(error)}", hint=NETWORK_HINT)
    if isinstance(error, auth.GoogleAuthError):
        return _translate_auth(error, what)
    if isinstance(error, api.GoogleAPICallError):
        return _translate_call(error, what)
    raise error


def _translate_auth(error: auth.GoogleAuthError, what: str) -> TpuctlError:
    """A failed renewal follows the API's 401, which the library keeps to itself."""
    text, hint = _first_line(error), LOGIN_HINT
    if "necessary fields need to refresh" in text:
        text = "the access token is refused, and there is nothing to renew it with"
        hint = f"put a new token into token_file, or unset it and use {LOGIN_HINT}"
    details = {"status": 401} if isinstance(error, auth.RefreshError) else {}
    return DeniedError(f"could not {what}: {text}", hint=hint, details=details)


def _translate_call(error: api.GoogleAPICallError, what: str) -> TpuctlError:
    message = str(error.message or error)
    http_status = int(error.code) if error.code is not None else None
    table = load_error_table()
    told = _details(error)
    kind = classify(table, http_status=http_status, status=_status_name(error), message=message, details=told)
    hint = LOGIN_HINT if http_status == 401 else _enable_hint(told) or find_hint(table, message)
    details = {"status": http_status, "kind": str(kind), **tell_details(told)}
    return _CLASSES[kind](f"could not {what}: {_shorten(message)}", hint=hint, details=details)


def _shorten(message: str) -> str:
    """The first line, without the long address that Google adds for SERVICE_DISABLED; the hint is shorter."""
    return _REQUEST.sub("", message.splitlines()[0]).partition(" Enable it by visiting ")[0]


def _silence(error: Exception) -> str:
    """Who did not answer and why, out of what urllib3 wraps in several layers."""
    text = _first_line(error)
    server, causes = _SERVER.search(text), _CAUSE.findall(text)
    if server is None or not causes:
        return text
    why = "".join(causes[-1]).strip()
    return f"{server[1]}:{server[2]} does not answer ({why[:1].lower()}{why[1:]})"


def _status_name(error: api.GoogleAPICallError) -> str | None:
    """The canonical status: from gRPC, else from the JSON body, which the library does not parse for it."""
    if error.grpc_status_code is not None:
        return str(error.grpc_status_code.name)
    response: Any = error.response
    try:
        found = response.json()["error"]["status"]
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return str(found)


def _details(error: api.GoogleAPICallError) -> list[Mapping[str, Any]]:
    """google.rpc details as JSON, and the older `errors` of Compute and Storage, which have a `reason` too."""
    return list(plain_details((*error.details, *error.errors)))


def _enable_hint(details: Sequence[Mapping[str, Any]]) -> str | None:
    """How to switch an API on, where the answer says that this is the trouble (google.rpc.ErrorInfo)."""
    for found in details:
        if found.get("reason") == "SERVICE_DISABLED":
            return f"gcloud services enable {(found.get('metadata') or {}).get('service', 'SERVICE')}"
    return None


def tell_details(details: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What google.rpc details say, under names of ours; only what is there.

    The types are those of googleapis/google/rpc/error_details.proto, as JSON.
    """
    told: dict[str, Any] = {}
    links: list[Mapping[str, Any]] = []
    for found in details:
        kind = str(found.get("@type", "")).rsplit(".", 1)[-1]
        if found.get("reason"):
            told.setdefault("reason", str(found["reason"]))
        if kind == "ErrorInfo":
            told.setdefault("domain", str(found.get("domain", "")))
            told.setdefault("metadata", {str(k): str(v) for k, v in (found.get("metadata") or {}).items()})
        elif kind in _LISTS:
            name, key = _LISTS[kind]
            told[name] = [*told.get(name, ()), *(dict(each) for each in found.get(key) or ())]
        elif kind == "RetryInfo":
            told["retry_after"] = str(found.get("retryDelay", ""))
        elif kind == "RequestInfo":
            told["request_id"] = str(found.get("requestId", ""))
        elif kind == "Help":
            links += [link for link in found.get("links") or () if isinstance(link, Mapping)]
    if links:
        told["help"] = [dict(link) for link in links]
    url = _activation_url(told, links)
    return told | ({"activation_url": url} if url else {})


_LISTS: Mapping[str, tuple[str, str]] = {
    "QuotaFailure": ("quota", "violations"),
    "PreconditionFailure": ("preconditions", "violations"),
    "BadRequest": ("fields", "fieldViolations"),
}


def _activation_url(told: Mapping[str, Any], links: Sequence[Mapping[str, Any]]) -> str:
    """Where a disabled API is switched on by hand: in newer answers in the metadata, in older ones a link."""
    if told.get("reason") != "SERVICE_DISABLED":
        return ""
    known = told.get("metadata", {}).get("activationUrl")
    return str(known or next((link["url"] for link in links if link.get("url")), ""))


def plain_details(details: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    """Details as JSON, whether they came so, as messages, or packed in `google.protobuf.Any`.

    What cannot be unpacked keeps its type.
    """
    for found in details:
        if isinstance(found, Mapping):
            yield found
        elif isinstance(found, Message):
            yield _message_details(found)


def _message_details(found: Message) -> Mapping[str, Any]:
    """A message as JSON with its `@type`, as the APIs show it."""
    try:
        data: dict[str, Any] = MessageToDict(found)
    except (TypeError, DecodeError):
        # An Any of a type that no library here knows, or not of that type after all.
        return {"@type": str(getattr(found, "type_url", ""))}
    if "@type" in data:
        return data
    return {"@type": f"type.googleapis.com/{found.DESCRIPTOR.full_name}", **data}


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
