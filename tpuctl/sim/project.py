"""What the project says about itself: Service Usage v1, Resource Manager v1 and v3, Cloud Quotas v1 and v1beta.

Reads, and the one call that mends an API that is off (`services.enable`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import unquote

from tpuctl.sim.access import CLOUD_QUOTAS, PROJECT_NUMBER, RESOURCE_MANAGER, SERVICE_USAGE, SERVICES
from tpuctl.sim.faults import FaultKind
from tpuctl.sim.kernel import Json
from tpuctl.sim.listing import page_of
from tpuctl.sim.messages import Request, Response, json_response
from tpuctl.sim.quotas import Quotas
from tpuctl.sim.status import ApiError, Code, not_found, unknown_method
from tpuctl.sim.tpu_rest import parse_body
from tpuctl.sim.world import World

PREFIXES = ("/v1/", "/v1beta/", "/v3/")
_PROJECT = r"/(?:v1|v3)/projects/(?P<project>[^/:]+)"
_SERVICES = r"/v1/projects/(?P<project>[^/:]+)/services"
_QUOTAS = r"/(?:v1|v1beta)/projects/(?P<project>[^/:]+)/locations/global/services/(?P<service>[^/]+)/quotaInfos"
_TPU_SERVICE = "tpu.googleapis.com"

Handler = Callable[..., Json]


class ProjectDoor:
    """Answers every path below `PREFIXES`; raises ApiError for refusals."""

    def __init__(self, world: World) -> None:
        self._world = world
        rows: tuple[tuple[str, str, str, Handler], ...] = (
            ("GET", _PROJECT, RESOURCE_MANAGER, self._get_project),
            ("POST", _PROJECT + ":testIamPermissions", RESOURCE_MANAGER, self._test_permissions),
            ("GET", _SERVICES, SERVICE_USAGE, self._list_services),
            ("GET", _SERVICES + ":batchGet", SERVICE_USAGE, self._batch_get),
            ("GET", _SERVICES + r"/(?P<service>[^/:]+)", SERVICE_USAGE, self._get_service),
            ("POST", _SERVICES + r"/(?P<service>[^/:]+):enable", SERVICE_USAGE, self._enable),
            ("GET", _QUOTAS, CLOUD_QUOTAS, self._list_quotas),
            ("GET", _QUOTAS + r"/(?P<quota>[^/]+)", CLOUD_QUOTAS, self._get_quota),
        )
        self._routes = [(verb, re.compile(path), api, handler) for verb, path, api, handler in rows]

    def handle(self, request: Request) -> Response:
        path = unquote(request.path)
        for verb, pattern, api, handler in self._routes:
            found = pattern.fullmatch(path)
            if found is None or verb != request.method:
                continue
            access = self._world.access
            access.check_token()
            access.check_service(api)
            parts = found.groupdict()
            self._check_project(parts.pop("project"))
            return json_response(handler(request, **parts))
        raise unknown_method(f"{request.method} {path}")

    def _check_project(self, project: str) -> None:
        if project not in (self._world.options.project, PROJECT_NUMBER):
            raise ApiError(Code.PERMISSION_DENIED, "The caller does not have permission")

    def _name(self) -> str:
        return f"projects/{PROJECT_NUMBER}"

    # Resource Manager.

    def _get_project(self, request: Request) -> Json:
        id = self._world.options.project
        self._world.access.check_permission("resourcemanager.projects.get", f"projects/{id}")
        if request.path.startswith("/v3/"):
            return {"name": self._name(), "projectId": id, "state": "ACTIVE", "displayName": id}
        return {"projectNumber": PROJECT_NUMBER, "projectId": id, "lifecycleState": "ACTIVE", "name": id}

    def _test_permissions(self, request: Request) -> Json:
        asked = [str(each) for each in parse_body(request).get("permissions", [])]
        granted = self._world.access.granted(asked)
        return {"permissions": granted} if granted else {}

    # Service Usage.

    def _service(self, service: str) -> Json:
        if service not in SERVICES:
            raise not_found(f"{self._name()}/services/{service}")
        return {
            "name": f"{self._name()}/services/{service}",
            "parent": self._name(),
            "config": {"name": service, "title": SERVICES[service]},
            "state": "ENABLED" if self._world.access.is_enabled(service) else "DISABLED",
        }

    def _list_services(self, request: Request) -> Json:
        self._world.access.check_permission("serviceusage.services.list", self._name())
        wanted = (request.query.get("filter") or [""])[0].removeprefix("state:")
        shown = [self._service(service) for service in SERVICES]
        rows = [(each["name"], each) for each in shown if wanted in ("", each["state"])]
        page = {key: values[-1] for key, values in request.query.items()}
        return page_of(rows, page, "services")

    def _batch_get(self, request: Request) -> Json:
        self._world.access.check_permission("serviceusage.services.get", self._name())
        names = request.query.get("names") or []
        return {"services": [self._service(name.rpartition("/")[2]) for name in names]}

    def _get_service(self, request: Request, service: str) -> Json:
        del request
        self._world.access.check_permission("serviceusage.services.get", self._name())
        return self._service(service)

    def _enable(self, request: Request, service: str) -> Json:
        """Done at once: the faults that keep exactly this API off are cleared."""
        del request
        self._service(service)
        self._world.access.check_permission("serviceusage.services.enable", self._name())
        for fault in self._world.faults.standing(FaultKind.SERVICE_OFF, service):
            self._world.faults.remove(fault.id)
        return {"name": "operations/noop.DONE_OPERATION", "done": True, "response": {}}

    # Cloud Quotas.

    def _quota_infos(self, service: str) -> list[Json]:
        self._world.access.check_permission("cloudquotas.quotas.get", self._name())
        return self._world.read_quotas(Quotas.tpu_infos) if service == _TPU_SERVICE else []

    def _list_quotas(self, request: Request, service: str) -> Json:
        rows = [(each["name"], each) for each in self._quota_infos(service)]
        page = {key: values[-1] for key, values in request.query.items()}
        return page_of(rows, page, "quotaInfos")

    def _get_quota(self, request: Request, service: str, quota: str) -> Json:
        del request
        found = [each for each in self._quota_infos(service) if each["quotaId"] == quota]
        if not found:
            raise not_found(f"quotaInfos/{quota}")
        return found[0]
