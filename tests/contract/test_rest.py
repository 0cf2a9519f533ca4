"""JSON APIs without a client library, spoken to over a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from google.oauth2.credentials import Credentials

from tests.support.json_api import JsonApi, json_api
from tests.support.sim import running_sim
from tpuctl.cloud.rest import RestClient
from tpuctl.errors import (
    DeniedError,
    InvalidRequestError,
    NotFoundError,
    RateLimitedError,
    TpuctlError,
    TransientError,
)


@pytest.fixture
def api() -> Iterator[tuple[JsonApi, RestClient]]:
    with json_api() as told:
        yield told, RestClient(told.endpoint, Credentials(token="t"))


def test_pages_follow_the_token_and_keep_the_parameters(api):
    told, client = api
    pages = {"": {"items": [1], "nextPageToken": "a"}, "a": {"nextPageToken": "b"}, "b": {"items": [2]}}
    told.answer = lambda query: (200, pages[query.get("pageToken", "")])
    assert list(client.pages("/v1/things", "list things", {"filter": "x y"})) == list(pages.values())
    assert [query.get("pageToken") for _, _, query, _ in told.asked] == [None, "a", "b"]
    assert {query["filter"] for _, _, query, _ in told.asked} == {"x y"}


def test_a_list_that_never_ends_is_an_error(api):
    told, client = api
    told.answer = lambda _query: (200, {"nextPageToken": "same"})
    with pytest.raises(TransientError, match="does not end"):
        list(client.pages("/v1/things", "list things"))


REFUSALS = [
    (
        403,
        {
            "code": 403,
            "message": "Compute Engine API has not been used in project 1 before or it is disabled.",
            "errors": [{"reason": "accessNotConfigured"}],
            "status": "PERMISSION_DENIED",
            "details": [
                {
                    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                    "reason": "SERVICE_DISABLED",
                    "metadata": {"service": "compute.googleapis.com"},
                }
            ],
        },
        DeniedError,
        "gcloud services enable compute.googleapis.com",
    ),
    (403, {"code": 403, "message": "x", "errors": [{"reason": "rateLimitExceeded"}]}, RateLimitedError, None),
    (404, {"code": 404, "message": "no such thing"}, NotFoundError, None),
    (400, {"code": 400, "message": "Invalid value for field 'size'"}, InvalidRequestError, None),
]


@pytest.mark.parametrize(("status", "error", "expected", "hint"), REFUSALS)
def test_refusals_become_our_errors_with_googles_words(api, status, error, expected, hint):
    told, client = api
    told.answer = lambda _query: (status, {"error": error})
    with pytest.raises(TpuctlError, match="could not read a thing: ") as caught:
        client.get("/v1/things/1", "read a thing")
    assert type(caught.value) is expected
    assert error["message"] in caught.value.message
    assert caught.value.hint == hint
    assert len(told.asked) == 1


def test_a_read_is_asked_again_after_passing_trouble(api):
    told, client = api
    told.answer = lambda _query: (503, b"busy") if len(told.asked) < 2 else (200, {"name": "x"})
    assert client.get("/v1/things/1", "read a thing") == {"name": "x"}


def test_a_change_is_sent_once_with_its_body(api):
    told, client = api
    told.answer = lambda _query: (503, b"busy")
    with pytest.raises(TransientError, match="could not make a thing"):
        client.change("POST", "/v1/things", "make a thing", {"name": "x"})
    assert [(method, path, json.loads(body)) for method, path, _, body in told.asked] == [
        ("POST", "/v1/things", {"name": "x"})
    ]


def test_an_answer_that_is_no_json_object_is_an_error(api):
    told, client = api
    told.answer = lambda _query: (200, b"<html>")
    with pytest.raises(TransientError, match="not a JSON object"):
        client.change("POST", "/v1/things", "make a thing")


def test_the_simulated_compute_api_is_spoken_to_with_the_same_client(tmp_path):
    with running_sim(tmp_path) as sim:
        client = RestClient(sim.profile["endpoint_compute"], Credentials(token=sim.token))
        zone = client.get("/compute/v1/projects/sim-project/zones/us-central2-b", "read a zone")
        assert zone["name"] == "us-central2-b"
        with pytest.raises(DeniedError):
            client.get("/compute/v1/projects/another/zones", "list zones")
