"""Cloud Storage on a directory, for every client of its JSON or XML API, with every precondition honoured.

Not there, and refused as such: access control lists, notifications, customer keys.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

from tpuctl.errors import BugError
from tpuctl.sim.gcs.folders import Folders
from tpuctl.sim.gcs.iam import asks_permissions, bucket_of, no_access, permissions_of, resource, unauthenticated
from tpuctl.sim.gcs.json_api import JsonMethods, storage_layout
from tpuctl.sim.gcs.methods import BATCH, DOWNLOADS, JSON, JSON_PATHS, UPLOADS, find_method, load_api, read_call
from tpuctl.sim.gcs.objects import ObjectStore
from tpuctl.sim.gcs.roles import EVERYBODY, permits
from tpuctl.sim.gcs.uploads import Uploads, is_session
from tpuctl.sim.gcs.wire import Data, GcsError, not_implemented
from tpuctl.sim.gcs.xml_api import XmlApi
from tpuctl.sim.wire.batch import handle_batch
from tpuctl.sim.wire.fields import FieldsError, shaped
from tpuctl.sim.wire.messages import Request, Response, json_response
from tpuctl.sim.wire.status import ApiError, DroppedConnectionError
from tpuctl.sim.world.faults import FaultKind
from tpuctl.sim.world.iam import STORAGE, Access
from tpuctl.sim.world.paths import TOKEN_PREFIX, ResourcePath
from tpuctl.sim.world.world import World

_SHOWN = {
    "storage#bucket": ("Bucket", ""),
    "storage#buckets": ("Bucket", "items"),
    "storage#object": ("Object", ""),
    "storage#objects": ("Object", "items"),
}
"""The type of what an answer of a kind is, and where in it that is a list."""
BUCKET = "sim-bucket"
"""Exists from the start."""
_WRONG_URL = "Upload requests must include an uploadType URL parameter and a URL path beginning with /upload/"


class GcsApi:
    """Answers all of Cloud Storage. Thread-safe. `access`: who may do what; everybody everything without it."""

    def __init__(
        self,
        root: Path,
        *,
        now: Callable[[], float],
        access: Access | None = None,
    ) -> None:
        self._store = ObjectStore(root, now)
        self.folders = Folders(self._store)
        self._access = access
        self._methods = JsonMethods(self._store, self._granted)
        self._uploads = Uploads(self._store, root / "uploads")
        self._xml = XmlApi(self._store, root / "parts")

    def handle(self, request: Request) -> Response:
        """Never raises for what a client sent; errors are answers in Google's form."""
        for bucket, now in self._store.follow_lifecycle():
            self._xml.parts.abort_old(bucket, now)
        try:
            self._check_permissions(request)
            by_json = request.path.startswith(JSON_PATHS)
            return self._answer_json(request) if by_json else self._xml.handle(request)
        except ApiError as error:
            return _refusal(request, GcsError.of(error))
        except GcsError as error:
            return _refusal(request, error)

    def _check_permissions(self, request: Request) -> None:
        """Raises ApiError or GcsError for what the caller may not do."""
        for permission, bucket in permissions_of(request):
            if self._access is not None:
                self._access.check_permission(permission, resource(bucket))
            if not self._permits(request.caller, permission, bucket):
                raise no_access(request.caller, permission, 403)

    def _permits(self, caller: str, permission: str, bucket: str) -> bool:
        """By the bucket's policy, which binds service accounts once somebody has set one, or the project's."""
        policy = self._store.find_policy(bucket) if caller else None
        if caller == EVERYBODY:
            return permits(policy or {"bindings": []}, caller, permission)
        above = {"bindings": []} if self._access is None else self._access.policy
        return policy is None or any(permits(each, caller, permission) for each in (policy, above))

    def _granted(self, caller: str, permissions: list[str], bucket: str) -> list[str]:
        """Those of some permissions that the caller has."""
        known = permissions if self._access is None else self._access.granted(permissions)
        return [each for each in known if self._permits(caller, each, bucket)]

    def _handle_part(self, request: Request) -> Response:
        """A call in a batch, which may carry the whole address under which the client knows the API."""
        _, token, rest = request.path.partition(TOKEN_PREFIX)
        path = "/" + rest.partition("/")[2] if token else request.path
        if not path.startswith(JSON):
            return not_implemented(f"{path} in a batch").response()
        return self.handle(replace(request, path=path))

    def _answer_json(self, request: Request) -> Response:
        if request.path == BATCH:
            return handle_batch(request, self._handle_part)
        prefix = next(each for each in JSON_PATHS if request.path.startswith(each))
        below = request.path.removeprefix(prefix)
        if is_session(request):
            return self._selected(request, self._uploads.resume(request))
        method, names = find_method(request.method, below)
        if method.id == "objects.insert":
            if prefix not in UPLOADS or not request.query.get("uploadType"):
                raise GcsError(400, _WRONG_URL, reason="wrongUrlForUpload")
            call = read_call(request, method, names, with_body=False)
            return self._selected(request, self._uploads.handle(call))
        if prefix in UPLOADS or (prefix == DOWNLOADS and method.id != "objects.get"):
            raise GcsError(404, "Not Found")
        handler = self._methods.handlers.get(method.id)
        if handler is None:
            raise not_implemented(f"storage.{method.id}")
        call = read_call(request, method, names)
        if prefix == DOWNLOADS:
            return self._methods.media(call.where, call.conditions(), request)
        return self._selected(request, handler(call))

    @staticmethod
    def _selected(request: Request, data: Data | Response) -> Response:
        """The answer with the parts that `fields` names, and the ETag of what it is about."""
        if isinstance(data, Response):
            return data
        if request.query.get("alt") == ["media"]:
            return json_response(data)
        message, rows = _SHOWN.get(data.get("kind", ""), ("", ""))
        try:
            body = shaped(request, data, load_api()[1] if message else None, message, rows)
        except FieldsError as error:
            text = f"Invalid field selection {error}"
            raise GcsError(400, text, reason="invalidParameter", place=("parameter", "fields")) from None
        answer = json_response(body)
        return replace(answer, headers={**answer.headers, **({"etag": data["etag"]} if "etag" in data else {})})

    def get_layout(self, bucket: str) -> Data:
        """As `buckets.getStorageLayout`. Raises GcsError, 404."""
        return storage_layout(self._store.get_bucket(bucket))

    @property
    def is_unused(self) -> bool:
        """At most one bucket, with nothing in it."""
        return self._store.is_unused

    def close(self) -> None:
        self._store.close()


