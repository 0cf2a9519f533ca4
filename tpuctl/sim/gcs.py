"""Cloud Storage's JSON API on a directory: enough for google-cloud-storage, `gcloud storage` and gcsfuse-like
readers, with every precondition honoured.

Not there: object versions, access control, notifications, batches, the XML API.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from tpuctl.sim.gcs_objects import Data, ObjectStore
from tpuctl.sim.gcs_upload import UploadSessions, parse_multipart
from tpuctl.sim.gcs_wire import (
    GcsError,
    ObjectName,
    Preconditions,
    parameter,
    parse_range,
    whole_number,
)
from tpuctl.sim.messages import Request, Response, json_response

PAGE_LIMIT = 1000
BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
Handler = Callable[..., Response]


class GcsDoor:
    """Answers requests below `/storage/v1`, `/upload/storage/v1` and `/download/storage/v1`. Thread-safe."""

    def __init__(self, root: Path, *, now: Callable[[], float]) -> None:
        self._store = ObjectStore(root, now)
        self._uploads = UploadSessions(root / "uploads")
        bucket = r"/b/([^/]+)"
        self._routes: list[tuple[str, re.Pattern[str], Handler]] = [
            (method, re.compile(pattern), handler)
            for method, pattern, handler in (
                ("POST", rf"(?:/resumable)?/upload/storage/v1{bucket}/o", self._upload),
                ("PUT", rf"(?:/resumable)?/upload/storage/v1{bucket}/o", self._continue_upload),
                ("DELETE", rf"(?:/resumable)?/upload/storage/v1{bucket}/o", self._cancel_upload),
                ("GET", rf"/download/storage/v1{bucket}/o/(.+)", self._download),
                ("GET", r"/storage/v1/b", self._list_buckets),
                ("POST", r"/storage/v1/b", self._create_bucket),
                ("GET", rf"/storage/v1{bucket}", self._get_bucket),
                ("PATCH", rf"/storage/v1{bucket}", self._update_bucket),
                ("PUT", rf"/storage/v1{bucket}", self._update_bucket),
                ("DELETE", rf"/storage/v1{bucket}", self._delete_bucket),
                ("GET", rf"/storage/v1{bucket}/storageLayout", self._storage_layout),
                ("GET", rf"/storage/v1{bucket}/(?:managedFolders|folders)", self._no_folders),
                ("GET", rf"/storage/v1{bucket}/o", self._list_objects),
                ("POST", rf"/storage/v1{bucket}/o", self._upload),
                ("POST", rf"/storage/v1{bucket}/o/(.+)/rewriteTo{bucket}/o/(.+)", self._rewrite),
                ("POST", rf"/storage/v1{bucket}/o/(.+)/copyTo{bucket}/o/(.+)", self._copy),
                ("POST", rf"/storage/v1{bucket}/o/(.+)/compose", self._compose),
                ("GET", rf"/storage/v1{bucket}/o/(.+)", self._get_object),
                ("PATCH", rf"/storage/v1{bucket}/o/(.+)", self._update_object),
                ("PUT", rf"/storage/v1{bucket}/o/(.+)", self._update_object),
                ("DELETE", rf"/storage/v1{bucket}/o/(.+)", self._delete_object),
            )
        ]

    def handle(self, request: Request) -> Response:
        """Never raises for what a client sent; errors are answers in Google's form."""
        path = request.path.rstrip("/")
        try:
            for method, pattern, handler in self._routes:
                found = pattern.fullmatch(path)
                if found and method == request.method:
                    return handler(request, *found.groups())
            raise GcsError(404, f"Not Found: {request.method} {request.path}")
        except GcsError as error:
            return error.response()

    @property
    def is_unused(self) -> bool:
        """At most one bucket, with nothing in it."""
        return self._store.is_unused

    def close(self) -> None:
        self._store.close()

    # Buckets

    def _list_buckets(self, request: Request) -> Response:
        project = parameter(request, "project")
        prefix = parameter(request, "prefix") or ""
        found = [
            _public_bucket(bucket, request)
            for bucket in self._store.list_buckets()
            if bucket["name"].startswith(prefix) and project in (None, bucket.get("project"))
        ]
        return json_response({"kind": "storage#buckets", "items": found})

    def _create_bucket(self, request: Request) -> Response:
        data = _json(request)
        name = data.get("name")
        if not isinstance(name, str) or not BUCKET_NAME.fullmatch(name):
            raise GcsError(400, f"Invalid bucket name: '{name}'")
        made = self._store.create_bucket({**data, "project": parameter(request, "project")})
        return json_response(_public_bucket(made, request))

    def _get_bucket(self, request: Request, bucket: str) -> Response:
        data = self._store.get_bucket(unquote(bucket))
        Preconditions.of(request).check(data, reading=True)
        return json_response(_public_bucket(data, request))

    def _update_bucket(self, request: Request, bucket: str) -> Response:
        data = self._store.update_bucket(unquote(bucket), _json(request), Preconditions.of(request))
        return json_response(_public_bucket(data, request))

    def _delete_bucket(self, request: Request, bucket: str) -> Response:
        self._store.delete_bucket(unquote(bucket), Preconditions.of(request))
        return Response(204)

    def _storage_layout(self, _request: Request, bucket: str) -> Response:
        data = self._store.get_bucket(unquote(bucket))
        layout = {
            "kind": "storage#storageLayout",
            "bucket": data["name"],
            "location": data["location"],
            "locationType": data["locationType"],
            "hierarchicalNamespace": {"enabled": False},
        }
        return json_response(layout)

    def _no_folders(self, _request: Request, bucket: str) -> Response:
        self._store.get_bucket(unquote(bucket))
        return json_response({"items": []})

    # Objects

    def _list_objects(self, request: Request, bucket: str) -> Response:
        limit = whole_number(parameter(request, "maxResults"), "maxResults") or PAGE_LIMIT
        prefix = parameter(request, "prefix") or ""
        delimiter = parameter(request, "delimiter") or ""
        after = _decode_token(parameter(request, "pageToken"))
        start = max(prefix, parameter(request, "startOffset") or "", after)
        end = parameter(request, "endOffset")
        trailing = parameter(request, "includeTrailingDelimiter") == "true"
        items: list[Data] = []
        prefixes: dict[str, None] = {}
        last = ""
        for name, data in self._store.names(unquote(bucket), start=start):
            if not name.startswith(prefix) or (end and name >= end):
                break
            key, is_prefix = _collapse(name, prefix, delimiter)
            if (after and key <= after) or key in prefixes:
                continue
            if len(items) + len(prefixes) >= min(limit, PAGE_LIMIT):
                return _object_page(request, items, prefixes, last)
            if is_prefix:
                prefixes[key] = None
            if not is_prefix or (trailing and key == name):
                items.append(json.loads(data))
            last = key
        return _object_page(request, items, prefixes, None)

    def _get_object(self, request: Request, bucket: str, name: str) -> Response:
        if parameter(request, "alt") == "media":
            return self._download(request, bucket, name)
        found = self._store.get(ObjectName.decode(bucket, name), Preconditions.of(request))
        return json_response(_public_object(found, request))

    def _download(self, request: Request, bucket: str, name: str) -> Response:
        data, content = self._store.read(ObjectName.decode(bucket, name), Preconditions.of(request))
        headers = _media_headers(data)
        wanted = parse_range(request.headers.get("range"), len(content))
        if wanted is None:
            return Response(200, content, headers)
        headers["content-range"] = wanted.header(len(content))
        return Response(206, content[wanted.start : wanted.stop], headers)

    def _update_object(self, request: Request, bucket: str, name: str) -> Response:
        where = ObjectName.decode(bucket, name)
        data = self._store.update(where, _json(request), Preconditions.of(request))
        return json_response(_public_object(data, request))

    def _delete_object(self, request: Request, bucket: str, name: str) -> Response:
        self._store.delete(ObjectName.decode(bucket, name), Preconditions.of(request))
        return Response(204)

    def _copied(self, request: Request, *parts: str) -> Data:
        source = ObjectName.decode(parts[0], parts[1])
        data, content = self._store.read(source, Preconditions.of(request, "Source"))
        fields = _json(request) or data
        conditions = Preconditions.of(request)
        return self._store.write(ObjectName.decode(parts[2], parts[3]), content, fields, conditions)

    def _copy(self, request: Request, *parts: str) -> Response:
        return json_response(_public_object(self._copied(request, *parts), request))

    def _rewrite(self, request: Request, *parts: str) -> Response:
        """Always done in one call."""
        data = self._copied(request, *parts)
        answer = {
            "kind": "storage#rewriteResponse",
            "totalBytesRewritten": data["size"],
            "objectSize": data["size"],
            "done": True,
            "resource": _public_object(data, request),
        }
        return json_response(answer)

    def _compose(self, request: Request, bucket: str, name: str) -> Response:
        where = ObjectName.decode(bucket, name)
        asked = _json(request)
        pieces = []
        for source in asked.get("sourceObjects", []):
            match = source.get("objectPreconditions", {}).get("ifGenerationMatch")
            generation = source.get("generation")
            conditions = Preconditions(
                generation_match=int(match) if match is not None else None,
                generation=int(generation) if generation else None,
            )
            pieces.append(self._store.read(ObjectName(where.bucket, source["name"]), conditions)[1])
        fields = asked.get("destination", {})
        data = self._store.write(where, b"".join(pieces), fields, Preconditions.of(request))
        return json_response(_public_object(data, request))

    # Uploads

    def _upload(self, request: Request, bucket: str) -> Response:
        kind = parameter(request, "uploadType") or "media"
        if kind == "resumable":
            return self._begin_upload(request, bucket)
        content_type = request.headers.get("content-type")
        if kind == "multipart":
            fields, media_type, content = parse_multipart(content_type or "", request.body)
            content_type = media_type
        elif kind == "media":
            fields, content = {}, request.body
        else:
            raise GcsError(400, f"Invalid upload type: {kind}")
        return self._store_upload(request, bucket, fields, content_type, content)

    def _store_upload(
        self, request: Request, bucket: str, fields: Data, content_type: str | None, content: bytes
    ) -> Response:
        where = _target(request, bucket, fields)
        fields = {"contentType": content_type, **_without_nulls(fields), **_header_digests(request)}
        data = self._store.write(where, content, fields, Preconditions.of(request))
        return json_response(_public_object(data, request))

    def _begin_upload(self, request: Request, bucket: str) -> Response:
        fields = _json(request)
        where = _target(request, bucket, fields)
        conditions = Preconditions.of(request)
        self._store.check_write(where, conditions)
        content_type = request.headers.get("x-upload-content-type")
        fields = {"contentType": content_type, **_without_nulls(fields)}
        upload_id = self._uploads.begin(where, fields, conditions)
        address = (
            f"{_base_url(request)}/upload/storage/v1/b/{quote(where.bucket, safe='')}/o"
            f"?uploadType=resumable&upload_id={upload_id}"
        )
        return Response(200, b"", {"location": address, "x-guploader-uploadid": upload_id})

    def _continue_upload(self, request: Request, _bucket: str) -> Response:
        upload_id = parameter(request, "upload_id") or ""
        session = self._uploads.get(upload_id)
        with session.lock:
            if not session.append(request.headers.get("content-range"), request.body):
                return Response(308, b"", session.progress())
            content = session.file.read_bytes()
            fields = {**session.fields, **_header_digests(request)}
            try:
                data = self._store.write(session.where, content, fields, session.conditions)
            finally:
                self._uploads.end(upload_id)
        return json_response(_public_object(data, request))

    def _cancel_upload(self, request: Request, _bucket: str) -> Response:
        """499, as the documentation of resumable uploads says."""
        upload_id = parameter(request, "upload_id") or ""
        self._uploads.get(upload_id)
        self._uploads.end(upload_id)
        return Response(499)


