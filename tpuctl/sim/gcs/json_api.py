"""The methods of the GCS JSON API on buckets and objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from tpuctl.sim.gcs import buckets as gcs_buckets
from tpuctl.sim.gcs.bucket_store import POLICY
from tpuctl.sim.gcs.content import pieces_of
from tpuctl.sim.gcs.folders import Folders, ManagedFolders
from tpuctl.sim.gcs.listing import PAGE_LIMIT, Listing, list_page
from tpuctl.sim.gcs.media import media_headers, media_response
from tpuctl.sim.gcs.methods import Call
from tpuctl.sim.gcs.objects import ObjectStore, is_hierarchical
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
)
from tpuctl.sim.wire.messages import Request, Response
from tpuctl.sim.world.iam import PROJECT_NUMBER

MAX_NAME_BYTES = 1024
MAX_SOURCES = 32
"""Of a compose (https://cloud.google.com/storage/docs/composite-objects)."""


class JsonMethods:
    """Answers calls; `handlers` has all methods that there are."""

    def __init__(self, store: ObjectStore, granted: Callable[[str, list[str], str], list[str]]) -> None:
        """`granted`: those of some permissions on a bucket that a caller has."""
        self._store = store
        self._folders = Folders(store)
        self._trees: Mapping[str, Folders | ManagedFolders] = {
            "folders": self._folders,
            "managedFolders": ManagedFolders(store),
        }
        self._granted = granted
        self.handlers: Mapping[str, Callable[[Call], Data | Response]] = {
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
            "managedFolders.delete": self._delete_folder,
            "managedFolders.get": self._get_folder,
            "managedFolders.getIamPolicy": self._get_policy_of_managed,
            "managedFolders.insert": self._create_folder,
            "managedFolders.list": self._list_folders,
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

    def _list_buckets(self, call: Call) -> Data:
        """In pages by name. Soft-deleted ones are not kept."""
        if call.query.get("softDeleted"):
            raise not_implemented("soft-deleted buckets")
        _need(call, "project")
        wanted = call.query.get("prefix", "")
        found = [
            public_bucket(bucket, call.request)
            for bucket in self._store.list_buckets()
            if bucket["name"].startswith(wanted)
            and bucket["name"] > call.query.get("pageToken", "")
            and bucket.get("project") in (None, call.query["project"])
        ]
        limit = _limit(call)
        token = found[limit - 1]["name"] if len(found) > limit else ""
        return _page("storage#buckets", found[:limit], token)

    def _create_bucket(self, call: Call) -> Data:
        _need(call, "project")
        made = self._store.create_bucket(call.body, call.query["project"])
        return public_bucket(made, call.request)

    def _get_bucket(self, call: Call) -> Data:
        if call.query.get("softDeleted"):
            raise not_implemented("soft-deleted buckets")
        data = self._store.get_bucket(call.bucket)
        call.conditions().check(data, reading=True)
        check_etags(call.request, data["etag"])
        return public_bucket(data, call.request)

    def _update_bucket(self, call: Call) -> Data:
        data = self._store.update_bucket(call.bucket, call.body, call.conditions())
        return public_bucket(data, call.request)

    def _lock_bucket(self, call: Call) -> Data:
        _need(call, "ifMetagenerationMatch")
        data = self._store.lock_bucket(call.bucket, call.conditions())
        return public_bucket(data, call.request)

    def _delete_bucket(self, call: Call) -> Response:
        self._store.delete_bucket(call.bucket, call.conditions())
        return Response(204)

    def _get_policy(self, call: Call) -> Data:
        bucket = self._store.get_bucket(call.bucket)
        return _policy(call, self._store.find_policy(call.bucket) or default_policy(bucket))

    def _set_policy(self, call: Call) -> Data:
        return _policy(call, self._store.set_policy(call.bucket, call.body))

    def _test_permissions(self, call: Call) -> Data:
        self._store.get_bucket(call.bucket)
        granted = self._granted(call.request.caller, call.query.get("permissions", []), call.bucket)
        return {"kind": "storage#testIamPermissionsResponse", "permissions": granted}

    def _service_account(self, _call: Call) -> Data:
        address = f"service-{PROJECT_NUMBER}@gs-project-accounts.iam.gserviceaccount.com"
        return {"kind": "storage#serviceAccount", "email_address": address}

    def _storage_layout(self, call: Call) -> Data:
        return storage_layout(self._store.get_bucket(call.bucket))

    # Folders, managed ones too

    def _tree(self, call: Call) -> Folders | ManagedFolders:
        return self._trees[call.method.id.partition(".")[0]]

    def _create_folder(self, call: Call) -> Data:
        name, recursive = call.body.get("name", ""), call.query.get("recursive", False)
        return _public_folder(self._tree(call).create(call.bucket, name, recursive=recursive), call)

    def _get_folder(self, call: Call) -> Data:
        return _public_folder(self._tree(call).get(call.bucket, call.names[1], call.conditions()), call)

    def _list_folders(self, call: Call) -> Data:
        query = call.query
        if query.get("startOffset") or query.get("endOffset"):
            raise not_implemented("lists of folders between two names (startOffset, endOffset)")
        found, token = self._tree(call).page(
            call.bucket,
            query.get("prefix", ""),
            query.get("delimiter", ""),
            query.get("pageToken", ""),
            int(query.get("pageSize", 0)),
        )
        kind = f"storage#{call.method.id.partition('.')[0]}"
        return _page(kind, [_public_folder(each, call) for each in found], token)

    def _delete_folder(self, call: Call) -> Response:
        meant = call.query.get("allowNonEmpty", False)
        self._tree(call).delete(call.bucket, call.names[1], call.conditions(), allow_non_empty=meant)
        return Response(204)

    def _rename_folder(self, call: Call) -> Data:
        """Always done in one call."""
        bucket, source, target = call.names
        made = self._folders.rename(bucket, source, target, call.conditions("Source"))
        return {
            "kind": "storage#operation",
            "name": f"projects/_/buckets/{bucket}/operations/rename-{made['metageneration']}",
            "done": True,
            "response": _public_folder(made, call),
        }

    def _get_policy_of_managed(self, call: Call) -> Data:
        """Nobody has been given a role for it: roles cannot be given."""
        name = self._tree(call).get(call.bucket, call.names[1])["name"]
        resource = f"projects/_/buckets/{call.bucket}/managedFolders/{name}"
        return {"kind": "storage#policy", "resourceId": resource, "version": 1, "etag": "CAE="}

    # Objects

    def _list_objects(self, call: Call) -> Data:
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
        found, bucket = list_page(self._store, asked), self._store.get_bucket(call.bucket)
        items = [_public_object(item, call.request, bucket) for item in found.items]
        return _page("storage#objects", items, found.token, list(found.prefixes))

    def _get_object(self, call: Call) -> Data | Response:
        deleted = call.query.get("softDeleted", False)
        if deleted:
            _need(call, "generation")
        if call.request.query.get("alt") == ["media"]:
            if deleted:
                raise invalid("Soft-deleted objects cannot be read; restore the object.")
            return self.media(call.where, call.conditions(), call.request)
        found = self._store.get(call.where, call.conditions(), deleted=deleted)
        check_etags(call.request, found["etag"])
        return self._shown(found, call)

    def media(self, where: ObjectName, conditions: Preconditions, request: Request) -> Response:
        """The content or a range of it."""
        data, content = self._store.read(where, conditions)
        check_etags(request, data["etag"])
        return media_response(data, content, request, media_headers(data))

    def _shown(self, data: Data, call: Call) -> Data:
        return show_object(self._store, data, call.request)

    def _update_object(self, call: Call) -> Data:
        whole = call.method.verb == "PUT"
        data = self._store.update(call.where, call.body, call.conditions(), whole=whole)
        return self._shown(data, call)

    def _delete_object(self, call: Call) -> Response:
        self._store.delete(call.where, call.conditions())
        return Response(204)

    def _restore(self, call: Call) -> Data:
        _need(call, "generation")
        conditions = Preconditions.of({**call.query, "generation": 0})
        data = self._store.restore(call.where, int(call.query["generation"]), conditions)
        return self._shown(data, call)

    def _move(self, call: Call) -> Data:
        target = check_name(call.bucket, call.names[2])
        data = self._store.move(call.where, call.conditions("Source"), target, call.conditions())
        return self._shown(data, call)

    def _copied(self, call: Call) -> Data:
        target = check_name(call.names[2], call.names[3])
        return self._store.copy(call.where, call.conditions("Source"), target, call.body, call.conditions())

    def _copy(self, call: Call) -> Data:
        return self._shown(self._copied(call), call)

    def _rewrite(self, call: Call) -> Data:
        """Always done in one call."""
        data = self._copied(call)
        return {
            "kind": "storage#rewriteResponse",
            "totalBytesRewritten": data["size"],
            "objectSize": data["size"],
            "done": True,
            "resource": self._shown(data, call),
        }

    def _compose(self, call: Call) -> Data:
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
        return self._shown(data, call)

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


def _policy(call: Call, policy: Mapping[str, Any]) -> Data:
    shown = {"kind": "storage#policy", "resourceId": f"projects/_/buckets/{call.bucket}"}
    return {**shown, **{key: policy[key] for key in ("version", "etag", "bindings")}}


def _need(call: Call, parameter: str) -> None:
    if parameter not in call.query:
        raise GcsError(400, f"Required parameter: {parameter}", reason="required")


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


def _public_folder(data: Data, call: Call) -> Data:
    collection = call.method.id.partition(".")[0]
    place = f"storage/v1/b/{quote(data['bucket'], safe='')}/{collection}/{quote(data['name'], safe='')}"
    return {**data, "selfLink": f"{base_url(call.request)}/{place}"}


def show_object(store: ObjectStore, data: Data, request: Request) -> Data:
    """An object as the API shows it."""
    return _public_object(data, request, store.get_bucket(data["bucket"]))


def _public_object(data: Data, request: Request, bucket: Data) -> Data:
    place = f"storage/v1/b/{quote(data['bucket'], safe='')}/o/{quote(data['name'], safe='')}"
    base = base_url(request)
    media = f"{base}/download/{place}?generation={data['generation']}&alt=media"
    return {**data, **gcs_buckets.retention(bucket, data), "selfLink": f"{base}/{place}", "mediaLink": media}


def _page(kind: str, items: list[Data], token: str, prefixes: Sequence[str] = ()) -> Data:
    """One page of a list; what is empty is left out."""
    page = {"items": items, "prefixes": list(prefixes), "nextPageToken": token}
    return {"kind": kind, **{key: value for key, value in page.items() if value}}
