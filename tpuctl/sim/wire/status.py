"""How the simulated APIs refuse: google.rpc codes, their HTTP status and Google's error body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

PROJECT_NUMBER = "415104041262"


class Code(IntEnum):
    """`google.rpc.Code`."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


HTTP_STATUS: Mapping[Code, int] = {
    Code.OK: 200,
    Code.CANCELLED: 499,
    Code.UNKNOWN: 500,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.DATA_LOSS: 500,
    Code.UNAUTHENTICATED: 401,
}


class ApiError(Exception):
    """An answer of the simulated API, not a failure of the simulator; APIs translate it."""

    def __init__(self, code: Code | int, message: str, details: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(message)
        self.code = Code(code)
        self.message = message
        self.details = tuple(details)

    def to_status(self) -> dict[str, Any]:
        """`google.rpc.Status` as it appears in operations and failed queued resources."""
        status: dict[str, Any] = {"code": int(self.code), "message": self.message}
        if self.details:
            status["details"] = [dict(each) for each in self.details]
        return status

    def to_http_body(self) -> dict[str, Any]:
        """The body of a refused REST call."""
        error: dict[str, Any] = {
            "code": HTTP_STATUS[self.code],
            "message": self.message,
            "status": self.code.name,
        }
        if self.details:
            error["details"] = [dict(each) for each in self.details]
        return {"error": error}


class DroppedConnectionError(Exception):
    """The call took effect and its answer is lost: the API closes the connection without one."""


def invalid_argument(text: str) -> ApiError:
    return ApiError(Code.INVALID_ARGUMENT, text)


def failed_precondition(text: str) -> ApiError:
    return ApiError(Code.FAILED_PRECONDITION, text)


def not_found(resource: str) -> ApiError:
    return ApiError(Code.NOT_FOUND, f"Resource '{resource}' was not found")


def unknown_method(what: str) -> ApiError:
    """A call that the real API has and the simulator does not: refused, not half done."""
    return ApiError(
        Code.FAILED_PRECONDITION, f"tpuctl's simulated cloud does not implement {what}; nothing was changed."
    )


def error_info(reason: str, metadata: Mapping[str, str]) -> dict[str, Any]:
    """The detail by which programs tell refusals apart."""
    return {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": reason,
        "domain": "googleapis.com",
        "metadata": dict(metadata),
    }


def location_denied(project: str, zone: str) -> ApiError:
    """A zone that does not exist, or that this project may not use; the API does not tell them apart.

    Message and details as users of gcloud print them.
    """
    metadata = {"consumer": f"projects/{project}", "location": zone, "service": "tpu.googleapis.com"}
    return ApiError(
        Code.PERMISSION_DENIED,
        f"Permission denied on 'locations/{zone}' (or it may not exist).",
        [error_info("LOCATION_POLICY_VIOLATED", metadata)],
    )


def rate_limited() -> ApiError:
    """Too many creates in a minute.

    Message and metric as users of the TPU API quote them (marin-community/marin, pull request 6198), details in
    the form that Google's front end gives them for every API (google-gemini/deprecated-generative-ai-python,
    issue 206); the id of the limit is not published.
    """
    metadata = {
        "service": "tpu.googleapis.com",
        "quota_metric": "tpu.googleapis.com/qps/create",
        "quota_location": "global",
        "quota_limit": "CreateRequestsPerMinutePerProject",
        "quota_limit_value": "90",
        "consumer": f"projects/{PROJECT_NUMBER}",
    }
    link = {
        "description": "Request a higher quota limit.",
        "url": "https://cloud.google.com/docs/quota#requesting_higher_quota",
    }
    return ApiError(
        Code.RESOURCE_EXHAUSTED,
        "Quota exceeded for quota metric 'Create requests' and limit 'Maximum number of CreateNode requests "
        f"per minute' of service 'tpu.googleapis.com' for consumer 'project_number:{PROJECT_NUMBER}'.",
        [
            error_info("RATE_LIMIT_EXCEEDED", metadata),
            {"@type": "type.googleapis.com/google.rpc.Help", "links": [link]},
        ],
    )


Json = dict[str, Any]
