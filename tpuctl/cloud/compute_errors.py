"""Operations of Compute Engine as operations of ours, with the codes of google.rpc for its own error codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tpuctl.cloud import wire
from tpuctl.cloud.wire import Json
from tpuctl.model.cloud import CloudErrorInfo, OperationInfo

_INVALID, _NOT_FOUND, _EXISTS, _DENIED, _EXHAUSTED, _NOT_NOW, _INTERNAL, _UNKNOWN = 3, 5, 6, 7, 8, 9, 13, 2

_CODES: Mapping[str, int] = {
    "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED": _EXHAUSTED,
    "CONDITION_NOT_MET": _NOT_NOW,
    "INTERNAL_ERROR": _INTERNAL,
    "INVALID_FIELD_VALUE": _INVALID,
    "INVALID_USAGE": _INVALID,
    "PERMISSIONS_ERROR": _DENIED,
    "PERMISSION_DENIED": _DENIED,
    "QUOTA_EXCEEDED": _EXHAUSTED,
    "RESOURCE_ALREADY_EXISTS": _EXISTS,
    "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE": _NOT_NOW,
    "RESOURCE_NOT_FOUND": _NOT_FOUND,
    "RESOURCE_NOT_READY": _NOT_NOW,
    "RESOURCE_OPERATION_RATE_EXCEEDED": _EXHAUSTED,
    "STOCKOUT": _EXHAUSTED,
    "UNSUPPORTED_OPERATION": _INVALID,
    "ZONE_RESOURCE_POOL_EXHAUSTED": _EXHAUSTED,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": _EXHAUSTED,
}
"""Codes in `error.errors` of operations and in the last attempt of a managed instance, as users report them and
https://cloud.google.com/compute/docs/troubleshooting/troubleshoot-resource-availability."""

_BY_HTTP: Mapping[int, int] = {
    400: _INVALID,
    403: _DENIED,
    404: _NOT_FOUND,
    409: _EXISTS,
    412: _NOT_NOW,
    429: _EXHAUSTED,
}


_NO_FIELD = "Invalid value for field 'operation': ''. "
"""Before what Google says of a group that fits no topology (GoogleCloudPlatform/magic-modules, pull request
17153); there is no such field."""


def parse_errors(found: Json, http_status: int = 0) -> CloudErrorInfo | None:
    """The first error of `errors`; None where there is none. A code that no table has is read by the HTTP
    status, else it says nothing of the request."""
    errors = wire.messages(found.get("errors"))
    if not errors:
        return None
    first = errors[0]
    code = wire.text(first.get("code"))
    number = _CODES.get(code, _BY_HTTP.get(http_status, _UNKNOWN))
    message = wire.text(first.get("message")).removeprefix(_NO_FIELD)
    return CloudErrorInfo(number, message or code, _details(code, first))


def _details(code: str, error: Json) -> tuple[Mapping[str, Any], ...]:
    """google.rpc's forms: the code as a reason, and of a quota which one it is, and where."""
    told: list[Mapping[str, Any]] = []
    for each in wire.messages(error.get("errorDetails")):
        quota = wire.message(each.get("quotaInfo"))
        info = wire.message(each.get("errorInfo"))
        about = {**wire.strings(info.get("metadatas")), **_quota_facts(quota)}
        if about:
            told.append(_error_info(code, about))
    return tuple(told) or (_error_info(code, {}),)


def _error_info(code: str, about: Mapping[str, str]) -> Mapping[str, Any]:
    kind = "type.googleapis.com/google.rpc.ErrorInfo"
    return {"@type": kind, "reason": code, "domain": "compute.googleapis.com", "metadata": dict(about)}


def _quota_facts(quota: Json) -> dict[str, str]:
    facts = {key: wire.text(quota.get(key)) for key in ("limitName", "metricName") if quota.get(key)}
    if quota.get("limit") is not None:
        facts["limit"] = str(quota["limit"])
    return {**facts, **wire.strings(quota.get("dimensions"))}


API = "/compute/v1/"


def parse_operation(found: Json) -> OperationInfo:
    """An operation, called by its path behind `API`."""
    link = wire.text(found.get("selfLink"))
    path = link[link.find("projects/") :] if "projects/" in link else ""
    status = wire.integer(found.get("httpErrorStatusCode"))
    done = found.get("status") == "DONE"
    error = parse_errors(wire.message(found.get("error")), status) if done else None
    return OperationInfo(path, done, error, wire.text(found.get("targetLink")))


def join_operations(operations: Sequence[OperationInfo]) -> OperationInfo:
    """One for several that began together: done when all are, failed with the first that did. None at all are
    done."""
    error = next((each.error for each in operations if each.error), None)
    done = all(each.done for each in operations)
    return OperationInfo(",".join(each.name for each in operations), done, error if done else None)
