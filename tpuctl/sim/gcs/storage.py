"""Cloud Storage inside the simulator: faults in front of it, its one bucket made, emptied on reset."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tpuctl.errors import BugError
from tpuctl.sim.gcs.iam import bucket_of, unauthenticated
from tpuctl.sim.gcs.methods import JSON_PATHS
from tpuctl.sim.gcs.server import GcsApi
from tpuctl.sim.gcs.uploads import is_session
from tpuctl.sim.gcs.wire import GcsError
from tpuctl.sim.wire.messages import Request, Response
from tpuctl.sim.wire.status import ApiError, DroppedConnectionError
from tpuctl.sim.world.faults import FaultKind
from tpuctl.sim.world.iam import STORAGE
from tpuctl.sim.world.paths import ResourcePath
from tpuctl.sim.world.world import World

ALREADY_THERE = 409


class Storage:
    """Buckets below `root`, which may be those of a simulator that ran before. Faults match the methods
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
        if made.status >= 300 and made.status != ALREADY_THERE:
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
        return not is_session(request)

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


def _refusal(request: Request, error: GcsError) -> Response:
    return error.response() if request.path.startswith(JSON_PATHS) else error.xml_response()


BUCKET = "sim-bucket"
"""Exists from the start."""
