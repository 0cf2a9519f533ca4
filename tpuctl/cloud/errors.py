"""Vendor errors to ours, once, by status, then details, then the table of messages."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import requests
from google.auth import exceptions as auth

from tpuctl.cloud import wire
from tpuctl.errors import (
    BILLING_DISABLED,
    GCLOUDS_OWN,
    SERVICE_DISABLED,
    BusyError,
    ConflictError,
    DeniedError,
    InvalidRequestError,
    NoAnswerError,
    TpuctlError,
)
from tpuctl.model.error_table import ERRORS, ErrorKind, classify, find_hint
from tpuctl.model.shipped_files import load_error_table

if TYPE_CHECKING:
    from google.api_core import exceptions as api

_CONNECTION_ERRORS = (
    auth.TransportError,
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
)
NETWORK_HINT = "look at the network, a proxy or the endpoint in `tpuctl config show`, or try again"
_REQUEST = re.compile(r"^(GET|POST|PUT|PATCH|DELETE) https?://\S+: ")
"""What api_core puts in front of a REST API's own words."""
_PERMISSION = re.compile(r"Permission '([a-z]+\.[A-Za-z.]+)' denied")
_STORAGE_WORDS = "('Request failed with status code'"
"""From google-cloud-storage (blob.py, _raise_from_invalid_response)."""
_SERVER = re.compile(r"host='([^']+)', port=(\d+)")
_CAUSE = re.compile(r"\[Errno -?\d+\] ([A-Za-z ]+)|(timed out|certificate verify failed)")
LOGIN_HINT = "gcloud auth application-default login"


def translate(error: Exception, what: str) -> TpuctlError:
    """Our error for anything a Google client or its transport raised. `what` says what was being done."""
    from google.api_core import exceptions as api  # with it comes gRPC, which no command needs that succeeds

    if isinstance(error, TpuctlError):
        return error
    if isinstance(error, (*_CONNECTION_ERRORS, api.RetryError)):
        refused = f"[Errno {errno.ECONNREFUSED}]" in str(error)
        details = {"refused_connection": True} if refused else {}
        return NoAnswerError(f"could not {what}: {_silence(error)}", hint=NETWORK_HINT, details=details)
    if isinstance(error, auth.GoogleAuthError):
        return _translate_auth(error, what)
    if isinstance(error, api.GoogleAPICallError):
        return _translate_call(error, what)
    raise error


def translate_change(error: Exception, what: str, verb: str) -> TpuctlError:
    """Like `translate`, for a "create", "patch" or "delete" of the TPU API, whose refusals may mean "not now".

    While an operation holds a resource another gets 409 (gcloud's own `AddSSHKeyIfNeeded` expects it of a
    patch), and states that pass refuse with FAILED_PRECONDITION (Google's tpu/test_queued_resources.py repeats
    its delete for that). A delete says nothing but a name, so whatever 400 it gets is about the state. A create
    whose name is taken stays a ConflictError: what holds it may be ours.
    """
    ours = translate(error, what)
    rpc = ours.details.get("rpc")
    state = isinstance(ours, InvalidRequestError) and (verb == "delete" or rpc == "FAILED_PRECONDITION")
    held = isinstance(ours, ConflictError) and verb != "create"
    if not (state or held or rpc == "ABORTED"):
        return ours
    return BusyError(ours.message, hint="wait a minute and try again", details=ours.details)


def _translate_auth(error: auth.GoogleAuthError, what: str) -> TpuctlError:
    """A failed renewal follows the API's 401, which the library keeps to itself."""
    text, hint = _first_line(error), LOGIN_HINT
    if "necessary fields need to refresh" in text:
        text = "the access token is refused, and there is nothing to renew it with"
        hint = f"put a new token into token_file, or unset it and use {LOGIN_HINT}"
    details = {"status": 401} if isinstance(error, auth.RefreshError) else {}
    return DeniedError(f"could not {what}: {text}", hint=hint, details=details)


def _translate_call(error: api.GoogleAPICallError, what: str) -> TpuctlError:
    message = _said(error)
    http_status = int(error.code) if error.code is not None else None
    table, told = load_error_table(), _details(error)
    status = _status_name(error)
    kind = classify(table, http_status=http_status, status=status, message=message, details=told)
    hint = LOGIN_HINT if http_status == 401 else _enable_hint(told) or find_hint(table, message)
    return render_call(error, what, kind, hint)


def render_call(
    error: api.GoogleAPICallError, what: str, kind: ErrorKind, hint: str | None = None
) -> TpuctlError:
    """Our error for an answer of which the kind is known."""
    message, status = _said(error), _status_name(error)
    http_status = int(error.code) if error.code is not None else None
    details = {"status": http_status, "kind": str(kind), **render_details(_details(error))}
    denied = _PERMISSION.search(message)
    if denied is not None:
        details["permission"] = denied[1]
    if status is not None:
        details["rpc"] = status
    return ERRORS[kind](f"could not {what}: {shorten(message)}", hint=hint, details=details)


def _said(error: api.GoogleAPICallError) -> str:
    """The server's own words: google-cloud-storage adds to them what it expected, as text of Python."""
    response = error.response
    return body_text(error) or f"{response.status_code} {response.reason}"


def body_text(error: Exception) -> str:
    """What the body of an answer says; empty where that is made for machines."""
    message, response = str(getattr(error, "message", "") or error), getattr(error, "response", None)
    if _STORAGE_WORDS not in message or response is None:
        return message
    try:
        said = str(response.json()["error"]["message"]).strip()
    except (KeyError, TypeError, ValueError):
        said = str(response.text).strip()
    return said if said and said[0] not in "<{" else ""


def shorten(message: str) -> str:
    """The first line, without the long address that Google adds for SERVICE_DISABLED and BILLING_DISABLED; the
    hint is shorter."""
    first = _REQUEST.sub("", message.partition("\n")[0]).partition(" Enable it by visiting ")[0]
    return first.partition(" Please enable billing on project ")[0]


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
    return [found for found in (*error.details, *error.errors) if isinstance(found, Mapping)]


def _enable_hint(details: Sequence[Mapping[str, Any]]) -> str | None:
    """How to switch an API on, in the project to which the call was counted, or billing, where the answer says
    that this is the trouble (google.rpc.ErrorInfo)."""
    for found in details:
        if found.get("reason") == BILLING_DISABLED:
            return "gcloud billing projects link PROJECT --billing-account=ACCOUNT"
        if found.get("reason") != SERVICE_DISABLED:
            continue
        about = wire.message(found.get("metadata"))
        consumer = str(about.get("consumer", "")).removeprefix("projects/")
        if consumer in GCLOUDS_OWN:
            return "gcloud auth application-default set-quota-project PROJECT"
        at = f" --project={consumer}" if consumer else ""
        return f"gcloud services enable {about.get('service', 'SERVICE')}{at}"
    return None


def render_details(details: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
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
            told.setdefault("metadata", wire.strings(found.get("metadata")))
        elif kind in _LISTS:
            name, key = _LISTS[kind]
            told[name] = [*told.get(name, ()), *(dict(each) for each in wire.messages(found.get(key)))]
        elif kind == "RetryInfo":
            told["retry_after"] = str(found.get("retryDelay", ""))
        elif kind == "RequestInfo":
            told["request_id"] = str(found.get("requestId", ""))
        elif kind == "Help":
            links += wire.messages(found.get("links"))
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
    if told.get("reason") != SERVICE_DISABLED:
        return ""
    known = told.get("metadata", {}).get("activationUrl")
    return str(known or next((link["url"] for link in links if link.get("url")), ""))


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
