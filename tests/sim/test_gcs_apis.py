"""The simulated Cloud Storage at its APIs: what it refuses and in which words, uploads in all their forms, the
XML API, and how little memory large objects take."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import threading
import tracemalloc
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor

import google_crc32c
import pytest
import requests

from tests.support.gcs import upload
from tpuctl.sim.gcs.methods import load_api

CHUNK = 256 * 1024
MIB = 1024**2


def refusal(answer: requests.Response) -> tuple[int, str]:
    error = answer.json()["error"]
    assert error["code"] == answer.status_code
    assert error["errors"][0]["message"] == error["message"]
    return answer.status_code, error["message"]


# What does not fit


@pytest.mark.parametrize(
    ("verb", "path", "body", "says"),
    [
        ("PATCH", "b/bbb", {"versioning": "x"}, "Invalid value at 'versioning'"),
        ("PATCH", "b/bbb", {"versioning": {"enabled": "maybe"}}, "versioning.enabled"),
        ("PATCH", "b/bbb", {"labels": ["x"]}, "labels"),
        ("PATCH", "b/bbb", {"labels": {"k": {}}}, "labels"),
        ("PATCH", "b/bbb", {"retentionPolicy": {"retentionPeriod": "soon"}}, "retention_period"),
        ("PATCH", "b/bbb", {"bogus": 1}, 'Unknown name "bogus"'),
        ("PATCH", "b/bbb", {"storageClass": "BOGUS"}, "Invalid storage class"),
        ("PATCH", "b/bbb/o/a", {"metadata": "x"}, "metadata"),
        ("PATCH", "b/bbb/o/a", {"temporaryHold": 7}, "temporary_hold"),
        ("PATCH", "b/bbb/o/a", {"customTime": "yesterday"}, "custom_time"),
        ("POST", "b/bbb/o/c/compose", {"sourceObjects": "x"}, "source_objects"),
        ("POST", "b/bbb/o/c/compose", {"sourceObjects": [{"name": "a", "generation": "x"}]}, "generation"),
        ("POST", "b?project=p", {"name": ["x"]}, "name"),
        ("POST", "b?project=p", [], "Parse Error|Root element"),
        ("GET", "b/bbb/o?maxResults=x", None, "max_results"),
        ("GET", "b/bbb/o?versions=maybe", None, "versions"),
        ("GET", "b/bbb/o/a?generation=99999999999999999999", None, "generation"),
        ("GET", "b/bbb/o?pageToken=WyJhIl0=", None, "pageToken"),
    ],
)
def test_wrong_types_are_refused_and_nothing_is_stored(url, verb, path, body, says):
    upload(url, "a")
    before = requests.get(f"{url}/storage/v1/b/bbb", timeout=5).json()
    answer = requests.request(verb, f"{url}/storage/v1/{path}", json=body, timeout=5)
    status, message = refusal(answer)
    assert status == 400
    assert any(each in message for each in says.split("|")), message
    assert requests.get(f"{url}/storage/v1/b/bbb", timeout=5).json() == before
    assert requests.get(f"{url}/storage/v1/b/bbb/o", timeout=5).status_code == 200


@pytest.mark.parametrize(
    ("verb", "path", "body"),
    [
        ("POST", "b?project=p&predefinedAcl=publicRead", {"name": "public-bucket"}),
        ("PATCH", "b/bbb", {"billing": {"requesterPays": True}}),
        ("PATCH", "b/bbb", {"encryption": {"defaultKmsKeyName": "k"}}),
        ("PATCH", "b/bbb/o/a", {"acl": [{"entity": "allUsers", "role": "READER"}]}),
        ("PATCH", "b/bbb/o/a", {"retention": {"mode": "Locked"}}),
        ("POST", "b/bbb/o/c/compose", {"sourceObjects": [{"name": "a"}], "deleteSourceObjects": True}),
        ("GET", "b/bbb/o?filter=x", None),
        ("GET", "b?project=p&softDeleted=true", None),
    ],
)
def test_what_would_be_stored_and_not_done_is_refused(url, verb, path, body):
    upload(url, "a")
    status, message = refusal(requests.request(verb, f"{url}/storage/v1/{path}", json=body, timeout=5))
    assert (status, "does not implement" in message) == (400, True)


def test_every_method_that_google_has_is_answered_or_refused_as_not_implemented(url):
    """Never 404, which clients take for an answer, never 500 or 501, which they repeat."""
    upload(url, "a")
    for method in load_api()[0]:
        path = method.pattern.pattern.replace("b/([^/]+)", "b/bbb", 1).replace("([^/]+)", "a")
        answer = requests.request(method.verb, f"{url}/storage/v1/{path}", json={}, timeout=5)
        assert answer.status_code < 500, (method.id, answer.text)
        known = ("No such object", "bucket", "The managed folder a does not exist")
        assert answer.status_code != 404 or any(each in answer.text for each in known), method.id


def test_what_google_does_not_have_is_not_found(url):
    assert refusal(requests.get(f"{url}/storage/v1/nothing", timeout=5)) == (404, "Not Found")


# Uploads


def begin(url: str, name: str) -> str:
    answer = upload(url, name, b"", uploadType="resumable")
    return answer.headers["location"]


def send(session: str, span: str, content: bytes = b"", verb: str = "PUT") -> requests.Response:
    headers = {"Content-Range": f"bytes {span}"}
    return requests.request(verb, session, data=content, headers=headers, timeout=10)


@pytest.mark.parametrize(("size", "total"), [(5, "*"), (CHUNK + 3, "*"), (5, "5"), (0, "*")])
def test_a_chunk_without_an_end_is_all_the_rest(url, size, total):
    """As Google's library for Node sends it."""
    done = send(begin(url, "a"), f"0-*/{total}", b"x" * size)
    assert (done.status_code, done.json()["size"]) == (200, str(size))
    session = begin(url, "b")
    assert send(session, f"0-{CHUNK - 1}/*", b"x" * CHUNK).status_code == 308
    rest = send(session, f"{CHUNK}-*/*", b"rest")
    assert (rest.status_code, rest.json()["size"]) == (200, str(CHUNK + 4))
    assert send(begin(url, "c"), "*-5/*", b"x").status_code == 400