def _refusal(request: Request, error: GcsError) -> Response:
    return error.response() if request.path.startswith(JSON_PATHS) else error.xml_response()


class Storage:
    """Cloud Storage inside the simulator: faults in front of it, its one bucket made, emptied on reset.

    Buckets are below `root`, and may be those of a simulator that ran before. Faults match the methods
    `storage.get`, `storage.post` and so on."""

    def __init__(self, root: Path, world: World) -> None:
        self._root = root
        self._world = world
        self.api = self._open()

    def _open(self) -> GcsApi:
        self._root.mkdir(parents=True, exist_ok=True)
        api = GcsApi(self._root, now=self._now, access=self._world.access)
        query = {"project": [self._world.options.project]}
        made = api.handle(
            Request(
                "POST", "/storage/v1/b", query, {"host": "localhost"}, json.dumps({"name": BUCKET}).encode()
            )
        )
        if made.status >= 300 and made.status != HTTPStatus.CONFLICT:
            raise BugError(f"the bucket {BUCKET} could not be made: {bytes(made.body)!r}")
        return api

    def _now(self) -> float:
        """What answers have as their Date."""
        return self._world.clock.now() + self._world.access.clock_skew()

    def handle(self, request: Request) -> Response:
        """Refusals become answers as Cloud Storage words them; DroppedConnectionError passes when a fault says
        so."""
        method = f"storage.{request.method.lower()}"
        path = self._path(bucket_of(request))
        try:
            self.admit(method, path.id, token=self.needs_token(request))
            answer = self.api.handle(request)
        except ApiError as error:
            answer = _refusal(request, GcsError.of(error))
        except GcsError as error:
            answer = _refusal(request, error)
        if self._world.faults.take(FaultKind.DROP, method, path) is not None:
            raise DroppedConnectionError(method)
        return answer

    def _path(self, bucket: str) -> ResourcePath:
        """What faults match by its name."""
        return ResourcePath(self._world.options.project, "global", "buckets", bucket)

    def admit(self, method: str, bucket: str, *, token: bool = True, wait: bool = True) -> None:
        """Raises ApiError, or DroppedConnectionError, for a call that goes no further. `wait`: an answer may be
        late."""
        path, faults = self._path(bucket), self._world.faults
        if token:
            self._world.access.check_token()
        self._world.access.check_service(STORAGE)
        slow = faults.take(FaultKind.SLOW_ANSWER, method, path) if wait else None
        if slow is not None and not slow.seconds:
            faults.wait_cleared(slow)
            raise DroppedConnectionError(method)
        if slow is not None:
            self._world.clock.pause(slow.seconds)
        fault = faults.take(FaultKind.ERROR, method, path)
        if fault is not None:
            raise fault.error(path)

    @staticmethod
    def needs_token(request: Request) -> bool:
        """The address of a resumable upload lets its bearer in, whoever it is:
        https://cloud.google.com/storage/docs/resumable-uploads#session-uris"""
        return not is_session(request) and not asks_permissions(request)

    @staticmethod
    def without_token(request: Request) -> Request:
        """An upload goes on as its user's; questions are everybody's."""
        return replace(request, caller=EVERYBODY) if asks_permissions(request) else request

    @staticmethod
    def refuse_unauthenticated(request: Request) -> Response:
        """For a request without the token."""
        return _refusal(request, unauthenticated(request))

    def reset(self) -> None:
        """Buckets as at the start."""
        self.api.close()
        shutil.rmtree(self._root)
        self.api = self._open()

    def close(self) -> None:
        """Leaves nothing behind where nothing was written."""
        unused = self.api.is_unused
        self.api.close()
        if unused:
            shutil.rmtree(self._root)
