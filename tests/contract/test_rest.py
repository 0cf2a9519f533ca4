"""JSON APIs without a client library, spoken to over a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from google.oauth2.credentials import Credentials

from tests.contract.test_project_api import ENDPOINTS
from tests.support.json_api import JsonApi, json_api
from tests.support.sim import running_sim
from tpuctl.cloud.disks import GoogleDisks
from tpuctl.cloud.project import GoogleProject
from tpuctl.cloud.rest import RestClient
from tpuctl.errors import (
    BadConfigError,
    DeniedError,
    InvalidRequestError,
    NoAnswerError,
    NotFoundError,
    RateLimitedError,
    TpuctlError,
    TransientError,
)
from tpuctl.model.disks import DiskRequest


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


def test_several_things_are_read_at_once_and_what_is_not_there_is_none(api):
    told, client = api
    told.answer = lambda query: (404, {}) if query["n"] == "3" else (200, {"n": query["n"]})
    found = client.find_each([f"/v1/things?n={number}" for number in range(20)], "read things")
    assert found == [None if number == 3 else {"n": str(number)} for number in range(20)]
    told.answer = lambda query: (403, {}) if query["n"] == "3" else (200, {})
    with pytest.raises(DeniedError, match="could not read things"):
        client.find_each([f"/v1/things?n={number}" for number in range(20)], "read things")


QUIET, DOWN = ({"warning": {"code": code}} for code in ("NO_RESULTS_ON_PAGE", "UNREACHABLE"))
LISTS = [
    ({"disks": [{"name": "a"}], "unreachable": ["projects/p/locations/dark"]}, {"dark"}),
    ({"items": {"zones/z": {"disks": [{"name": "a"}]}, "zones/y": QUIET, "zones/dark": DOWN}}, {"dark"}),
    ({"items": {"zones/z": {"disks": [{"name": "a"}]}}, "unreachables": ["zones/dark"]}, {"dark"}),
    ({"items": [{"name": "a"}]}, set()),
]


@pytest.mark.parametrize(("answer", "unread"), LISTS)
def test_every_form_of_list_says_what_was_not_read(api, answer, unread):
    told, client = api
    told.answer = lambda _query: (200, answer)
    found = client.listing("/v1/disks", "disks", "list disks", lambda each: each["name"])
    assert (found.items, found.unreachable) == (("a",), unread)


def test_a_firewall_is_not_judged_by_some_of_its_subnetworks(api):
    told, _ = api
    told.answer = lambda _query: (200, {"items": {"regions/dark": DOWN}})
    project = GoogleProject("p", lambda: Credentials(token="t"), **dict.fromkeys(ENDPOINTS, told.endpoint))
    with pytest.raises(TransientError, match="list the subnetworks of default: not read: dark"):
        project.firewall("default")


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


ODD = [(status, {"error": error}) for status, error, *_ in REFUSALS]
ODD += [(503, b"busy"), (502, b"<html>"), (500, {}), (200, b"<html>")]


@pytest.mark.parametrize(("status", "body"), ODD)
def test_typed_clients_fail_as_calls_by_rest_do_and_send_once(api, status, body):
    told, client = api
    told.answer = lambda _query: (status, body)
    path, what = "/compute/v1/projects/p/zones/z/disks/d", "delete disk d in z"
    with pytest.raises(TpuctlError) as by_rest:
        client.change("DELETE", path, what)
    from tpuctl.cloud.compute_clients import ComputeClients  # 1.5 s, and each worker collects this file

    clients = ComputeClients(told.endpoint, Credentials(token="t"))
    request = clients.v1.DeleteDiskRequest(project="p", zone="z", disk="d")
    with pytest.raises(TpuctlError) as typed:
        clients.change(clients.v1.DisksClient, "delete_unary", request, what)
    assert type(typed.value) is type(by_rest.value)
    for name in ("message", "hint", "details"):
        assert getattr(typed.value, name) == getattr(by_rest.value, name)
    assert [asked[:2] for asked in told.asked] == [("DELETE", path)] * 2


@pytest.mark.parametrize("variable", ["GOOGLE_API_USE_MTLS_ENDPOINT", "GOOGLE_CLOUD_UNIVERSE_DOMAIN"])
def test_a_variable_that_the_library_does_not_understand_is_bad_configuration(api, monkeypatch, variable):
    monkeypatch.setenv(variable, " ")
    told, _ = api
    with pytest.raises(BadConfigError, match="Google's client of Snapshots refuses its settings: ") as caught:
        GoogleDisks("p", told.endpoint, Credentials(token="t")).delete_snapshot("s")
    assert variable in (caught.value.hint or "")
    assert told.asked == []


def test_a_proxy_that_refuses_in_its_own_form_is_believed(api):
    told, _ = api
    told.answer = lambda _query: (403, {"error": "denied"})
    with pytest.raises(DeniedError, match="could not delete snapshot s: "):
        GoogleDisks("p", told.endpoint, Credentials(token="t")).delete_snapshot("s")


def test_a_silent_server_is_named_by_both():
    silent = "http://127.0.0.1:9"
    with pytest.raises(NoAnswerError, match=r"could not list disks: 127.0.0.1:9 does not answer"):
        RestClient(silent, Credentials(token="t")).change("POST", "/", "list disks")
    with pytest.raises(NoAnswerError, match=r"could not delete snapshot s: 127.0.0.1:9 does not answer"):
        GoogleDisks("p", silent, Credentials(token="t")).delete_snapshot("s")


def test_a_disk_is_asked_for_by_the_same_id_again(api):
    told, _ = api
    disks = GoogleDisks("p", told.endpoint + "/", Credentials(token="t"))
    wanted = DiskRequest("d", "z", "pd-ssd", 10, {"a": "b"}, throughput_mib_s=5, source_snapshot="s")
    for key in ("one", "one", "two"):
        disks.create_disk(wanted, key)
    ids = [query["requestId"] for _, _, query, _ in told.asked]
    assert ids[0] == ids[1] != ids[2]
    assert json.loads(told.asked[0][3]) == {
        **{"name": "d", "type": "projects/p/zones/z/diskTypes/pd-ssd", "sizeGb": "10", "labels": {"a": "b"}},
        **{"provisionedThroughput": "5", "sourceSnapshot": "projects/p/global/snapshots/s"},
    }


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
