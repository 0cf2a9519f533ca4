"""Odd requests at the APIs of the simulated Cloud Storage: never a 500, and every list can still be read."""

from __future__ import annotations

import json
import random
import re
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.soak import soak
from tpuctl.sim.gcs.methods import load_api
from tpuctl.sim.gcs.server import GcsApi
from tpuctl.sim.wire.messages import Request, Response

VALUES = [
    *(None, True, 0, -1, 2**70, 1.5, "", "a", "bbb", "true", "-1", "9" * 20, "\ud800", "\x00", "é", "NaN"),
    *("2026-01-01T00:00:00Z", [], {}, ["a"], {"a": "b"}, {"enabled": True}, [{}], [None], [{"name": "a"}]),
]
WORDS = [
    "",
    *[
        "0",
        "1",
        "-1",
        "x",
        "true",
        "a/",
        "/",
        "*",
        "{a,b}",
        "[",
        "[z-a]",
        "WyJhIiwxXQ==",
        "items(n",
        "99999999999999999999",
    ],
]
HEADERS = [
    *("x-goog-copy-source", "x-goog-if-generation-match", "if-match", "if-modified-since", "range"),
    *("x-goog-hash", "content-md5", "content-type", "content-range", "x-goog-custom-time"),
    "x-goog-storage-class",
]
TEXTS = ["0", "x", "bbb/a", "*", "crc32c=x", "%ff", "bytes=0-0", "bytes 5-1/3", "bytes 0-9/*", "bytes */*"]
XML_PARAMETERS = [
    "uploads",
    "uploadId",
    "partNumber",
    "generation",
    "list-type",
    "prefix",
    "max-keys",
    "marker",
]
CALLS = 3000


class Fuzzer:
    def __init__(self, root: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.api = GcsApi(root, now=time.time)
        self.methods, self.types = load_api()

    def send(
        self, verb: str, path: str, query: dict[str, str], headers: dict[str, str], body: bytes
    ) -> Response:
        lists = {name: [value] for name, value in query.items()}
        answer = self.api.handle(Request(verb, path, lists, {"host": "localhost", **headers}, body))
        assert answer.status < 500, (verb, path, query, headers, body, bytes(answer.body))
        return answer

    def some(self, names: list[str], values: list[str]) -> dict[str, str]:
        picked = self.random.sample(names, min(len(names), self.random.randint(0, 3)))
        return {name: self.random.choice(values) for name in picked}

    def message(self, name: str, depth: int = 0) -> Any:
        fields, found = self.types.messages.get(name, {}), {}
        for key in self.random.sample(sorted(fields), min(len(fields), self.random.randint(0, 5))):
            inner = fields[key].strip("[]{}")
            if inner in self.types.messages and depth < 3 and self.random.random() < 0.6:
                value = self.message(inner, depth + 1)
                found[key] = [value] if fields[key].startswith("[") else value
            else:
                found[key] = self.random.choice(VALUES)
        return found

    def json_call(self) -> None:
        method = self.random.choice(self.methods)
        names = ["a", "b", "é", "x/y", "\x00"]
        path = re.sub(
            r"\(\[\^/\]\+\)", lambda _: quote(self.random.choice(names), safe=""), method.pattern.pattern
        )
        body = json.dumps(self.message(method.body)).encode() if method.body else b""
        query = self.some([*sorted(self.types.queries[method.id]), "fields"], WORDS)
        path = re.sub(r"^b/[^/]+", "b/bbb", path)
        self.send(method.verb, f"/storage/v1/{path}", query, self.some(["range"], TEXTS), body)

    def xml_call(self) -> None:
        verb = self.random.choice(["GET", "PUT", "POST", "DELETE", "HEAD", "PATCH"])
        path = self.random.choice(["/bbb", "/bbb/a", "/bbb/%C3%A9", "/nope/a", "/bbb/%ff", "/bbb//", "/bbb/a/"])
        body = self.random.choice(
            [b"", b"x", b"<a/>", b"<!x>", b"<C><Part><PartNumber>x</PartNumber></Part></C>"]
        )
        self.send(verb, path, self.some(XML_PARAMETERS, WORDS), self.some(HEADERS, TEXTS), body)

    def upload(self) -> None:
        kind = self.random.choice(["media", "multipart", "resumable", "x"])
        metadata = json.dumps(self.message("Object")).encode()
        body = self.random.choice(
            [b"", b"x", metadata, b"--b\r\n\r\n" + metadata + b"\r\n--b\r\n\r\nx\r\n--b--"]
        )
        headers = {"content-type": "multipart/related; boundary=b", **self.some(HEADERS, TEXTS)}
        query = {"uploadType": kind, "name": self.random.choice(["a", "b", "", ".", "é"])}
        begun = self.send("POST", "/upload/storage/v1/b/bbb/o", query, headers, body)
        session = begun.headers.get("x-guploader-uploadid")
        if session:
            verb = self.random.choice(["PUT", "POST", "DELETE"])
            where = {"upload_id": session}
            self.send(verb, "/upload/storage/v1/b/bbb/o", where, self.some(HEADERS, TEXTS), b"x")

    def check_lists(self) -> None:
        self.send("POST", "/storage/v1/b", {"project": "p"}, {}, b'{"name": "bbb"}')
        for query in ({}, {"versions": "true"}, {"softDeleted": "true"}):
            listed = self.send("GET", "/storage/v1/b/bbb/o", query, {}, b"")
            assert json.loads(bytes(listed.body))["kind"] == "storage#objects"
        assert self.send("GET", "/storage/v1/b", {"project": "p"}, {}, b"").status == 200
        assert ET.fromstring(bytes(self.send("GET", "/bbb", {}, {}, b"").body)).tag.endswith("ListBucketResult")


@pytest.mark.parametrize("seed", [0, soak(1), soak(2)])
def test_odd_requests_are_answered_and_poison_nothing(tmp_path, seed):
    fuzzer = Fuzzer(tmp_path, seed)
    fuzzer.check_lists()
    for number in range(CALLS):
        kind = fuzzer.random.choices(["json_call", "xml_call", "upload"], [6, 2, 2])[0]
        getattr(fuzzer, kind)()
        if number % 200 == 199:
            fuzzer.check_lists()
    fuzzer.api.close()
