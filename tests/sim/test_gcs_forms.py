"""How other people's clients talk to the simulated Cloud Storage: what it ignores, its ETags, content that is
stored compressed, and names, places and labels that there cannot be."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
import requests

from tests.support.gcs import upload

PLAIN = {"accept-encoding": "identity"}


def refused(answer: requests.Response, status: int = 400) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"]["message"])


@pytest.mark.parametrize(
    "where", ["storage/v1/b/bbb", "storage/v1/b/bbb/o/a", "storage/v1/b/bbb/o/a?alt=media"]
)
def test_reads_are_conditional_by_etag(url: str, where: str) -> None:
    upload(url, "a")
    found = requests.get(f"{url}/{where}", timeout=5)
    mine = found.headers["etag"]
    assert "media" in where or found.json()["etag"] == mine
    for header, value, status in (
        ("if-match", mine, 200),
        ("if-match", '"zz"', 412),
        ("if-match", f'"zz", "{mine}"', 200),
        ("if-none-match", mine, 304),
        ("if-none-match", "zz", 200),
        ("if-none-match", "*", 304),
    ):
        assert requests.get(f"{url}/{where}", headers={header: value}, timeout=5).status_code == status, value


@pytest.mark.parametrize("where", ["storage/v1/b/bbb/o/z?alt=media", "bbb/z"])
def test_what_is_stored_compressed_is_unpacked_for_who_takes_no_gzip(url: str, where: str) -> None:
    packed = gzip.compress(b"plain text " * 20)
    upload(url, "z", packed, contentEncoding="gzip")
    for headers in (PLAIN, {**PLAIN, "range": "bytes=0-4"}):
        answer = requests.get(f"{url}/{where}", headers=headers, timeout=5)
        assert (answer.status_code, answer.content) == (200, b"plain text " * 20)
        assert "content-encoding" not in answer.headers
        assert answer.headers["x-goog-stored-content-encoding"] == "gzip"
    whole = requests.get(f"{url}/{where}", headers={"accept-encoding": "gzip"}, stream=True, timeout=5)
    assert (whole.headers["content-encoding"], whole.raw.read()) == ("gzip", packed)
    part = requests.get(
        f"{url}/{where}", headers={"accept-encoding": "gzip", "range": "bytes=0-1"}, stream=True, timeout=5
    )
    assert (part.status_code, part.raw.read()) == (206, packed[:2])


def test_what_only_calls_itself_compressed_goes_out_as_it_is(url: str) -> None:
    upload(url, "z", b"no gzip")
    requests.patch(f"{url}/storage/v1/b/bbb/o/z", json={"contentEncoding": "gzip"}, timeout=5)
    answer = requests.get(f"{url}/storage/v1/b/bbb/o/z?alt=media", headers=PLAIN, stream=True, timeout=5)
    assert (answer.status_code, answer.raw.read()) == (200, b"no gzip")


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ("name,size", ""),
        ("name,bogus", "bogus"),
        ("metadata/anything", ""),
        ("owner/bogus", "owner/bogus"),
        ("owner(entity)", ""),
        ("a(", "a("),
    ],
)
def test_a_selection_of_fields_is_checked(url: str, fields: str, wrong: str) -> None:
    upload(url, "a")
    one = requests.get(f"{url}/storage/v1/b/bbb/o/a", params={"fields": fields}, timeout=5)
    several = requests.get(f"{url}/storage/v1/b/bbb/o", params={"fields": f"items({fields})"}, timeout=5)
    if not wrong:
        assert (one.status_code, several.status_code) == (200, 200)
        assert set(one.json()) <= {"name", "size"}
    else:
        assert f"Invalid field selection {wrong}" in refused(one)
        assert "Invalid field selection items" in refused(several)


def test_forms_of_answers_are_known_or_refused(url: str) -> None:
    upload(url, "a")
    assert "bogus" in refused(requests.get(f"{url}/storage/v1/b/bbb/o/a?alt=bogus", timeout=5))
    assert "does not implement" in refused(requests.get(f"{url}/storage/v1/b/bbb?alt=proto", timeout=5))


@pytest.mark.parametrize(
    ("bucket", "says"),
    [
        *(
            ({"name": name}, "Invalid bucket name")
            for name in ("a..b", "goog-x", "mygoogle1", "192.168.5.4", "UPPER")
        ),
        ({"name": "ccc", "location": "mars"}, "location constraint is not valid"),
        ({"name": "ccc", "labels": {"K": "v"}}, "label"),
        ({"name": "ccc", "labels": {f"k{n}": "v" for n in range(65)}}, "64 labels"),
    ],
)
def test_buckets_that_cannot_be_are_refused(url: str, bucket: Any, says: str) -> None:
    assert says in refused(requests.post(f"{url}/storage/v1/b?project=p", json=bucket, timeout=5))


@pytest.mark.parametrize(
    ("location", "kind"),
    [("us-central2", "region"), ("europe-west4", "region"), ("eu", "multi-region"), ("nam4", "dual-region")],
)
def test_buckets_are_in_places_that_there_are(url: str, location: str, kind: str) -> None:
    asked = {"name": "ccc", "location": location}
    made = requests.post(f"{url}/storage/v1/b?project=p", json=asked, timeout=5).json()
    assert (made["location"], made["locationType"]) == (location.upper(), kind)


def test_objects_that_cannot_be_are_refused(url: str) -> None:
    insert = f"{url}/upload/storage/v1/b/bbb/o"
    challenge = f"{insert}?uploadType=media&name=.well-known/acme-challenge/x"
    assert ".well-known" in refused(requests.post(challenge, data=b"x", timeout=5))
    assert "uploadType" in refused(requests.post(f"{insert}?name=x", data=b"x", timeout=5))
    elsewhere = f"{url}/storage/v1/b/bbb/o?uploadType=media&name=x"
    assert "/upload/" in refused(requests.post(elsewhere, data=b"x", timeout=5))
    assert requests.get(f"{url}/storage/v1/b/bbb/o/", timeout=5).status_code == 404
    upload(url, "a")
    large = {"metadata": {"k": "v" * 8192}}
    assert "8192 bytes" in refused(requests.patch(f"{url}/storage/v1/b/bbb/o/a", json=large, timeout=5))
    assert requests.get(f"{url}/storage/v1/b/bbb/o", timeout=5).json()["items"][0]["name"] == "a"


def test_parameters_that_it_does_not_know_are_ignored(url: str) -> None:
    upload(url, "a")
    assert requests.delete(f"{url}/storage/v1/b/bbb/o/a?versions=true&force=true", timeout=5).status_code == 204


def test_content_that_is_json_is_no_answer_of_the_api(url: str) -> None:
    where = f"{url}/upload/storage/v1/b/bbb/o?uploadType=media&name=j"
    made = requests.post(
        where, data=b'{"etag": "x",  "a": 1}', headers={"content-type": "application/json"}, timeout=5
    )
    assert made.json()["contentType"] == "application/json"
    for path in ("storage/v1/b/bbb/o/j", "download/storage/v1/b/bbb/o/j"):
        assert requests.get(f"{url}/{path}?alt=media", timeout=5).content == b'{"etag": "x",  "a": 1}'


def test_a_body_of_null_is_empty(url: str) -> None:
    """Go's library sends it with a copy that changes nothing."""
    upload(url, "a")
    copy = f"{url}/storage/v1/b/bbb/o/a/rewriteTo/b/bbb/o/b"
    assert requests.post(copy, data="null\n", timeout=5).json()["done"]
