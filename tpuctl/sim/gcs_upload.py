"""Uploads of the GCS JSON API: multipart bodies and resumable sessions."""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any

from tpuctl.sim.gcs_wire import GcsError, ObjectName, Preconditions

CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


def parse_multipart(content_type: str, body: bytes) -> tuple[dict[str, Any], str | None, bytes]:
    """Metadata, content type and content of a `multipart/related` upload.

    Lines end in CRLF or, from apitools as shipped with gcloud 528, in LF; that also puts single quotes around
    the boundary in the header.
    """
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_boundary()
    if boundary is None:
        raise GcsError(400, "multipart upload without a boundary")
    marker = re.escape(boundary.strip("'").encode())
    parts = re.split(rb"(?:^|\r?\n)--" + marker + rb"(?:--)?[ \t]*(?:\r?\n|$)", body)
    if len(parts) < 3:
        raise GcsError(400, "a multipart upload has two parts: metadata and media")
    _, metadata = _split_part(parts[1])
    media_type, content = _split_part(parts[2])
    try:
        return json.loads(metadata), media_type, content
    except ValueError:
        raise GcsError(400, "the metadata of the multipart upload is not JSON") from None


def _split_part(part: bytes) -> tuple[str | None, bytes]:
    found = re.match(rb"(.*?)\r?\n\r?\n", part, re.DOTALL)
    if found is None:
        raise GcsError(400, "a part of the multipart upload has no headers")
    named = re.search(rb"^content-type:[ \t]*([^\r\n]+)", found[1], re.IGNORECASE | re.MULTILINE)
    return (named[1].decode("latin-1").strip() if named else None), part[found.end() :]


@dataclass
class UploadSession:
    """An object on its way; `received` bytes lie in `file`."""

    where: ObjectName
    fields: Mapping[str, Any]
    conditions: Preconditions
    file: Path
    received: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def append(self, content_range: str | None, body: bytes) -> bool:
        """Takes the bytes of one request; True when the object is complete. 400 for a gap."""
        found = CONTENT_RANGE.fullmatch(content_range.strip()) if content_range else None
        if content_range and found is None:
            raise GcsError(400, f"Invalid content-range: {content_range}")
        first, _, total = found.groups() if found else ("0", None, str(len(body)))
        if first is not None:
            self._write(int(first), body)
        return total != "*" and self.received >= int(total)

    def _write(self, first: int, body: bytes) -> None:
        if first > self.received:
            raise GcsError(400, f"the chunk starts at {first} but only {self.received} bytes were received")
        news = body[self.received - first :]  # a client that missed our answer repeats itself
        with self.file.open("ab") as stream:
            stream.write(news)
        self.received += len(news)

    def progress(self) -> dict[str, str]:
        """The Range header of a 308, absent before the first byte."""
        return {"range": f"bytes=0-{self.received - 1}"} if self.received else {}


class UploadSessions:
    """Resumable uploads by id. They do not survive a restart of the simulator; clients then start again."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.iterdir():
            stale.unlink()
        self._folder = folder
        self._sessions: dict[str, UploadSession] = {}

    def begin(self, where: ObjectName, fields: Mapping[str, Any], conditions: Preconditions) -> str:
        upload_id = uuid.uuid4().hex
        file = self._folder / upload_id
        file.touch()
        self._sessions[upload_id] = UploadSession(where, fields, conditions, file)
        return upload_id

    def get(self, upload_id: str) -> UploadSession:
        session = self._sessions.get(upload_id)
        if session is None:
            raise GcsError(404, f"No such upload: {upload_id}")
        return session

    def end(self, upload_id: str) -> None:
        session = self._sessions.pop(upload_id, None)
        if session is not None:
            session.file.unlink(missing_ok=True)
