"""Answers with the content of an object, of both APIs."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tpuctl.sim.gcs.content import unzipped
from tpuctl.sim.gcs.wire import parse_range
from tpuctl.sim.wire.messages import Request, Response

_SENT_WITH_MEDIA: Mapping[str, str] = {
    "cacheControl": "cache-control",
    "contentDisposition": "content-disposition",
    "contentLanguage": "content-language",
    "contentEncoding": "content-encoding",
}


def hashes(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """`x-goog-hash`, once for each digest."""
    found = [("x-goog-hash", f"crc32c={data['crc32c']}")]
    return found + ([("x-goog-hash", f"md5={data['md5Hash']}")] if "md5Hash" in data else [])


def media_headers(data: Mapping[str, Any]) -> dict[str, str]:
    headers = {
        "content-type": data.get("contentType", "application/octet-stream"),
        "etag": data["etag"],
        "accept-ranges": "bytes",
        "x-goog-generation": data["generation"],
        "x-goog-metageneration": data["metageneration"],
        "x-goog-storage-class": data["storageClass"],
        "x-goog-stored-content-length": data["size"],
        "x-goog-stored-content-encoding": data.get("contentEncoding", "identity"),
    }
    if "componentCount" in data:
        headers["x-goog-component-count"] = str(data["componentCount"])
    return headers | {name: data[key] for key, name in _SENT_WITH_MEDIA.items() if key in data}


def media_response(
    data: Mapping[str, Any], content: memoryview, request: Request, headers: Mapping[str, str]
) -> Response:
    """All of it or a range. What is stored compressed goes out so to who takes gzip, and otherwise as it was
    before, whole whatever was asked (https://cloud.google.com/storage/docs/transcoding)."""
    keeps = "gzip" in request.headers.get("accept-encoding", "") or "no-transform" in data.get(
        "cacheControl", ""
    )
    if data.get("contentEncoding") == "gzip" and not keeps:
        with suppress(ValueError, zlib.error):
            plain = {key: value for key, value in headers.items() if key != "content-encoding"}
            plain["warning"] = "214 UploadServer gunzipped"
            return Response(200, unzipped(content), plain, hashes(data))
    wanted = parse_range(request.headers.get("range"), len(content))
    if wanted is None:
        return Response(200, content, headers, hashes(data))
    ranged = {**headers, "content-range": wanted.header(len(content))}
    return Response(206, content[wanted.start : wanted.stop], ranged, hashes(data))
