"""What the environment says of proxies, as sessions of Google's APIs take it."""

from __future__ import annotations

import pytest
from google.auth.transport.requests import AuthorizedSession
from google.oauth2.credentials import Credentials

from tpuctl.cloud.session import ApiSession

PROXY = "http://proxy.example:3128"
URLS = (
    "https://storage.googleapis.com/storage/v1/b/one",
    "https://storage.googleapis.com/storage/v1/b/two?alt=media",
    "http://localhost:8080/v2/projects",
    "http://localhost:8081/v2/projects",
    "https://user:word@tpu.googleapis.com/v2",
)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"https_proxy": PROXY, "http_proxy": PROXY, "no_proxy": "localhost:8080"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/etc/own.pem")


def test_each_server_has_what_requests_would_take() -> None:
    ours, theirs = (each(Credentials(token="t")) for each in (ApiSession, AuthorizedSession))
    asked = [(url, verify) for url in URLS for verify in (None, False)] * 2
    found = [
        [session.merge_environment_settings(url, {}, None, verify, None) for url, verify in asked]
        for session in (ours, theirs)
    ]
    assert found[0] == found[1]
    assert [bool(each["proxies"].get("http")) for each in found[0][4:8:2]] == [False, True]
    own = {"https": "http://other.example"}
    assert ours.merge_environment_settings(URLS[0], own, None, None, None)["proxies"]["https"] == own["https"]


def test_what_a_request_does_to_its_settings_is_its_own() -> None:
    session = ApiSession(Credentials(token="t"))
    first = session.merge_environment_settings(URLS[0], {}, None, None, None)
    first["proxies"].clear()
    first["verify"] = False
    again = session.merge_environment_settings(URLS[1], {}, None, None, None)
    assert (again["proxies"]["https"], again["verify"]) == (PROXY, "/etc/own.pem")
