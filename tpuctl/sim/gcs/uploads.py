"""Uploads of the GCS JSON API: at once, with metadata in front, or resumable."""

from __future__ import annotations

import json
import re
import threading
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tpuctl.sim.gcs.content import pieces_of, unzipped
from tpuctl.sim.gcs.json_api import check_name, show_object
from tpuctl.sim.gcs.methods import UPLOADS, Call, read_body, read_resource
from tpuctl.sim.gcs.objects import ObjectStore
from tpuctl.sim.gcs.wire import Data, GcsError, ObjectName, Preconditions, base_url, invalid, not_implemented
from tpuctl.sim.wire.messages import Request, Response

CONTENT_RANGE = re.compile(r"bytes (?:(\d{1,19})-(\d{1,19}|\*)|\*)/(\d{1,19}|\*)")
CHUNK = 256 * 1024
MAX_METADATA = 1024**2
KEPT_SESSIONS = 1000
"""Ended ones, so that a client that missed the last answer is told again."""


def is_session(request: Request) -> bool:
    """Whether a request is for a resumable upload that has begun."""
    return request.path.startswith(UPLOADS) and "upload_id" in request.query


class Uploads:
    """Objects sent in one request, or begun and then sent to a session."""

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        self._store = store
        self._sessions = _Sessions(folder)

    def resume(self, request: Request) -> Data | Response:
        """A request to the address of a session: gcsfs sends its chunks by POST, the others by PUT."""
        upload_id = request.query["upload_id"][-1]
        return self._cancel(upload_id) if request.method == "DELETE" else self._continue(upload_id, request)

    def handle(self, call: Call) -> Data | Response:
        request = call.request
        kind = request.query["uploadType"][-1]
        if kind == "resumable":
            return self._begin(call)
        content_type, content = request.headers.get("content-type"), request.content
        fields: Data = {}
        if kind == "multipart":
            fields, content_type, content = _parse_multipart(content_type or "", _sent(request))
        elif kind != "media":
            raise invalid(f"Invalid upload type: {kind}")
        fields = _described(call, fields, content_type)
        where = check_name(call.bucket, fields.pop("name", None))
        stored = self._store.files.save(pieces_of(content))
        fields |= header_digests(request)
        return show_object(self._store, self._store.write(where, stored, fields, call.conditions()), request)

    def _begin(self, call: Call) -> Response:
        request = call.request
        fields = _described(call, read_body(request, "Object"), request.headers.get("x-upload-content-type"))
        where = check_name(call.bucket, fields.pop("name", None))
        conditions = call.conditions()
        self._store.check_write(where, conditions)
        upload_id = self._sessions.begin(where, fields, conditions)
        address = (
            f"{base_url(request)}/upload/storage/v1/b/{quote(where.bucket, safe='')}/o"
            f"?uploadType=resumable&upload_id={upload_id}"
        )
        return Response(200, b"", {"location": address, "x-guploader-uploadid": upload_id})

    def _continue(self, upload_id: str, request: Request) -> Data | Response:
        with self._sessions.open(upload_id) as session:
            if session.done is None:
                if request.headers.get("content-encoding"):
                    raise not_implemented("chunks of a resumable upload that are compressed on the way")
                if not session.append(request.headers.get("content-range"), request.content):
                    return _incomplete(request, session.progress())
                fields = {**session.fields, **header_digests(request)}
                content = self._store.files.save(session.pieces())
                try:
                    session.done = self._store.write(session.where, content, fields, session.conditions)
                finally:
                    self._sessions.end(upload_id, keep=session.done is not None)
            return show_object(self._store, session.done, request)

    def _cancel(self, upload_id: str) -> Response:
        """499, as the documentation of resumable uploads says."""
        with self._sessions.open(upload_id):
            self._sessions.end(upload_id, keep=False)
        return Response(499)


