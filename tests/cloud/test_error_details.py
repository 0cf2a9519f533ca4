# ruff: noqa: E501 (the bodies are literal)
"""What becomes of Google's error bodies: class, words, hint, and every detail that they carry."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions as api

from tpuctl.cloud.errors import translate
from tpuctl.cloud.nodes import parse_operation
from tpuctl.errors import DeniedError, InvalidRequestError, QuotaError, RateLimitedError, TpuctlError


class Answer:
    """As much of an HTTP answer as the library looks at."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.headers: dict[str, str] = {}
        self._body = body

    def json(self) -> dict[str, Any]:
        return self._body


def refused(error: dict[str, Any]) -> TpuctlError:
    found = api.from_http_status(
        error["code"],
        error["message"],
        errors=error.get("errors", ()),
        details=error.get("details", ()),
        response=Answer({"error": error}),
    )
    return translate(found, "list nodes in us-central2-b")


CONSOLE = "https://console.developers.google.com/apis/api/tpu.googleapis.com/overview?project=123456789"


def rpc(kind: str, **fields: Any) -> dict[str, Any]:
    """A detail of a type of google.rpc."""
    return {"@type": f"type.googleapis.com/google.rpc.{kind}", **fields}


def info(reason: str, domain: str = "googleapis.com", **metadata: str) -> dict[str, Any]:
    return rpc("ErrorInfo", reason=reason, domain=domain, metadata=metadata)


PLACE = {"service": "tpu.googleapis.com", "consumer": "projects/123456789"}
TITLE = {"serviceTitle": "Cloud TPU API", "containerInfo": "123456789"}
HELP = rpc("Help", links=[{"description": "Google developers console API activation", "url": CONSOLE}])
SERVICE_DISABLED = {
    "code": 403,
    "message": f"Cloud TPU API has not been used in project 123456789 before or it is disabled. Enable it by visiting {CONSOLE} then retry. If you enabled this API recently, wait a few minutes for the action to propagate to our systems and retry.",
    "status": "PERMISSION_DENIED",
    "details": [
        info("SERVICE_DISABLED", **PLACE, **TITLE, activationUrl=CONSOLE),
        rpc("LocalizedMessage", locale="en-US", message="…"),
        HELP,
    ],
}
PERMISSION = {
    "code": 403,
    "message": "Permission 'tpu.nodes.list' denied on 'projects/p/locations/us-central2-b'",
    "status": "PERMISSION_DENIED",
    "details": [
        info(
            "IAM_PERMISSION_DENIED",
            "iam.googleapis.com",
            resource="projects/p/locations/us-central2-b",
            permission="tpu.nodes.list",
        )
    ],
}
SPENT = {
    "subject": "TPUV6EPreemptiblePerProjectPerRegionForTPUAPI",
    "description": "Limit: 0 in region us-east5.",
}
QUOTA = {
    "code": 429,
    "message": f"Quota limit '{SPENT['subject']}' has been exceeded. Limit: 0 in region us-east5.",
    "status": "RESOURCE_EXHAUSTED",
    "details": [rpc("QuotaFailure", violations=[SPENT])],
}
RATE = {
    "code": 429,
    "message": "Quota exceeded for quota metric 'Create requests' and limit 'Maximum number of CreateNode requests per minute' of service 'tpu.googleapis.com' for consumer 'project_number:123456789'.",
    "status": "RESOURCE_EXHAUSTED",
    "details": [
        info("RATE_LIMIT_EXCEEDED", quota_limit_value="91", quota_metric="tpu.googleapis.com/create_requests"),
        rpc("RetryInfo", retryDelay="36s"),
        rpc("RequestInfo", requestId="abc"),
    ],
}
FIELD = {
    "code": 400,
    "message": "Invalid value at 'node.labels'",
    "status": "INVALID_ARGUMENT",
    "details": [rpc("BadRequest", fieldViolations=[{"field": "node.labels", "description": "Invalid value"}])],
}


def test_a_disabled_api_keeps_where_it_is_enabled():
    error = refused(SERVICE_DISABLED)
    assert isinstance(error, DeniedError)
    assert error.hint == "gcloud services enable tpu.googleapis.com --project=123456789"
    assert error.details["reason"] == "SERVICE_DISABLED"
    assert error.details["activation_url"] == CONSOLE
    assert error.details["metadata"]["serviceTitle"] == "Cloud TPU API"
    assert error.details["help"] == [
        {"description": "Google developers console API activation", "url": CONSOLE}
    ]
    assert CONSOLE not in error.message