def test_post_continues_a_resumable_upload(url):
    session, content = begin(url, "a"), bytes(range(256)) * 1024 + b"end"
    first = send(session, f"0-{CHUNK - 1}/*", content[:CHUNK], "POST")
    assert (first.status_code, first.headers["range"]) == (308, f"bytes=0-{CHUNK - 1}")
    last = send(session, f"{CHUNK}-{CHUNK + 2}/{CHUNK + 3}", content[CHUNK:], "POST")
    assert (last.status_code, last.json()["size"]) == (200, str(CHUNK + 3))
    assert requests.get(f"{url}/storage/v1/b/bbb/o/a?alt=media", timeout=5).content == content


def test_an_empty_object_ends_with_its_size(url):
    session = begin(url, "a")
    assert send(session, "*/0").json()["size"] == "0"


def test_a_body_that_is_not_as_long_as_its_range_is_refused(url):
    session = begin(url, "a")
    status, message = refusal(send(session, "0-9/10", b"x"))
    assert (status, "according to the Content-Range header" in message) == (400, True)


def test_a_body_compressed_for_the_way_is_stored_plain(url):
    body = b'--b\r\n\r\n{"name": "a"}\r\n--b\r\ncontent-type: text/plain\r\n\r\nhello\r\n--b--'
    headers = {"content-type": "multipart/related; boundary=b", "content-encoding": "gzip"}
    where = f"{url}/upload/storage/v1/b/bbb/o?uploadType=multipart"
    made = requests.post(where, data=gzip.compress(body), headers=headers, timeout=5).json()
    assert (made["size"], made["contentType"], made.get("contentEncoding")) == ("5", "text/plain", None)
    assert requests.post(where, data=b"junk", headers=headers, timeout=5).status_code == 400


