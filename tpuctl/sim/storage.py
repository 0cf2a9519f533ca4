"""The storage door inside the simulator: faults in front of it, its one bucket made, emptied on reset."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from tpuctl.errors import BugError
from tpuctl.sim.faults import FaultKind
from tpuctl.sim.gcs import GcsDoor
from tpuctl.sim.gcs_access import TEST_PERMISSIONS, permission_of
from tpuctl.sim.messages import Request, Response, json_response
from tpuctl.sim.options import BUCKET
from tpuctl.sim.paths import ResourcePath
from tpuctl.sim.status import ApiError, DroppedConnectionError
from tpuctl.sim.world import World

ALREADY_THERE = 409


class Storage:
    """Buckets below `root`, which may be those of a simulator that ran before. Faults match the methods
    `storage.get`, `storage.post` and so on."""

    def __init__(self, root: Path, world: World) -> None:
        self._root = root
        self._world = world
        self._door = self._open()

    def _open(self) -> GcsDoor:
        self._root.mkdir(parents=True, exist_ok=True)
        door = GcsDoor(self._root, now=self._now)
        query = {"project": [self._world.options.project]}
        made = door.handle(
            Request(
                "POST", "/storage/v1/b", query, {"host": "localhost"}, json.dumps({"name": BUCKET}).encode()
            )
        )
        if made.status >= 300 and made.status != ALREADY_THERE:
            raise BugError(f"the bucket {BUCKET} could not be made: {made.body!r}")
        return door

    def _now(self) -> float:
        """What answers have as their Date."""
        return self._world.clock.now() + self._world.access.clock_skew()

    def handle(self, request: Request) -> Response:
        """Raises ApiError and DroppedConnectionError when a fault says so."""
        method = f"storage.{request.method.lower()}"
        path = ResourcePath(self._world.options.project, "global")
        fault = self._world.faults.take(FaultKind.ERROR, method, path)
        if fault is not None:
            raise ApiError(fault.code, fault.text(path))
        answer = self._answer(request)
        if self._world.faults.take(FaultKind.DROP, method, path) is not None:
            raise DroppedConnectionError(method)
        return answer

    def _answer(self, request: Request) -> Response:
        asked = TEST_PERMISSIONS.fullmatch(request.path)
        if asked is not None:
            found = self._door.handle(replace(request, path=f"/storage/v1/b/{asked[1]}", query={}))
            granted = self._world.access.granted(request.query.get("permissions") or [])
            answer = {"kind": "storage#testIamPermissionsResponse", "permissions": granted}
            return found if found.status >= 300 else json_response(answer)
        needed = permission_of(request)
        if needed is not None:
            self._world.access.check_permission(*needed)
        return self._door.handle(request)

    def reset(self) -> None:
        """Buckets as at the start."""
        self._door.close()
        shutil.rmtree(self._root)
        self._door = self._open()

    def close(self) -> None:
        """Leaves nothing behind where nothing was written."""
        unused = self._door.is_unused
        self._door.close()
        if unused:
            shutil.rmtree(self._root)