def test_an_older_answer_has_the_place_in_its_help_only():
    details = [info("SERVICE_DISABLED", **PLACE), HELP]
    assert refused({**SERVICE_DISABLED, "details": details}).details["activation_url"] == CONSOLE


def test_a_denied_permission_keeps_which_and_on_what():
    error = refused(PERMISSION)
    assert isinstance(error, DeniedError)
    assert error.details["metadata"] == PERMISSION["details"][0]["metadata"]
    assert error.details["domain"] == "iam.googleapis.com"
    assert "activation_url" not in error.details


def test_a_quota_keeps_its_violations():
    error = refused(QUOTA)
    assert isinstance(error, QuotaError)
    assert error.details["quota"] == QUOTA["details"][0]["violations"]


def test_a_rate_limit_keeps_when_to_come_again():
    error = refused(RATE)
    assert isinstance(error, RateLimitedError)
    assert (error.details["retry_after"], error.details["request_id"]) == ("36s", "abc")
    assert error.details["metadata"]["quota_limit_value"] == "91"


def test_a_bad_field_is_named():
    error = refused(FIELD)
    assert isinstance(error, InvalidRequestError)
    assert error.details["fields"] == [{"field": "node.labels", "description": "Invalid value"}]


def test_the_older_errors_of_compute_keep_their_reason():
    body = {
        "code": 403,
        "message": "Rate Limit Exceeded",
        "errors": [{"message": "Rate Limit Exceeded", "domain": "usageLimits", "reason": "rateLimitExceeded"}],
    }
    error = refused(body)
    assert isinstance(error, RateLimitedError)
    assert error.details["reason"] == "rateLimitExceeded"


def test_an_answer_without_details_adds_none():
    error = refused({"code": 503, "message": "The service is currently unavailable.", "status": "UNAVAILABLE"})
    assert set(error.details) == {"status", "kind", "rpc"}


def test_a_detail_of_a_type_that_nobody_knows_stays_beside_the_others():
    strange = {"@type": "type.googleapis.com/google.cloud.tpu.Unheard", "x": [1]}
    error = refused({"code": 403, "message": "no", "details": [strange, rpc("RequestInfo", requestId="abc")]})
    assert (type(error), error.details["request_id"]) == (DeniedError, "abc")


def test_an_error_inside_an_operation_keeps_its_details():
    violation = {"subject": "TPUV4sPreemptiblePod", "description": "Limit 20800"}
    detail = rpc("QuotaFailure", violations=[violation])
    body = {"name": "operations/1", "done": True}
    error = parse_operation({**body, "error": {"code": 8, "message": "exhausted", "details": [detail]}}).error
    assert error is not None
    assert (error.code, error.message) == (8, "exhausted")
    assert error.details[0]["violations"] == [violation]


@pytest.mark.parametrize("consumer", ["projects/764086051850", "projects/32555940559"])
def test_a_login_without_a_quota_project_is_hinted_at_its_mending_and_not_at_the_api(consumer):
    message = "The tpu.googleapis.com API requires a quota project, which is not set by default."
    details = [info("SERVICE_DISABLED", service="tpu.googleapis.com", consumer=consumer)]
    error = refused({**SERVICE_DISABLED, "message": message, "details": details})
    assert error.hint == "gcloud auth application-default set-quota-project PROJECT"


@pytest.mark.parametrize(
    ("status", "message", "hint"),
    [
        (
            403,
            "Caller does not have required permission to use project p. Grant the caller",
            "roles/serviceusage",
        ),
        (403, "Request had insufficient authentication scopes.", "--scopes=cloud-platform"),
        (403, "Permission 'iam.serviceAccounts.actAs' denied on service account x@p.iam", "serviceAccountUser"),
        (
            400,
            "The user does not have access to service account 'x'. User: 'y'.",
            "roles/iam.serviceAccountUser",
        ),
        (404, "The resource 'projects/p/global/networks/default' was not found", "networks create default"),
        (400, 'Project "p" has no network named "default".', "networks create default"),
        (403, "service-1@cloud-tpu.iam.gserviceaccount.com does not exist.", "services identity create"),
        (412, "Constraint constraints/compute.requireOsLogin violated for project p.", "disable-enforce"),
    ],
)
def test_what_a_new_project_lacks_comes_with_the_command_that_mends_it(status, message, hint):
    error = refused({"code": status, "message": message, "status": "UNKNOWN"})
    assert hint in str(error.hint)
