"""The calls of Storage Control v2 that gcsfuse and gcsfs make: of what kind a bucket is, and its folders.

See googleapis/googleapis, google/storage/control/v2/storage_control.proto. Its library is no dependency of
tpuctl's, so the messages are written out.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tpuctl.sim.gcs.folders import Folders
from tpuctl.sim.gcs.wire import Data, GcsError, Preconditions, seconds_of
from tpuctl.sim.wire.status import ApiError, Code

SERVICE = "/google.storage.control.v2.StorageControl/"
_NAME = re.compile(r"projects/[^/]+/buckets/([^/]+)(?:/(?:storageLayout|folders/(.+)))?")
_STRING, _BOOL, _INT32, _INT64, _MESSAGE = 9, 8, 5, 3, 11
_OPTIONAL, _REPEATED = 1, 3
_PACKAGE = "google.storage.control.v2"
_MATCH, _NOT_MATCH = "if_metageneration_match", "if_metageneration_not_match"
_ONE_FOLDER = (("name", 6, _STRING), (_MATCH, 3, _INT64), (_NOT_MATCH, 4, _INT64), ("request_id", 5, _STRING))
_MESSAGES: Mapping[str, tuple[tuple[str, int, int | str], ...]] = {
    "Timestamp": (("seconds", 1, _INT64), ("nanos", 2, _INT32)),
    "HierarchicalNamespace": (("enabled", 1, _BOOL),),
    "StorageLayout": (
        *(("name", 1, _STRING), ("location", 2, _STRING), ("location_type", 3, _STRING)),
        ("hierarchical_namespace", 5, "HierarchicalNamespace"),
    ),
    "Folder": (
        *(("name", 1, _STRING), ("metageneration", 3, _INT64)),
        *(("create_time", 4, "Timestamp"), ("update_time", 5, "Timestamp")),
    ),
    "GetStorageLayoutRequest": (("name", 1, _STRING), ("prefix", 2, _STRING), ("request_id", 3, _STRING)),
    "CreateFolderRequest": (
        *(("parent", 1, _STRING), ("folder", 2, "Folder"), ("folder_id", 3, _STRING)),
        *(("recursive", 4, _BOOL), ("request_id", 5, _STRING)),
    ),
    "GetFolderRequest": _ONE_FOLDER,
    "DeleteFolderRequest": _ONE_FOLDER,
    "ListFoldersRequest": (
        *(("parent", 1, _STRING), ("page_size", 2, _INT32), ("page_token", 3, _STRING)),
        *(("prefix", 4, _STRING), ("delimiter", 8, _STRING), ("request_id", 9, _STRING)),
        *(("lexicographic_start", 6, _STRING), ("lexicographic_end", 7, _STRING)),
    ),
    "ListFoldersResponse": (("folders", 1, "[Folder]"), ("next_page_token", 2, _STRING)),
    "RenameFolderRequest": (
        *(("name", 7, _STRING), ("destination_folder_id", 8, _STRING)),
        *((_MATCH, 4, _INT64), (_NOT_MATCH, 5, _INT64), ("request_id", 6, _STRING)),
    ),
}
"""Fields with their numbers and `google.protobuf.FieldDescriptorProto.Type`, or a message, in brackets for
several. That some messages
are of this package here is not seen on the wire, nor that some fields do not say whether they are set: no
folder has the metageneration 0."""


class StorageControl(Protocol):
    """What the calls need of Cloud Storage."""

    @property
    def folders(self) -> Folders: ...

    def get_layout(self, bucket: str) -> Data:
        """Raises GcsError, 404."""
        ...

    def admit(self, method: str, bucket: str, *, wait: bool = True) -> None:
        """Raises ApiError for what goes no further."""
        ...


def _classes() -> dict[str, Any]:
    """In a pool of their own, where Google's library does not meet them."""
    descriptors = importlib.import_module("google.protobuf.descriptor_pb2")
    pool = importlib.import_module("google.protobuf.descriptor_pool").DescriptorPool()
    factory = importlib.import_module("google.protobuf.message_factory")
    file = descriptors.FileDescriptorProto(name="storage_control.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            several = isinstance(kind, str) and kind.startswith("[")
            made = message.field.add(name=field, number=number, label=_REPEATED if several else _OPTIONAL)
            made.type = _MESSAGE if isinstance(kind, str) else kind
            if isinstance(kind, str):
                made.type_name = f".{_PACKAGE}.{kind.strip('[]')}"
    pool.Add(file)
    return {
        name: factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


class ControlCalls:
    """The handlers, by their paths. `admit` checks a call's credentials and raises ApiError."""

    def __init__(self, grpc: Any, admit: Callable[[Any], object], storage: StorageControl) -> None:
        self._grpc = grpc
        self._admit = admit
        self._storage = storage
        self._classes = _classes()
        self._empty = importlib.import_module("google.protobuf.empty_pb2").Empty
        self._operation = importlib.import_module("google.longrunning.operations_pb2").Operation
        self._calls: Mapping[str, tuple[str, Callable[[Any, str, str], Any]]] = {
            "GetStorageLayout": ("storage.get", self._layout),
            "CreateFolder": ("storage.post", self._create),
            "GetFolder": ("storage.get", self._get),
            "ListFolders": ("storage.get", self._list),
            "DeleteFolder": ("storage.delete", self._delete),
            "RenameFolder": ("storage.post", self._rename),
        }

    def find(self, path: str) -> Any:
        """None where there is no such method."""
        name = path.removeprefix(SERVICE)
        if name not in self._calls:
            return None
        method, call = self._calls[name]

        def answer(request: Any, context: Any) -> Any:
            try:
                self._admit(context)
                return self._answer(method, call, request)
            except ApiError as error:
                context.abort(self._grpc.StatusCode[error.code.name], error.message)
            except GcsError as error:
                context.abort(self._grpc.StatusCode[_code_of(error).name], error.message)

        return self._grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=self._classes[f"{name}Request"].FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )

    def _answer(self, method: str, call: Callable[[Any, str, str], Any], request: Any) -> Any:
        given = getattr(request, "name", "") or getattr(request, "parent", "")
        found = _NAME.fullmatch(given)
        if found is None:
            raise ApiError(Code.INVALID_ARGUMENT, f'Invalid resource name "{given}".')
        bucket, folder = found[1], found[2] or ""
        # There are few threads: what waits must not keep others waiting.
        self._storage.admit(method, bucket, wait=False)
        return call(request, bucket, folder)

    def _layout(self, request: Any, bucket: str, _folder: str) -> Any:
        data = self._storage.get_layout(bucket)
        kinds = {"location": data["location"], "location_type": data["locationType"]}
        layout = self._classes["StorageLayout"](name=request.name, **kinds)
        layout.hierarchical_namespace.SetInParent()
        layout.hierarchical_namespace.enabled = data["hierarchicalNamespace"]["enabled"]
        return layout

    def _create(self, request: Any, bucket: str, _folder: str) -> Any:
        return self._shown(self._storage.folders.create(bucket, request.folder_id, recursive=request.recursive))

    def _get(self, request: Any, bucket: str, folder: str) -> Any:
        return self._shown(self._storage.folders.get(bucket, folder, _conditions(request)))

    def _list(self, request: Any, bucket: str, _folder: str) -> Any:
        if request.lexicographic_start or request.lexicographic_end:
            raise ApiError(Code.UNIMPLEMENTED, "lists of folders between two names are not simulated")
        found, token = self._storage.folders.page(
            bucket, request.prefix, request.delimiter, request.page_token, request.page_size
        )
        shown = [self._shown(each) for each in found]
        return self._classes["ListFoldersResponse"](folders=shown, next_page_token=token)

    def _delete(self, request: Any, bucket: str, folder: str) -> Any:
        self._storage.folders.delete(bucket, folder, _conditions(request))
        return self._empty()

    def _rename(self, request: Any, bucket: str, folder: str) -> Any:
        """Always done in one call."""
        target = request.destination_folder_id
        made = self._storage.folders.rename(bucket, folder, target, _conditions(request))
        name = f"projects/_/buckets/{bucket}/operations/{request.request_id or 'rename'}"
        operation = self._operation(name=name, done=True)
        operation.response.type_url = f"type.googleapis.com/{_PACKAGE}.Folder"
        operation.response.value = self._shown(made).SerializeToString()
        return operation

    def _shown(self, data: Data) -> Any:
        folder = self._classes["Folder"](
            name=f"projects/_/buckets/{data['bucket']}/folders/{data['name']}",
            metageneration=int(data["metageneration"]),
        )
        for field, stamp in ((folder.create_time, "createTime"), (folder.update_time, "updateTime")):
            field.seconds = int(seconds_of(data[stamp]))
        return folder


def _conditions(request: Any) -> Preconditions:
    return Preconditions(
        metageneration_match=getattr(request, _MATCH) or None,
        metageneration_not_match=getattr(request, _NOT_MATCH) or None,
    )


def _code_of(error: GcsError) -> Code:
    if error.reason == "conditionNotMet":
        return Code.FAILED_PRECONDITION
    return {400: Code.INVALID_ARGUMENT, 404: Code.NOT_FOUND, 409: Code.ALREADY_EXISTS}.get(
        error.status, Code.FAILED_PRECONDITION
    )