def _incomplete(request: Request, progress: Mapping[str, str]) -> Response:
    """308 asks for more; clients in Go ask for another status instead, as 308 means a redirect to them
    (googleapis/google-api-go-client, internal/gensupport/resumable.go)."""
    if request.headers.get("x-guploader-no-308") == "yes":
        return Response(200, b"", {**progress, "x-http-status-code-override": "308"})
    return Response(308, b"", progress)


def _sent(request: Request) -> memoryview:
    """The body; `gcloud storage cp --gzip-in-flight` compresses it for the way only."""
    if request.headers.get("content-encoding") != "gzip":
        return request.content
    try:
        return unzipped(request.content)
    except (ValueError, zlib.error) as error:
        raise invalid(f"The body is not gzip: {error}") from error


def _described(call: Call, fields: Data, content_type: str | None) -> Data:
    """Metadata from the body, the parameters and the headers of an upload."""
    found = {key: value for key, value in fields.items() if value is not None}
    if found.get("bucket", call.bucket) != call.bucket:
        raise invalid("The bucket in the metadata is not the one in the address.")
    named: Data = {key: call.query[key] for key in ("name", "contentEncoding") if key in call.query}
    return {**({"contentType": content_type} if content_type else {}), **found, **named}


def header_digests(request: Request) -> Data:
    """`X-Goog-Hash: crc32c=…,md5=…` and `Content-MD5`."""
    pairs = (each.strip().partition("=") for each in request.headers.get("x-goog-hash", "").split(","))
    keys = {"crc32c": "crc32c", "md5": "md5Hash"}
    found = {keys[name]: value for name, _, value in pairs if name in keys}
    md5 = request.headers.get("content-md5")
    return found | ({"md5Hash": md5} if md5 else {})


def _parse_multipart(content_type: str, body: memoryview) -> tuple[Data, str | None, memoryview]:
    """Metadata, content type and content of a `multipart/related` upload.

    Lines end in CRLF or, from apitools as shipped with gcloud 528, in LF; that also puts single quotes around
    the boundary in the header.
    """
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_boundary()
    if not boundary:
        raise invalid("multipart upload without a boundary")
    marker = rb"--" + re.escape(boundary.strip("'").encode("utf-8", "replace"))
    head = bytes(body[:MAX_METADATA])
    parts = re.compile(rb"(?:^|\r?\n)" + marker + rb"[ \t]*\r?\n")
    first = parts.search(head)
    second = parts.search(head, first.end()) if first else None
    # The last boundary is looked for from behind: what is in between may be large.
    tail = max(0, len(body) - len(marker) - 1024)
    ends = list(re.finditer(rb"\r?\n" + marker + rb"--", bytes(body[tail:])))
    if first is None or second is None or not ends:
        raise invalid("a multipart upload has two parts: metadata and media")
    _, metadata_at = _part_header(head, first.end(), second.start())
    media_type, media_at = _part_header(head, second.end(), len(head))
    end = tail + ends[-1].start()
    if end < media_at:
        raise invalid("a part of the multipart upload has no end")
    try:
        metadata = json.loads(head[metadata_at : second.start()])
    except (ValueError, RecursionError):
        raise GcsError(400, "Parse Error", reason="parseError") from None
    return read_resource("Object", metadata), media_type, body[media_at:end]


def _part_header(text: bytes, start: int, stop: int) -> tuple[str | None, int]:
    """The content type of a part, and where its content begins. It may have no headers (RFC 2046, 5.1), as the
    media of rclone."""
    found = re.compile(rb"\r?\n|(.*?)\r?\n\r?\n", re.DOTALL).match(text, start, stop)
    if found is None:
        raise invalid("a part of the multipart upload has no headers")
    named = re.search(rb"^content-type:[ \t]*([^\r\n]+)", found[1] or b"", re.IGNORECASE | re.MULTILINE)
    return (named[1].decode("latin-1").strip() if named else None), found.end()


