"""How Compute Engine refuses a call: its sentences, and its own form of error bodies."""

from __future__ import annotations

from collections.abc import Mapping

from tpuctl.sim.wire.messages import Response, json_response
from tpuctl.sim.wire.status import HTTP_STATUS, ApiError, Code, Json, invalid_argument

CONDITION_NOT_MET = 412
_REASONS: Mapping[Code, str] = {
    Code.INVALID_ARGUMENT: "invalid",
    Code.FAILED_PRECONDITION: "conditionNotMet",
    Code.NOT_FOUND: "notFound",
    Code.ALREADY_EXISTS: "alreadyExists",
    Code.ABORTED: "conflict",
    Code.PERMISSION_DENIED: "forbidden",
    Code.UNAUTHENTICATED: "authError",
    Code.RESOURCE_EXHAUSTED: "quotaExceeded",
    Code.UNAVAILABLE: "backendError",
}
"""`errors[].reason`; anything else is an internalError."""


def compute_error(error: ApiError) -> Response:
    """A refusal in Compute Engine's form: `errors` always, `status` and `details` where there are details."""
    named = next((each["reason"] for each in error.details if set(each) == {"reason"}), None)
    typed = [dict(each) for each in error.details if "@type" in each]
    off = any(each.get("reason") == "SERVICE_DISABLED" for each in typed)
    reason = named or ("accessNotConfigured" if off else _REASONS.get(error.code, "internalError"))
    row = {"message": error.message, "domain": "usageLimits" if off else "global", "reason": reason}
    body: Json = {"code": HTTP_STATUS[error.code], "message": error.message, "errors": [row]}
    if typed:
        body |= {"status": error.code.name, "details": typed}
    if reason == "conditionNotMet" and named:
        body["code"] = CONDITION_NOT_MET
    return json_response({"error": body}, body["code"])


def invalid(field: str, value: object, why: str) -> ApiError:
    """Compute Engine's form of INVALID_ARGUMENT."""
    return invalid_argument(f"Invalid value for field '{field}': '{value}'. {why}")


def absent(path: str) -> ApiError:
    return ApiError(Code.NOT_FOUND, f"The resource '{path}' was not found")


def already_there(path: str) -> ApiError:
    return ApiError(Code.ALREADY_EXISTS, f"The resource '{path}' already exists")


def not_ready(path: str) -> ApiError:
    text = f"The resource '{path}' is not ready"
    return ApiError(Code.INVALID_ARGUMENT, text, [{"reason": "resourceNotReady"}])


def in_use(noun: str, path: str, user: str) -> ApiError:
    text = f"The {noun} resource '{path}' is already being used by '{user}'"
    return ApiError(Code.INVALID_ARGUMENT, text, [{"reason": "resourceInUseByAnotherResource"}])


def outdated(text: str) -> ApiError:
    """The caller's fingerprint is not that of now."""
    return ApiError(Code.FAILED_PRECONDITION, text, [{"reason": "conditionNotMet"}])