@pytest.mark.parametrize("header", [b"", b"content-type: text/plain\r\n"])
@pytest.mark.parametrize("content", [b"first\r\n\r\nsecond\n\nthird", b"\r\n\r\n", b""])
def test_a_part_without_headers_is_taken_whole(url, header, content):
    """rclone gives the media none (RFC 2046 allows it); blank lines are content then."""
    body = b'--b\r\ncontent-type: application/json\r\n\r\n{"name": "a"}\r\n--b\r\n' + header
    headers = {"content-type": "multipart/related; boundary=b"}
    where = f"{url}/upload/storage/v1/b/bbb/o?uploadType=multipart"
    made = requests.post(where, data=body + b"\r\n" + content + b"\r\n--b--\r\n", headers=headers, timeout=5)
    assert (made.status_code, made.json()["size"]) == (200, str(len(content)))
    assert requests.get(f"{url}/storage/v1/b/bbb/o/a?alt=media", timeout=5).content == content


@pytest.mark.parametrize("name", [".", "..", "a\nb", "a\rb", "x" * 1025, "\ud800"])
def test_names_that_google_refuses(url, name):
    body = json.dumps({"name": name}).encode()
    content = b"--b\r\n\r\n" + body + b"\r\n--b\r\n\r\nx\r\n--b--"
    headers = {"content-type": "multipart/related; boundary=b"}
    where = f"{url}/upload/storage/v1/b/bbb/o?uploadType=multipart"
    assert requests.post(where, data=content, headers=headers, timeout=5).status_code == 400


@pytest.mark.slow
def test_large_objects_take_little_memory(url, tmp_path):
    """64 MiB up in one piece and as a session, composed, and down."""
    size = 64 * MIB
    with (tmp_path / "large").open("wb") as stream:
        stream.truncate(size)
    tracemalloc.start()
    with (tmp_path / "large").open("rb") as stream:
        assert requests.put(f"{url}/bbb/xml", data=stream, timeout=60).status_code == 200
    session = begin(url, "json")
    with (tmp_path / "large").open("rb") as stream:
        assert requests.put(session, data=stream, timeout=60).json()["size"] == str(size)
    body = {"sourceObjects": [{"name": "xml"}, {"name": "json"}]}
    made = requests.post(f"{url}/storage/v1/b/bbb/o/both/compose", json=body, timeout=60).json()
    assert made["size"] == str(2 * size)
    with requests.get(f"{url}/bbb/both", stream=True, timeout=60) as answer:
        assert sum(len(piece) for piece in answer.iter_content(MIB)) == 2 * size
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * MIB


def test_an_upload_that_breaks_off_is_not_taken_for_the_whole(url):
    import socket

    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        head = f"PUT /bbb/cut HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-length: 100\r\n\r\n"
        connection.sendall(head.encode() + b"only this")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b""
    assert requests.get(f"{url}/bbb/cut", timeout=5).status_code == 404


# The XML API


def xml_code(answer: requests.Response) -> str:
    return str(ET.fromstring(answer.content).findtext("Code"))


def test_the_xml_api_writes_reads_and_removes(url):
    content, where = b"0123456789", f"{url}/bbb/dir/a%20b"
    headers = {"content-type": "text/x-odd", "x-goog-meta-step": "12", "cache-control": "no-store"}
    made = requests.put(where, data=content, headers=headers, timeout=5)
    assert (made.status_code, made.headers["etag"]) == (200, f'"{hashlib.md5(content).hexdigest()}"')
    generation = made.headers["x-goog-generation"]
    read = requests.get(where, timeout=5)
    crc = base64.b64encode(google_crc32c.Checksum(content).digest()).decode()
    assert read.content == content
    assert read.headers["x-goog-hash"].startswith(f"crc32c={crc}, md5=")
    shown = ("content-type", "x-goog-meta-step", "cache-control", "x-goog-stored-content-length")
    assert [read.headers[name] for name in shown] == ["text/x-odd", "12", "no-store", "10"]
    assert (read.headers["x-goog-generation"], read.headers["x-goog-metageneration"]) == (generation, "1")
    part = requests.get(where, headers={"range": "bytes=2-4"}, timeout=5)
    assert (part.status_code, part.content, part.headers["content-range"]) == (206, b"234", "bytes 2-4/10")
    head = requests.head(where, timeout=5)
    assert (head.headers["content-length"], head.content) == ("10", b"")
    assert requests.get(f"{where}?generation={generation}", timeout=5).content == content
    assert xml_code(requests.get(f"{where}?generation=7", timeout=5)) == "NoSuchKey"
    assert xml_code(requests.get(where, headers={"range": "bytes=99-"}, timeout=5)) == "InvalidRange"
    assert requests.delete(f"{where}?generation={generation}", timeout=5).status_code == 204
    assert requests.get(where, timeout=5).status_code == 404
    assert xml_code(requests.get(f"{url}/no-such-bucket/x", timeout=5)) == "NoSuchBucket"


