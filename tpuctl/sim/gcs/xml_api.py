"""The GCS XML API: `/BUCKET/OBJECT`, as far as clients of data use it. obstore and whatever else is built on
object_store speak it alone, gcsfuse reads by it, and google-cloud-storage uploads large files in parts by it.

https://cloud.google.com/storage/docs/xml-api/reference-methods. Buckets are made and changed by the JSON API.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from email.utils import formatdate, parsedate_to_datetime
from pathlib import Path
from urllib.parse import quote

from tpuctl.sim.gcs.content import pieces_of
from tpuctl.sim.gcs.json_api import check_name
from tpuctl.sim.gcs.listing import PAGE_LIMIT, Listing, list_page
from tpuctl.sim.gcs.media import hashes, media_headers, media_response
from tpuctl.sim.gcs.objects import ObjectStore
from tpuctl.sim.gcs.uploads import header_digests
from tpuctl.sim.gcs.wire import (
    Data,
    GcsError,
    ObjectName,
    Preconditions,
    check_etags,
    decode,
    elements,
    etag_of,
    invalid,
    not_implemented,
    seconds_of,
    xml_response,
    xml_result,
)
from tpuctl.sim.gcs.xml_uploads import PartUploads
from tpuctl.sim.wire.messages import Request, Response

LIST_NAMESPACE = "http://doc.s3.amazonaws.com/2006-03-01"
STORED_HEADERS: Mapping[str, str] = {
    "content-type": "contentType",
    "cache-control": "cacheControl",
    "content-disposition": "contentDisposition",
    "content-encoding": "contentEncoding",
    "content-language": "contentLanguage",
    "x-goog-storage-class": "storageClass",
    "x-goog-custom-time": "customTime",
}
UNDONE_HEADERS = re.compile(
    r"x-goog-(acl|resumable|encryption-.*|content-source-range|object-lock-.*|if-metageneration-none)"
)
META = "x-goog-meta-"
COPY_SOURCE = "x-goog-copy-source"
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LIST_PARAMETERS = frozenset(
    {
        *("list-type", "prefix", "delimiter", "max-keys", "continuation-token", "start-after", "marker"),
        *("encoding-type", "versions", "fetch-owner"),
    }
)
_Handler = Callable[[Request, ObjectName], Response]


class XmlApi:
    """Answers in XML."""

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        self._store = store
        self.parts = PartUploads(store, folder)
        # Verb and the parameters that say what is meant; `generation` only selects.
        self._objects: Mapping[tuple[str, frozenset[str]], _Handler] = {
            ("GET", frozenset()): self._get,
            ("HEAD", frozenset()): self._get,
            ("PUT", frozenset()): self._put,
            ("DELETE", frozenset()): self._delete,
            ("POST", frozenset({"uploads"})): self._begin_parts,
            ("PUT", frozenset({"partNumber", "uploadId"})): self.parts.put,
            ("POST", frozenset({"uploadId"})): self._complete_parts,
            ("GET", frozenset({"uploadId"})): self.parts.list,
            ("DELETE", frozenset({"uploadId"})): self.parts.abort,
        }

    def handle(self, request: Request) -> Response:
        """Raises GcsError."""
        bucket, _, name = request.path.removeprefix("/").partition("/")
        for header in request.headers:
            if UNDONE_HEADERS.fullmatch(header):
                raise not_implemented(f"the header {header} of the XML API")
        if not bucket:
            raise not_implemented("lists of buckets by the XML API")
        if not name:
            return self._bucket(request, decode(bucket))
        meant = frozenset(request.query) - {"generation", "max-parts", "part-number-marker", "userProject"}
        handler = self._objects.get((request.method, meant))
        if handler is None:
            raise not_implemented(f"{request.method} of an object with {sorted(meant)} by the XML API")
        return handler(request, ObjectName(decode(bucket), decode(name)))

    def _bucket(self, request: Request, bucket: str) -> Response:
        data = self._store.get_bucket(bucket)
        asked = set(request.query)
        if request.method == "HEAD" and not asked:
            places = {"x-goog-bucket-location": data["location"]}
            return Response(200, b"", {**places, "x-goog-metageneration": data["metageneration"]})
        if request.method == "GET" and asked == {"uploads"}:
            return self.parts.list_uploads(bucket)
        if request.method != "GET" or asked - _LIST_PARAMETERS:
            raise not_implemented(f"{request.method} of a bucket with {sorted(asked)} by the XML API")
        return self._list(request, bucket)

    def _list(self, request: Request, bucket: str) -> Response:
        """Both versions of the list."""

        def given(name: str) -> str:
            return (request.query.get(name) or [""])[-1]

        if given("versions") or given("encoding-type") not in ("", "url"):
            raise not_implemented("lists of versions by the XML API")
        second = given("list-type") == "2"
        size = given("max-keys") or str(PAGE_LIMIT)
        if not size.isdecimal() or len(size) > 9:
            raise invalid(f"Invalid max-keys: {size}")
        after = given("start-after") if second else given("marker")
        if not second and given("delimiter") and after.endswith(given("delimiter")):
            after += chr(0x10FFFF)  # a prefix that was shown stands for all below it
        asked = Listing(
            bucket,
            prefix=given("prefix"),
            delimiter=given("delimiter"),
            after=after,
            limit=min(int(size), PAGE_LIMIT),
            token=given("continuation-token") if second else "",
        )
        page = list_page(self._store, asked)

        def shown(name: str) -> str:
            return quote(name, safe="/") if given("encoding-type") else name

        last = max([item["name"] for item in page.items] + list(page.prefixes), default="")
        rows = [("Name", bucket), ("Prefix", shown(asked.prefix)), ("MaxKeys", size)]
        rows += [("Delimiter", shown(asked.delimiter))] if asked.delimiter else []
        rows += [("EncodingType", "url")] if given("encoding-type") else []
        rows += [("IsTruncated", "true" if page.token else "false")]
        if second:
            rows.append(("KeyCount", str(len(page.items) + len(page.prefixes))))
            rows += [("NextContinuationToken", page.token)] if page.token else []
        elif page.token:
            rows.append(("NextMarker", shown(last)))
        body = elements(rows)
        for item in page.items:
            contents = [
                ("Key", shown(item["name"])),
                *(("Generation", item["generation"]), ("MetaGeneration", item["metageneration"])),
                *(("LastModified", item["updated"]), ("ETag", etag_of(item)), ("Size", item["size"])),
                ("StorageClass", item["storageClass"]),
            ]
            body += f"<Contents>{elements(contents)}</Contents>"
        for prefix in page.prefixes:
            body += f"<CommonPrefixes>{elements([('Prefix', shown(prefix))])}</CommonPrefixes>"
        return xml_response(f"<ListBucketResult xmlns='{LIST_NAMESPACE}'>{body}</ListBucketResult>")

    # Objects

    def _get(self, request: Request, where: ObjectName) -> Response:
        data, content = self._store.read(where, conditions_of(request))
        _check_dates_and_etags(request, data)
        headers = {**media_headers(data), **_modified(data), "etag": etag_of(data)}
        headers |= {
            f"{META}{key}": value for key, value in data.get("metadata", {}).items() if _TOKEN.fullmatch(key)
        }
        if request.method == "HEAD":
            return Response(200, b"", {**headers, "content-length": data["size"]}, hashes(data))
        return media_response(data, content, request, headers)

    def _put(self, request: Request, where: ObjectName) -> Response:
        check_name(where.bucket, where.name)
        fields, conditions = stored_fields(request), conditions_of(request)
        source = request.headers.get(COPY_SOURCE)
        if source is not None:
            return self._copy(request, where, source, fields)
        stored = self._store.files.save(pieces_of(request.content))
        data = self._store.write(where, stored, {**fields, **header_digests(request)}, conditions)
        return Response(200, b"", written_headers(data), hashes(data))

    def _copy(self, request: Request, where: ObjectName, source: str, fields: Data) -> Response:
        directive = request.headers.get("x-goog-metadata-directive", "COPY").upper()
        bucket, _, name = source.removeprefix("/").partition("/")
        selected = _number(request.headers.get("x-goog-copy-source-generation", "0"))
        matching = _header_conditions(request, "x-goog-copy-source-if-")
        data = self._store.copy(
            ObjectName(decode(bucket), decode(name)),
            Preconditions.of({**matching, "generation": selected}),
            where,
            fields if directive == "REPLACE" else {},
            conditions_of(request),
        )
        rows = [("ETag", etag_of(data)), ("LastModified", data["updated"])]
        answer = xml_response(f"<CopyObjectResult>{elements(rows)}</CopyObjectResult>")
        return Response(200, answer.body, {**answer.headers, **written_headers(data)}, hashes(data))

    def _delete(self, request: Request, where: ObjectName) -> Response:
        self._store.delete(where, conditions_of(request))
        return Response(204)

    def _begin_parts(self, request: Request, where: ObjectName) -> Response:
        check_name(where.bucket, where.name)
        return self.parts.begin(where, stored_fields(request))

    def _complete_parts(self, request: Request, where: ObjectName) -> Response:
        data = self.parts.complete(request, where, conditions_of(request))
        rows = [("Bucket", where.bucket), ("Key", where.name), ("ETag", etag_of(data))]
        answer = xml_result("CompleteMultipartUploadResult", rows)
        return Response(200, answer.body, {**answer.headers, **written_headers(data)}, hashes(data))


def stored_fields(request: Request) -> Data:
    """What the headers of an upload say of the object."""
    fields: Data = {
        key: request.headers[name] for name, key in STORED_HEADERS.items() if request.headers.get(name)
    }
    metadata = {
        name.removeprefix(META): value for name, value in request.headers.items() if name.startswith(META)
    }
    return {**fields, **({"metadata": metadata} if metadata else {})}


def written_headers(data: Mapping[str, str]) -> dict[str, str]:
    told = ("generation", "metageneration", "stored-content-length", "stored-content-encoding")
    known = media_headers(data)
    return {"etag": etag_of(data), **{f"x-goog-{name}": known[f"x-goog-{name}"] for name in told}}


def _number(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text):
        raise invalid(f"Invalid number: {text}")
    return int(text)


def _header_conditions(request: Request, prefix: str) -> Data:
    names = {"generation-match": "ifGenerationMatch", "metageneration-match": "ifMetagenerationMatch"}
    return {
        key: _number(request.headers[prefix + name])
        for name, key in names.items()
        if prefix + name in request.headers
    }


def conditions_of(request: Request) -> Preconditions:
    """`x-goog-if-generation-match` and the parameter `generation`."""
    generation = (request.query.get("generation") or ["0"])[-1]
    return Preconditions.of({**_header_conditions(request, "x-goog-if-"), "generation": _number(generation)})


def _modified(data: Mapping[str, str]) -> dict[str, str]:
    return {"last-modified": formatdate(int(seconds_of(data["updated"])), usegmt=True)}


def _check_dates_and_etags(request: Request, data: Mapping[str, str]) -> None:
    """The conditions of RFC 9110 §13. 412 or 304."""
    headers = request.headers
    check_etags(request, etag_of(data))

    def date(header: str) -> float | None:
        try:
            return parsedate_to_datetime(headers[header]).timestamp() if header in headers else None
        except (ValueError, TypeError, OverflowError):
            return None

    modified = int(seconds_of(data["updated"]))
    unmodified_since, modified_since = date("if-unmodified-since"), date("if-modified-since")
    if "if-match" not in headers and unmodified_since is not None and modified > unmodified_since:
        raise GcsError(412, "At least one of the pre-conditions you specified did not hold.")
    if "if-none-match" not in headers and modified_since is not None and modified <= modified_since:
        raise GcsError(304, "Not modified")