@dataclass
class _Session:
    """An object on its way; `received` bytes lie in `file`. `done` is the object when it has arrived."""

    where: ObjectName
    fields: Mapping[str, Any]
    conditions: Preconditions
    file: Path
    received: int = 0
    done: Data | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def append(self, content_range: str | None, body: memoryview) -> bool:
        """Takes the bytes of one request; True when the object is complete. 400 for a gap, and for a chunk
        that is neither the last nor of a size that can be continued."""
        found = CONTENT_RANGE.fullmatch(content_range.strip()) if content_range else None
        if content_range and found is None:
            raise invalid(f"Invalid content-range: {content_range}")
        if found is None:
            first, size, total = 0, len(body), len(body)
        else:
            total = -1 if found[3] == "*" else int(found[3])
            first = self.received if found[1] is None else int(found[1])
            size = 0 if found[1] is None else len(body) if found[2] == "*" else int(found[2]) - first + 1
            if found[2] == "*" and total < 0:
                # All that there is from here on, as Google's library for Node sends it (resumable-upload.js).
                total = first + size
        if size != len(body):
            raise invalid(
                f"Invalid request.  There were {len(body)} byte(s) in the request body.  There should have "
                f"been {size} byte(s) (starting at offset {first} and ending at offset {first + size - 1}) "
                "according to the Content-Range header."
            )
        is_last = total >= 0 and first + size >= total
        if size and not is_last:
            size = self._resumable_size(size)
        self._write(first, body[:size])
        return total >= 0 and self.received >= total

    def _resumable_size(self, size: int) -> int:
        """Google keeps whole multiples of 256 KiB, and refuses less than one
        (https://github.com/fsouza/fake-gcs-server/issues/1080 quotes the answer)."""
        if size < CHUNK:
            raise invalid(
                "Invalid request.  The number of bytes uploaded is required to be equal or greater than "
                f"{CHUNK}, except for the final request (it's recommended to be the exact multiple of "
                f"{CHUNK}).  The received request contained {size} bytes, which does not meet this requirement."
            )
        return size - size % CHUNK

    def _write(self, first: int, body: memoryview) -> None:
        if first > self.received:
            raise invalid(f"the chunk starts at {first} but only {self.received} bytes were received")
        news = body[self.received - first :]  # a client that missed our answer repeats itself
        with self.file.open("ab") as stream:
            stream.write(news)
        self.received += len(news)

    def pieces(self) -> Iterator[bytes]:
        with self.file.open("rb") as stream:
            while piece := stream.read(1024**2):
                yield piece

    def progress(self) -> dict[str, str]:
        """The Range header of a 308, absent before the first byte."""
        return {"range": f"bytes=0-{self.received - 1}"} if self.received else {}


class _Sessions:
    """Resumable uploads by id. They do not survive a restart of the simulator; clients then start again."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.iterdir():
            stale.unlink()
        self._folder = folder
        self._lock = threading.Lock()
        self._sessions: dict[str, _Session] = {}
        self._ended: OrderedDict[str, _Session] = OrderedDict()

    def begin(self, where: ObjectName, fields: Mapping[str, Any], conditions: Preconditions) -> str:
        upload_id = uuid.uuid4().hex
        file = self._folder / upload_id
        file.touch()
        self._sessions[upload_id] = _Session(where, fields, conditions, file)
        return upload_id

    @contextmanager
    def open(self, upload_id: str) -> Iterator[_Session]:
        """The session, for one request at a time. 404 for one that is not known (any more)."""
        with self._lock:
            session = self._sessions.get(upload_id) or self._ended.get(upload_id)
        if session is None:
            raise GcsError(404, f"No such upload: {upload_id}")
        with session.lock:
            yield session

    def end(self, upload_id: str, *, keep: bool) -> None:
        with self._lock:
            session = self._sessions.pop(upload_id, None) or self._ended.pop(upload_id, None)
            if session is None:
                return
            session.file.unlink(missing_ok=True)
            if keep:
                self._ended[upload_id] = session
            if len(self._ended) > KEPT_SESSIONS:
                self._ended.popitem(last=False)
