"""The calls of Storage Control v2 that gcsfuse and gcsfs make: of what kind a bucket is, and its folders.

See googleapis/googleapis, google/storage/control/v2/storage_control.proto.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tpuctl.sim.gcs.server import Storage
from tpuctl.sim.gcs.wire import Data, GcsError, Preconditions
from tpuctl.sim.wire.grpc_types import message_classes
from tpuctl.sim.wire.status import ApiError, Code, invalid_argument

SERVICE = "/google.storage.control.v2.StorageControl/"
_NAME = re.compile(r"projects/[^/]+/buckets/([^/]+)(?:/(?:storageLayout|folders/(.+)))?")
_PACKAGE = "google.storage.control.v2"


class ControlCalls:
    """Answers calls from the buckets of `storage`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._calls: Mapping[str, tuple[str, Callable[[Any, str, str], Any]]] = {
            "GetStorageLayout": ("storage.get", self._layout),
            "CreateFolder": ("storage.post", self._create),
            "GetFolder": ("storage.get", self._get),
            "ListFolders": ("storage.get", self._list),
            "DeleteFolder": ("storage.delete", self._delete),
            "RenameFolder": ("storage.post", self._rename),
        }

    def find(self, path: str) -> tuple[Any, Callable[[Any, str], Any]] | None:
        """The class of a method's requests, and what answers one; None where there is no such method."""
        name = path.removeprefix(SERVICE)
        if name not in self._calls:
            return None
        return message_classes()[f"{_PACKAGE}.{name}Request"], partial(self._answer, *self._calls[name])

    def _answer(self, method: str, call: Callable[[Any, str, str], Any], request: Any, _caller: str) -> Any:
        given = getattr(request, "name", "") or getattr(request, "parent", "")
        found = _NAME.fullmatch(given)
        if found is None:
            raise invalid_argument(f'Invalid resource name "{given}".')
        bucket, folder = found[1], found[2] or ""
        # There are few threads: what waits must not keep others waiting.
        self._storage.admit(method, bucket, wait=False)
        try:
            return call(request, bucket, folder)
        except GcsError as error:
            raise ApiError(_code_of(error), error.message) from error

    def _layout(self, request: Any, bucket: str, _folder: str) -> Any:
        return _message("StorageLayout", {**self._storage.api.get_layout(bucket), "name": request.name})

    def _create(self, request: Any, bucket: str, _folder: str) -> Any:
        return _folder_of(
            self._storage.api.folders.create(bucket, request.folder_id, recursive=request.recursive)
        )

    def _get(self, request: Any, bucket: str, folder: str) -> Any:
        return _folder_of(self._storage.api.folders.get(bucket, folder, _conditions(request)))

    def _list(self, request: Any, bucket: str, _folder: str) -> Any:
        if request.lexicographic_start or request.lexicographic_end:
            raise ApiError(Code.UNIMPLEMENTED, "lists of folders between two names are not simulated")
        found, token = self._storage.api.folders.page(
            bucket, request.prefix, request.delimiter, request.page_token, request.page_size
        )
        answer = _message("ListFoldersResponse", {"nextPageToken": token})
        answer.folders.extend(_folder_of(each) for each in found)
        return answer

    def _delete(self, request: Any, bucket: str, folder: str) -> Any:
        self._storage.api.folders.delete(bucket, folder, _conditions(request))
        return importlib.import_module("google.protobuf.empty_pb2").Empty()

    def _rename(self, request: Any, bucket: str, folder: str) -> Any:
        """Always done in one call."""
        target = request.destination_folder_id
        made = self._storage.api.folders.rename(bucket, folder, target, _conditions(request))
        name = f"projects/_/buckets/{bucket}/operations/{request.request_id or 'rename'}"
        operation = importlib.import_module("google.longrunning.operations_pb2").Operation(name=name, done=True)
        operation.response.type_url = f"type.googleapis.com/{_PACKAGE}.Folder"
        operation.response.value = _folder_of(made).SerializeToString()
        return operation


def _message(name: str, data: Data) -> Any:
    """A message of that name, of what it knows of an answer of the JSON API."""
    json_format = importlib.import_module("google.protobuf.json_format")
    made = message_classes()[f"{_PACKAGE}.{name}"]()
    return json_format.ParseDict(data, made, ignore_unknown_fields=True)


def _folder_of(data: Data) -> Any:
    return _message("Folder", {**data, "name": f"projects/_/buckets/{data['bucket']}/folders/{data['name']}"})


def _conditions(request: Any) -> Preconditions:
    """No folder has the metageneration 0, so a field that is not set asks for nothing."""
    return Preconditions(
        metageneration_match=request.if_metageneration_match or None,
        metageneration_not_match=request.if_metageneration_not_match or None,
    )


def _code_of(error: GcsError) -> Code:
    if error.reason == "conditionNotMet":
        return Code.FAILED_PRECONDITION
    return {400: Code.INVALID_ARGUMENT, 404: Code.NOT_FOUND, 409: Code.ALREADY_EXISTS}.get(
        error.status, Code.FAILED_PRECONDITION
    )
