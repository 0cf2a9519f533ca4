"""The methods of the GCS JSON API on buckets and objects."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from tpuctl.sim.gcs import buckets as gcs_buckets
from tpuctl.sim.gcs.content import pieces_of, unzipped
from tpuctl.sim.gcs.folders import Folders
from tpuctl.sim.gcs.listing import PAGE_LIMIT, Listing, Page, list_page
from tpuctl.sim.gcs.managed_folders import ManagedFolders
from tpuctl.sim.gcs.methods import Call
from tpuctl.sim.gcs.objects import POLICY, ObjectStore, is_hierarchical
from tpuctl.sim.gcs.roles import default_policy
from tpuctl.sim.gcs.wire import (
    Data,
    GcsError,
    ObjectName,
    Preconditions,
    base_url,
    check_etags,
    invalid,
    not_implemented,
    parse_range,
)
from tpuctl.sim.wire.messages import Request, Response, json_response
from tpuctl.sim.world.iam import PROJECT_NUMBER

MAX_NAME_BYTES = 1024
MAX_SOURCES = 32
"""Of a compose (https://cloud.google.com/storage/docs/composite-objects)."""
_SENT_WITH_MEDIA: Mapping[str, str] = {
    "cacheControl": "cache-control",
    "contentDisposition": "content-disposition",
    "contentLanguage": "content-language",
    "contentEncoding": "content-encoding",
}


class JsonMethods:
    """Answers calls; `handlers` has all methods that there are."""

    def __init__(self, store: ObjectStore, granted: Callable[[str, list[str], str], list[str]]) -> None:
        """`granted`: those of some permissions on a bucket that a caller has."""
        self._store = store
        self._folders = Folders(store)
        self._managed = ManagedFolders(store)
        self._granted = granted
        self.handlers: Mapping[str, Callable[[Call], Response]] = {
            "buckets.delete": self._delete_bucket,
            "buckets.get": self._get_bucket,
            "buckets.getIamPolicy": self._get_policy,
            "buckets.getStorageLayout": self._storage_layout,
            "buckets.insert": self._create_bucket,
            "buckets.list": self._list_buckets,
            "buckets.lockRetentionPolicy": self._lock_bucket,
            "buckets.patch": self._update_bucket,
            "buckets.setIamPolicy": self._set_policy,
            "buckets.testIamPermissions": self._test_permissions,
            "buckets.update": self._update_bucket,
            "folders.delete": self._delete_folder,
            "folders.get": self._get_folder,
            "folders.insert": self._create_folder,
            "folders.list": self._list_folders,
            "folders.rename": self._rename_folder,
            "managedFolders.delete": self._delete_managed,
            "managedFolders.get": self._get_managed,
            "managedFolders.getIamPolicy": self._get_policy_of_managed,
            "managedFolders.insert": self._create_managed,
            "managedFolders.list": self._list_managed,
            "objects.compose": self._compose,
            "objects.copy": self._copy,
            "objects.delete": self._delete_object,
            "objects.get": self._get_object,
            "objects.list": self._list_objects,
            "objects.move": self._move,
            "objects.patch": self._update_object,
            "objects.restore": self._restore,
            "objects.rewrite": self._rewrite,
            "objects.update": self._update_object,
            "projects.serviceAccount.get": self._service_account,
        }

    # Buckets

    def _list_buckets(self, call: Call) -> Response:
        """In pages by name. Soft-deleted ones are not kept."""
        if call.query.get("softDeleted"):
            raise not_implemented("soft-deleted buckets")
        if "project" not in call.query:
            raise GcsError(400, "Required parameter: project", reason="required")
        wanted = call.query.get("prefix", "")
        found = [
            bucket
            for bucket in self._store.list_buckets()
            if bucket["name"].startswith(wanted)
            and bucket["name"] > call.query.get("pageToken", "")
            and bucket.get("project") in (None, call.query["project"])
        ]
        limit = _limit(call)
        page: Data = {"kind": "storage#buckets"}
        if found:
            page["items"] = [public_bucket(bucket, call.request) for bucket in found[:limit]]
        if len(found) > limit:
            page["nextPageToken"] = found[limit - 1]["name"]
        return json_response(page)

    def _create_bucket(self, call: Call) -> Response:
        if "project" not in call.query:
            raise GcsError(400, "Required parameter: project", reason="required")
        made = self._store.create_bucket(call.body, call.query["project"])
        return json_response(public_bucket(made, call.request))

    def _get_bucket(self, call: Call) -> Response:
        if call.query.get("softDeleted"):
            raise not_implemented("soft-deleted buckets")
        data = self._store.get_bucket(call.bucket)
        call.conditions().check(data, reading=True)
        check_etags(call.request, data["etag"])
        return json_response(public_bucket(data, call.request))

    def _update_bucket(self, call: Call) -> Response:
        data = self._store.update_bucket(call.bucket, call.body, call.conditions())
        return json_response(public_bucket(data, call.request))

    def _lock_bucket(self, call: Call) -> Response:
        if "ifMetagenerationMatch" not in call.query:
            raise GcsError(400, "Required parameter: ifMetagenerationMatch", reason="required")
        data = self._store.lock_bucket(call.bucket, call.conditions())
        return json_response(public_bucket(data, call.request))

    def _delete_bucket(self, call: Call) -> Response:
        self._store.delete_bucket(call.bucket, call.conditions())
        return Response(204)

    def _get_policy(self, call: Call) -> Response:
        bucket = self._store.get_bucket(call.bucket)
        return _policy(call, self._store.find_policy(call.bucket) or default_policy(bucket))

    def _set_policy(self, call: Call) -> Response:
        return _policy(call, self._store.set_policy(call.bucket, call.body))

    def _test_permissions(self, call: Call) -> Response:
        self._store.get_bucket(call.bucket)
        granted = self._granted(call.request.caller, call.query.get("permissions", []), call.bucket)
        return json_response({"kind": "storage#testIamPermissionsResponse", "permissions": granted})

    def _service_account(self, _call: Call) -> Response:
        address = f"service-{PROJECT_NUMBER}@gs-project-accounts.iam.gserviceaccount.com"
        return json_response({"kind": "storage#serviceAccount", "email_address": address})

    def _storage_layout(self, call: Call) -> Response:
        return json_response(storage_layout(self._store.get_bucket(call.bucket)))

    # Folders

    def _create_folder(self, call: Call) -> Response:
        made = self._folders.create(
            call.bucket, call.body.get("name", ""), recursive=call.query.get("recursive", False)
        )
        return json_response(_public_folder(made, call.request))

    def _get_folder(self, call: Call) -> Response:
        found = self._folders.get(call.bucket, call.names[1], call.conditions())
        return json_response(_public_folder(found, call.request))

    def _list_folders(self, call: Call) -> Response:
        query = call.query
        if query.get("startOffset") or query.get("endOffset"):
            raise not_implemented("lists of folders between two names (startOffset, endOffset)")
        found, token = self._folders.page(
            call.bucket,
            query.get("prefix", ""),
            query.get("delimiter", ""),
            query.get("pageToken", ""),
            int(query.get("pageSize", 0)),
        )
        page: Data = {"kind": "storage#folders"}
        if found:
            page["items"] = [_public_folder(each, call.request) for each in found]
        return json_response(page | ({"nextPageToken": token} if token else {}))

    def _delete_folder(self, call: Call) -> Response:
        self._folders.delete(call.bucket, call.names[1], call.conditions())
        return Response(204)

    def _rename_folder(self, call: Call) -> Response:
        """Always done in one call."""
        bucket, source, target = call.names
        made = self._folders.rename(bucket, source, target, call.conditions("Source"))
        answer = {
            "kind": "storage#operation",
            "name": f"projects/_/buckets/{bucket}/operations/rename-{made['metageneration']}",
            "done": True,
            "response": _public_folder(made, call.request),
        }
        return json_response(answer)

    def _create_managed(self, call: Call) -> Response:
        made = self._managed.create(call.bucket, call.body.get("name", ""))
        return json_response(_public_folder(made, call.request, "managedFolders"))

    def _get_managed(self, call: Call) -> Response:
        found = self._managed.get(call.bucket, call.names[1], call.conditions())
        return json_response(_public_folder(found, call.request, "managedFolders"))

    def _get_policy_of_managed(self, call: Call) -> Response:
        """Nobody has been given a role for it: roles cannot be given."""
        name = self._managed.get(call.bucket, call.names[1])["name"]
        resource = f"projects/_/buckets/{call.bucket}/managedFolders/{name}"
        return json_response({"kind": "storage#policy", "resourceId": resource, "version": 1, "etag": "CAE="})

    def _list_managed(self, call: Call) -> Response:
        query = call.query
        limit = int(query.get("pageSize", 0))
        found, token = self._managed.page(
            call.bucket, query.get("prefix", ""), query.get("pageToken", ""), limit
        )
        page: Data = {"kind": "storage#managedFolders"}
        if found:
            page["items"] = [_public_folder(each, call.request, "managedFolders") for each in found]
        return json_response(page | ({"nextPageToken": token} if token else {}))

    def _delete_managed(self, call: Call) -> Response:
        bucket, name = call.names
        meant = call.query.get("allowNonEmpty", False)
        self._managed.delete(bucket, name, call.conditions(), allow_non_empty=meant)
        return Response(204)

    # Objects

    def _list_objects(self, call: Call) -> Response:
        query = call.query
        if query.get("softDeleted") and query.get("versions"):
            raise invalid("softDeleted and versions cannot both be set.")
        asked = Listing(
            call.bucket,
            prefix=query.get("prefix", ""),
            delimiter=query.get("delimiter", ""),
            start=query.get("startOffset", ""),
            end=query.get("endOffset", ""),
            trailing_delimiter=query.get("includeTrailingDelimiter", False),
            glob=query.get("matchGlob", ""),
            versions=query.get("versions", False),
            deleted=query.get("softDeleted", False),
            folders=query.get("includeFoldersAsPrefixes", False) and query.get("delimiter") == "/",
            limit=_limit(call),
            token=query.get("pageToken", ""),
        )
        return json_response(
            _object_page(list_page(self._store, asked), call.request, self._store.get_bucket(call.bucket))
        )

    def _get_object(self, call: Call) -> Response:
        deleted = call.query.get("softDeleted", False)
        if deleted and "generation" not in call.query:
            raise GcsError(400, "Required parameter: generation", reason="required")
        if call.request.query.get("alt") == ["media"]:
            if deleted:
                raise invalid("Soft-deleted objects cannot be read; restore the object.")
            return self.media(call.where, call.conditions(), call.request)
        found = self._store.get(call.where, call.conditions(), deleted=deleted)
        check_etags(call.request, found["etag"])
        return json_response(show_object(self._store, found, call.request))

    def media(self, where: ObjectName, conditions: Preconditions, request: Request) -> Response:
        """The content or a range of it."""
        data, content = self._store.read(where, conditions)
        check_etags(request, data["etag"])
        return media_response(data, content, request, media_headers(data))

    def _update_object(self, call: Call) -> Response:
        whole = call.method.verb == "PUT"
        data = self._store.update(call.where, call.body, call.conditions(), whole=whole)
        return json_response(show_object(self._store, data, call.request))

    def _delete_object(self, call: Call) -> Response:
        self._store.delete(call.where, call.conditions())
        return Response(204)

    def _restore(self, call: Call) -> Response:
        if "generation" not in call.query:
            raise GcsError(400, "Required parameter: generation", reason="required")
        conditions = Preconditions.of({**call.query, "generation": 0})
        data = self._store.restore(call.where, int(call.query["generation"]), conditions)
        return json_response(show_object(self._store, data, call.request))

    def _move(self, call: Call) -> Response:
        target = check_name(call.bucket, call.names[2])
        data = self._store.move(call.where, call.conditions("Source"), target, call.conditions())
        return json_response(show_object(self._store, data, call.request))

    def _copied(self, call: Call) -> Data:
        target = check_name(call.names[2], call.names[3])
        return self._store.copy(call.where, call.conditions("Source"), target, call.body, call.conditions())

    def _copy(self, call: Call) -> Response:
        return json_response(show_object(self._store, self._copied(call), call.request))

    def _rewrite(self, call: Call) -> Response:
        """Always done in one call."""
        data = self._copied(call)
        answer = {
            "kind": "storage#rewriteResponse",
            "totalBytesRewritten": data["size"],
            "objectSize": data["size"],
            "done": True,
            "resource": show_object(self._store, data, call.request),
        }
        return json_response(answer)

    def _compose(self, call: Call) -> Response:
        """Content put together. What `destination` says of digests is not asked: gcloud copies it from the
        first source."""
        target = check_name(*call.names)
        sources = call.body.get("sourceObjects") or []
        if not sources:
            raise GcsError(400, "You must provide at least one source component.", reason="required")
        if len(sources) > MAX_SOURCES:
            raise invalid(
                f"The number of source components provided ({len(sources)}) exceeds the maximum ({MAX_SOURCES})"
            )
        if call.body.get("deleteSourceObjects"):
            raise not_implemented("a compose that deletes its sources (deleteSourceObjects)")
        found = [self._read_source(target.bucket, source) for source in sources]
        components = sum(int(data.get("componentCount", 1)) for data, _ in found)
        fields = dict(call.body.get("destination") or {})
        for digest in ("md5Hash", "crc32c"):
            fields.pop(digest, None)
        content = self._store.files.save(piece for _, part in found for piece in pieces_of(part))
        composed = content.of_components(components)
        data = self._store.write(target, composed, fields, call.conditions())
        return json_response(show_object(self._store, data, call.request))

    def _read_source(self, bucket: str, source: Mapping[str, Any]) -> tuple[Data, memoryview]:
        if not source.get("name"):
            raise GcsError(400, "Required", reason="required")
        match = (source.get("objectPreconditions") or {}).get("ifGenerationMatch")
        conditions = Preconditions(
            generation_match=int(match) if match is not None else None,
            generation=int(source.get("generation") or 0) or None,
        )
        return self._store.read(ObjectName(bucket, source["name"]), conditions)


def check_name(bucket: str, name: Any) -> ObjectName:
    """https://cloud.google.com/storage/docs/objects#naming"""
    if not isinstance(name, str) or not name:
        raise GcsError(400, "Required object name is missing", reason="required")
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise invalid("The specified object name is longer than 1024 bytes")
    if name.startswith(".well-known/acme-challenge/"):
        raise invalid(f"Invalid object name '{name}': it cannot begin with .well-known/acme-challenge/")
    if name in (".", "..") or re.search("[\r\n\ud800-\udfff]", name):
        raise invalid(f"Disallowed unicode characters present in object name '{ascii(name)[1:-1]}'")
    return ObjectName(bucket, name)


def _policy(call: Call, policy: Mapping[str, Any]) -> Response:
    shown = {"kind": "storage#policy", "resourceId": f"projects/_/buckets/{call.bucket}"}
    return json_response({**shown, **{key: policy[key] for key in ("version", "etag", "bindings")}})


def _limit(call: Call) -> int:
    limit = int(call.query.get("maxResults", PAGE_LIMIT))
    return min(limit, PAGE_LIMIT) or PAGE_LIMIT


def storage_layout(bucket: Mapping[str, Any]) -> Data:
    return {
        "kind": "storage#storageLayout",
        "bucket": bucket["name"],
        "location": bucket["location"],
        "locationType": bucket["locationType"],
        "hierarchicalNamespace": {"enabled": is_hierarchical(bucket)},
    }


def public_bucket(data: Data, request: Request) -> Data:
    shown = {key: value for key, value in data.items() if key not in ("project", POLICY)}
    return {**shown, "selfLink": f"{base_url(request)}/storage/v1/b/{quote(data['name'], safe='')}"}


def _public_folder(data: Data, request: Request, collection: str = "folders") -> Data:
    place = f"storage/v1/b/{quote(data['bucket'], safe='')}/{collection}/{quote(data['name'], safe='')}"
    return {**data, "selfLink": f"{base_url(request)}/{place}"}


def show_object(store: ObjectStore, data: Data, request: Request) -> Data:
    """An object as the API shows it."""
    return _public_object(data, request, store.get_bucket(data["bucket"]))


def _public_object(data: Data, request: Request, bucket: Data) -> Data:
    place = f"storage/v1/b/{quote(data['bucket'], safe='')}/o/{quote(data['name'], safe='')}"
    base = base_url(request)
    media = f"{base}/download/{place}?generation={data['generation']}&alt=media"
    return {**data, **gcs_buckets.retention(bucket, data), "selfLink": f"{base}/{place}", "mediaLink": media}


def _object_page(found: Page, request: Request, bucket: Data) -> Data:
    page: Data = {"kind": "storage#objects"}
    if found.items:
        page["items"] = [_public_object(item, request, bucket) for item in found.items]
    if found.prefixes:
        page["prefixes"] = list(found.prefixes)
    if found.token:
        page["nextPageToken"] = found.token
    return page


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