def _json(request: Request) -> Data:
    try:
        data = request.json()
    except ValueError:
        raise GcsError(400, "Parse Error") from None
    if not isinstance(data, dict):
        raise GcsError(400, "a JSON object was expected")
    return data


def _without_nulls(fields: Data) -> Data:
    return {key: value for key, value in fields.items() if value is not None}


def _target(request: Request, bucket: str, fields: Data) -> ObjectName:
    name = parameter(request, "name") or fields.get("name")
    if not isinstance(name, str) or not name:
        raise GcsError(400, "Required object name is missing")
    if len(name.encode()) > 1024:
        raise GcsError(400, "The specified object name is longer than 1024 bytes")
    return ObjectName(unquote(bucket), name)


def _header_digests(request: Request) -> Data:
    """`X-Goog-Hash: crc32c=…,md5=…`, which newer clients send with the last bytes."""
    pairs = (each.strip().partition("=") for each in request.headers.get("x-goog-hash", "").split(","))
    keys = {"crc32c": "crc32c", "md5": "md5Hash"}
    return {keys[name]: value for name, _, value in pairs if name in keys}


def _base_url(request: Request) -> str:
    return "http://" + request.headers.get("host", "localhost")


def _public_bucket(data: Data, request: Request) -> Data:
    shown = {key: value for key, value in data.items() if key != "project"}
    return {**shown, "selfLink": f"{_base_url(request)}/storage/v1/b/{quote(data['name'], safe='')}"}


