"""Multipart uploads of the GCS XML API: parts in any order, put together at the end
(https://cloud.google.com/storage/docs/multipart-uploads)."""

from __future__ import annotations

import shutil
import threading
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpuctl.sim.gcs.content import Content, ContentFiles, pieces_of
from tpuctl.sim.gcs.lifecycle import ABORT, actions_on
from tpuctl.sim.gcs.objects import ObjectStore
from tpuctl.sim.gcs.uploads import header_digests
from tpuctl.sim.gcs.versions import check_digests
from tpuctl.sim.gcs.wire import (
    Data,
    GcsError,
    ObjectName,
    Preconditions,
    elements,
    md5_etag,
    timestamp,
    xml_result,
)
from tpuctl.sim.wire.messages import Request, Response

MAX_PARTS = 10_000
MIN_PART = 5 * 1024**2
"""Of every part but the last."""


@dataclass
class _Upload:
    where: ObjectName
    fields: Mapping[str, Any]
    files: ContentFiles
    folder: Path
    begun: str
    """When, as the API writes times."""
    parts: dict[int, Content] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class PartUploads:
    """Uploads in parts by id. They do not survive a restart of the simulator; clients then start again."""

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        self._store = store
        shutil.rmtree(folder, ignore_errors=True)
        self._folder = folder
        self._uploads: dict[str, _Upload] = {}

    def begin(self, where: ObjectName, fields: Mapping[str, Any]) -> Response:
        self._store.get_bucket(where.bucket)
        upload_id = uuid.uuid4().hex
        folder = self._folder / upload_id
        self._uploads[upload_id] = _Upload(
            where, fields, ContentFiles(folder), folder, timestamp(self._store.now())
        )
        rows = [("Bucket", where.bucket), ("Key", where.name), ("UploadId", upload_id)]
        return xml_result("InitiateMultipartUploadResult", rows)

    @contextmanager
    def _open(self, request: Request, where: ObjectName) -> Iterator[_Upload]:
        upload = self._uploads.get(request.query["uploadId"][-1])
        if upload is None or upload.where != where:
            raise GcsError(404, "The requested upload was not found.", code="NoSuchUpload")
        with upload.lock:
            if not upload.folder.exists():
                raise GcsError(404, "The requested upload was not found.", code="NoSuchUpload")
            yield upload

    def put(self, request: Request, where: ObjectName) -> Response:
        """Not under the upload's lock while it writes: parts come several at a time."""
        number = request.query["partNumber"][-1]
        if not (number.isascii() and number.isdecimal() and len(number) < 6 and 1 <= int(number) <= MAX_PARTS):
            raise GcsError(400, f"Part number must be an integer between 1 and {MAX_PARTS}, inclusive.")
        with self._open(request, where) as upload:
            files = upload.files
        part = files.save(pieces_of(request.content))
        try:
            check_digests(header_digests(request), part)
            with self._open(request, where):
                old = upload.parts.get(int(number))
                upload.parts[int(number)] = part
        except GcsError:
            files.remove(part.file)
            raise
        if old:
            files.remove(old.file)
        return Response(
            200,
            b"",
            {"etag": md5_etag(part.md5)},
            [("x-goog-hash", f"crc32c={part.crc32c}"), ("x-goog-hash", f"md5={part.md5}")],
        )

    def complete(self, request: Request, where: ObjectName, conditions: Preconditions) -> Data:
        with self._open(request, where) as upload:
            chosen = _chosen_parts(request, upload.parts)
            content = self._store.files.save(
                piece for part in chosen for piece in pieces_of(upload.files.open(part.file))
            )
            # Like what is composed, it has no MD5.
            data = self._store.write(where, content.of_components(0), upload.fields, conditions)
            self._end(request)
        return data

    def abort_old(self, bucket: Data, now: float) -> None:
        """What the bucket's lifecycle rules say of uploads that nobody ends."""
        for upload_id, upload in list(self._uploads.items()):
            seen = {"name": upload.where.name, "timeCreated": upload.begun}
            if upload.where.bucket == bucket["name"] and any(actions_on(bucket, seen, 0, now, ABORT)):
                with upload.lock:
                    self._uploads.pop(upload_id, None)
                    shutil.rmtree(upload.folder, ignore_errors=True)

    def abort(self, request: Request, where: ObjectName) -> Response:
        with self._open(request, where):
            self._end(request)
        return Response(204)

    def _end(self, request: Request) -> None:
        upload = self._uploads.pop(request.query["uploadId"][-1])
        shutil.rmtree(upload.folder)

    def list(self, request: Request, where: ObjectName) -> Response:
        """All parts on one page."""
        with self._open(request, where) as upload:
            parts = sorted(upload.parts.items())
        rows = [("Bucket", where.bucket), ("Key", where.name), ("UploadId", request.query["uploadId"][-1])]
        body = ""
        for number, part in parts:
            shown = [("PartNumber", str(number)), ("ETag", md5_etag(part.md5)), ("Size", str(part.size))]
            body += f"<Part>{elements(shown)}</Part>"
        return xml_result("ListPartsResult", [*rows, ("IsTruncated", "false")], body)

    def list_uploads(self, bucket: str) -> Response:
        body = ""
        for upload_id, upload in sorted(self._uploads.items()):
            if upload.where.bucket == bucket:
                shown = elements([("Key", upload.where.name), ("UploadId", upload_id)])
                body += f"<Upload>{shown}</Upload>"
        rows = [("Bucket", bucket), ("IsTruncated", "false")]
        return xml_result("ListMultipartUploadsResult", rows, body)


def _chosen_parts(request: Request, parts: Mapping[int, Content]) -> list[Content]:
    """Those that the body names, in its order, which must be that of their numbers."""
    chosen: list[Content] = []
    last = 0
    for number, etag in _named_parts(request):
        part = parts.get(number)
        if part is None or etag.strip('"') != md5_etag(part.md5).strip('"'):
            raise GcsError(400, f"Part {number} was not uploaded, or its ETag is another.", code="InvalidPart")
        if number <= last:
            raise GcsError(400, "The parts are not in order of their numbers.", code="InvalidPartOrder")
        last = number
        chosen.append(part)
    if not chosen:
        raise GcsError(400, "No parts are named.", code="MalformedCompleteMultipartUploadRequest")
    for part in chosen[:-1]:
        if part.size < MIN_PART:
            raise GcsError(
                400, f"A part of {part.size} bytes is smaller than {MIN_PART}.", code="EntityTooSmall"
            )
    return chosen


def _named_parts(request: Request) -> list[tuple[int, str]]:
    malformed = GcsError(
        400, "The body is not a CompleteMultipartUpload.", code="MalformedCompleteMultipartUploadRequest"
    )
    if b"<!" in request.body:
        raise malformed  # no entities: they can grow without bound
    try:
        root = ET.fromstring(request.body)  # noqa: S314 - without entities, and of bounded size
        return [
            (int(part.findtext("{*}PartNumber") or ""), part.findtext("{*}ETag") or "")
            for part in root.findall("{*}Part")
        ]
    except (ET.ParseError, ValueError):
        raise malformed from None