def test_conditions_of_the_xml_api(url):
    where = f"{url}/bbb/a"
    made = requests.put(where, data=b"1", headers={"x-goog-if-generation-match": "0"}, timeout=5)
    again = requests.put(where, data=b"2", headers={"x-goog-if-generation-match": "0"}, timeout=5)
    assert (again.status_code, xml_code(again)) == (412, "PreconditionFailed")
    tag = made.headers["etag"]
    assert requests.get(where, headers={"if-none-match": tag}, timeout=5).status_code == 304
    assert requests.get(where, headers={"if-match": '"x"'}, timeout=5).status_code == 412
    assert requests.get(where, headers={"if-match": tag}, timeout=5).status_code == 200
    later = {"if-modified-since": requests.get(where, timeout=5).headers["last-modified"]}
    assert requests.get(where, headers=later, timeout=5).status_code == 304
    wrong = requests.put(where, data=b"3", headers={"content-md5": "AAAAAAAAAAAAAAAAAAAAAA=="}, timeout=5)
    assert wrong.status_code == 400


def test_a_copy_by_the_xml_api(url):
    requests.put(f"{url}/bbb/a", data=b"1", headers={"content-type": "text/x-odd"}, timeout=5)
    headers = {"x-goog-copy-source": "bbb/a", "x-goog-if-generation-match": "0"}
    assert requests.put(f"{url}/bbb/b", headers=headers, timeout=5).status_code == 200
    assert requests.get(f"{url}/bbb/b", timeout=5).headers["content-type"] == "text/x-odd"
    assert requests.put(f"{url}/bbb/b", headers=headers, timeout=5).status_code == 412


@pytest.mark.parametrize("second", [True, False])
def test_lists_of_the_xml_api_come_in_pages(url, second):
    for name in ("a&b", "d/1", "d/2", "e", "f"):
        upload(url, name)
    names, query = [], {"delimiter": "/", "max-keys": "2", **({"list-type": "2"} if second else {})}
    for _ in range(5):
        root = ET.fromstring(requests.get(f"{url}/bbb", params=query, timeout=5).content)
        names += [key.text for key in root.findall("{*}Contents/{*}Key")]
        names += [key.text for key in root.findall("{*}CommonPrefixes/{*}Prefix")]
        if root.findtext("{*}IsTruncated") == "false":
            break
        following = root.findtext("{*}NextContinuationToken" if second else "{*}NextMarker")
        query["continuation-token" if second else "marker"] = str(following)
    assert sorted(names) == ["a&b", "d/", "e", "f"]


def test_an_upload_in_parts(url, tmp_path):
    where, part = f"{url}/bbb/whole", b"x" * (5 * MIB)
    begun = requests.post(f"{where}?uploads", headers={"content-type": "text/x-odd"}, timeout=5)
    upload_id = ET.fromstring(begun.content).findtext("{*}UploadId")
    query = {"uploadId": upload_id}

    def send_part(number: int, content: bytes) -> str:
        sent = requests.put(where, params={**query, "partNumber": number}, data=content, timeout=10)
        return sent.headers["etag"]

    with ThreadPoolExecutor(3) as pool:
        etags = dict(zip((2, 1, 3), pool.map(send_part, (2, 1, 3), (part, part, b"end")), strict=True))
    listed = ET.fromstring(requests.get(where, params=query, timeout=5).content)
    assert [each.text for each in listed.findall("{*}Part/{*}PartNumber")] == ["1", "2", "3"]

    def complete(numbers: list[int], **headers: str) -> requests.Response:
        rows = "".join(
            f"<Part><PartNumber>{n}</PartNumber><ETag>{etags.get(n, 'x')}</ETag></Part>" for n in numbers
        )
        body = f"<CompleteMultipartUpload>{rows}</CompleteMultipartUpload>"
        return requests.post(where, params=query, data=body, headers=headers, timeout=10)

    assert xml_code(complete([1, 3, 2])) == "InvalidPartOrder"
    assert xml_code(complete([1, 4])) == "InvalidPart"
    assert xml_code(complete([])) == "MalformedCompleteMultipartUploadRequest"
    done = complete([1, 2, 3], **{"x-goog-if-generation-match": "0"})
    assert done.status_code == 200
    read = requests.get(where, timeout=10)
    assert read.content == part + part + b"end"
    assert (read.headers["content-type"], "md5=" in read.headers["x-goog-hash"]) == ("text/x-odd", False)
    assert xml_code(complete([1, 2, 3])) == "NoSuchUpload"
    assert list((tmp_path / "gcs/parts").iterdir()) == []


