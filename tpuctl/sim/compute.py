"""The few Compute Engine v1 calls that gcloud's TPU commands make."""

from __future__ import annotations

import re
from urllib.parse import unquote

from tpuctl.sim.messages import Request, Response, json_response
from tpuctl.sim.status import ApiError, Code, not_found, unknown_method
from tpuctl.sim.world import World

PREFIX = "/compute/v1/"
_PROJECT = re.compile(r"projects/([^/]+)")
_PLACE = re.compile(r"projects/([^/]+)/(zones|regions)(?:/([^/]+))?")


class ComputeDoor:
    """`projects.get`, `zones.get|list` and `regions.get|list`; everything else is refused."""

    def __init__(self, world: World) -> None:
        self._world = world

    def handle(self, request: Request) -> Response:
        path = unquote(request.path).removeprefix(PREFIX)
        if request.method == "GET" and (match := _PROJECT.fullmatch(path)):
            return self._project(match.group(1))
        if request.method == "GET" and (match := _PLACE.fullmatch(path)):
            self._check_project(match.group(1))
            return self._places(match.group(2), match.group(3))
        raise unknown_method(f"{request.method} {request.path}")

    def _check_project(self, project: str) -> None:
        if project != self._world.options.project:
            raise ApiError(Code.PERMISSION_DENIED, f"Required permission for 'projects/{project}'")

    def _project(self, project: str) -> Response:
        self._check_project(project)
        return json_response(
            {
                "kind": "compute#project",
                "id": "1",
                "name": project,
                "commonInstanceMetadata": {"kind": "compute#metadata", "fingerprint": "AAAA", "items": []},
                "selfLink": f"https://www.googleapis.com/compute/v1/projects/{project}",
            }
        )

    def _places(self, kind: str, name: str | None) -> Response:
        zones = self._world.zones()
        names = zones if kind == "zones" else sorted({zone.rsplit("-", 1)[0] for zone in zones})
        items = [self._place(kind, each) for each in names]
        if name is None:
            return json_response({"kind": f"compute#{kind[:-1]}List", "items": items})
        found = [item for item in items if item["name"] == name]
        if not found:
            raise not_found(f"projects/{self._world.options.project}/{kind}/{name}")
        return json_response(found[0])

    def _place(self, kind: str, name: str) -> dict[str, str]:
        base = f"https://www.googleapis.com/compute/v1/projects/{self._world.options.project}"
        place = {"kind": f"compute#{kind[:-1]}", "name": name, "status": "UP", "id": "1"}
        place["selfLink"] = f"{base}/{kind}/{name}"
        if kind == "zones":
            place["region"] = f"{base}/regions/{name.rsplit('-', 1)[0]}"
        return place