def _public_object(data: Data, request: Request) -> Data:
    place = f"storage/v1/b/{quote(data['bucket'], safe='')}/o/{quote(data['name'], safe='')}"
    base = _base_url(request)
    media = f"{base}/download/{place}?generation={data['generation']}&alt=media"
    return {**data, "selfLink": f"{base}/{place}", "mediaLink": media}


def _media_headers(data: Data) -> dict[str, str]:
    headers = {
        "content-type": data["contentType"],
        "etag": data["etag"],
        "accept-ranges": "bytes",
        "x-goog-generation": data["generation"],
        "x-goog-metageneration": data["metageneration"],
        "x-goog-hash": f"crc32c={data['crc32c']},md5={data['md5Hash']}",
        "x-goog-storage-class": data["storageClass"],
        "x-goog-stored-content-length": data["size"],
        "x-goog-stored-content-encoding": data.get("contentEncoding", "identity"),
    }
    if "contentEncoding" in data:
        headers["content-encoding"] = data["contentEncoding"]
    return headers


def _collapse(name: str, prefix: str, delimiter: str) -> tuple[str, bool]:
    """What a listing shows for `name`, and whether that is a common prefix instead of the object."""
    at = name.find(delimiter, len(prefix)) if delimiter else -1
    return (name, False) if at < 0 else (name[: at + len(delimiter)], True)


def _decode_token(token: str | None) -> str:
    """Everything up to and including this key was listed before."""
    try:
        return base64.b64decode(token, b"-_", validate=True).decode() if token else ""
    except ValueError:
        raise GcsError(400, f"Invalid pageToken: {token}") from None


def _object_page(
    request: Request, items: Iterable[Data], prefixes: Iterable[str], last: str | None
) -> Response:
    page: dict[str, Any] = {"kind": "storage#objects"}
    found = [_public_object(item, request) for item in items]
    common = list(prefixes)
    if found:
        page["items"] = found
    if common:
        page["prefixes"] = common
    if last is not None:
        page["nextPageToken"] = base64.urlsafe_b64encode(last.encode()).decode()
    return json_response(page)