def test_parts_below_five_mebibytes_and_aborted_uploads(url, tmp_path):
    where = f"{url}/bbb/whole"
    upload_id = ET.fromstring(requests.post(f"{where}?uploads", timeout=5).content).findtext("{*}UploadId")
    query = {"uploadId": upload_id}
    rows = ""
    for number in (1, 2):
        sent = requests.put(where, params={**query, "partNumber": number}, data=b"small", timeout=5)
        rows += f"<Part><PartNumber>{number}</PartNumber><ETag>{sent.headers['etag']}</ETag></Part>"
    body = f"<CompleteMultipartUpload>{rows}</CompleteMultipartUpload>"
    assert xml_code(requests.post(where, params=query, data=body, timeout=5)) == "EntityTooSmall"
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaa">]><CompleteMultipartUpload>&a;</CompleteMultipartUpload>'
    assert requests.post(where, params=query, data=bomb, timeout=5).status_code == 400
    assert requests.delete(where, params=query, timeout=5).status_code == 204
    assert xml_code(requests.get(where, params=query, timeout=5)) == "NoSuchUpload"
    assert list((tmp_path / "gcs/parts").iterdir()) == []


@pytest.mark.parametrize(
    ("verb", "path", "headers"),
    [
        ("GET", "/bbb?acl", {}),
        ("GET", "/bbb?versions=true", {}),
        ("PUT", "/bbb", {}),
        ("GET", "/bbb/a?bogus", {}),
        ("POST", "/bbb/a", {"x-goog-resumable": "start"}),
        ("PUT", "/bbb/a", {"x-goog-acl": "public-read"}),
        ("GET", "/bbb/a", {"x-goog-encryption-key": "x"}),
    ],
)
def test_the_rest_of_the_xml_api_is_refused_as_not_implemented(url, verb, path, headers):
    upload(url, "a")
    answer = requests.request(verb, f"{url}{path}", headers=headers, timeout=5)
    assert (answer.status_code, "does not implement" in answer.text) == (400, True)


# Batches


def test_a_batch_answers_each_call_for_itself(url):
    upload(url, "a")
    calls = ["DELETE /storage/v1/b/bbb/o/a", "DELETE /storage/v1/b/bbb/o/a", "GET /_t/x/storage/v1/b/bbb"]
    parts = "".join(
        f"--x\r\nContent-Type: application/http\r\nContent-ID: <{n}>\r\n\r\n{call} HTTP/1.1\r\n\r\n\r\n"
        for n, call in enumerate(calls)
    )
    headers = {"content-type": "multipart/mixed; boundary=x"}
    answer = requests.post(f"{url}/batch/storage/v1", data=f"{parts}--x--", headers=headers, timeout=5)
    statuses = [line.split()[1] for line in answer.text.splitlines() if line.startswith("HTTP/1.1")]
    assert statuses == ["204", "404", "200"]


def test_racing_writers_by_both_apis_have_one_winner(url):
    start = threading.Barrier(8)

    def race(number: int) -> int:
        start.wait()
        if number % 2:
            return upload(url, "lease", str(number).encode(), ifGenerationMatch="0").status_code
        headers = {"x-goog-if-generation-match": "0"}
        return requests.put(f"{url}/bbb/lease", data=str(number), headers=headers, timeout=10).status_code

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(race, range(8))) == [200, *[412] * 7]
