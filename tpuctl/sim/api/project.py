"""What the project says about itself: Service Usage v1, Resource Manager v1 and v3, Cloud Quotas v1 and v1beta.

Reads, and the calls that mend what a person of the project has to: APIs are turned on, roles are given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import unquote

from tpuctl.sim.api.secrets import Handler, SecretsApi
from tpuctl.sim.wire.calls import Call, compile_template, project_calls
from tpuctl.sim.wire.fields import FieldsError, shaped
from tpuctl.sim.wire.messages import Request, Response, json_response
from tpuctl.sim.wire.payload import load_types, parse_body, read_message, read_query
from tpuctl.sim.wire.status import ApiError, Code, Json, invalid_argument, not_found, unknown_method
from tpuctl.sim.world.faults import FaultKind
from tpuctl.sim.world.iam import (
    PROJECT_NUMBER,
    SECRET_MANAGER,
    SERVICES,
)
from tpuctl.sim.world.listing import page_of
from tpuctl.sim.world.quotas import Quotas
from tpuctl.sim.world.world import World

SHARED_PREFIX = "/v1/"
"""The TPU API has a version of this name, too."""
PREFIXES = (SHARED_PREFIX, "/v1beta/", "/v1beta1/", "/v3/")
_WITH_PERMISSIONS = (
    "aiplatform artifactregistry bigquery billing certificatemanager cloudasset cloudbuild cloudfunctions "
    "cloudkms cloudquotas cloudsql cloudtrace composer compute container dataflow dataproc datastore dns "
    "eventarc file firebase iam iap logging monitoring networkmanagement networksecurity networkservices "
    "notebooks orgpolicy osconfig oslogin privateca pubsub recommender redis resourcemanager run "
    "secretmanager securitycenter servicedirectory servicemanagement servicenetworking serviceusage "
    "source spanner storage storagetransfer tpu vpcaccess workflows "
)
"""Services with permissions on a project (https://cloud.google.com/iam/docs/permissions-reference)."""
_PERMISSION = re.compile(rf"({'|'.join(_WITH_PERMISSIONS.split())})(\.[a-zA-Z]+){{2}}")
_TPU_SERVICE = "tpu.googleapis.com"
_DONE = "operations/noop.DONE_OPERATION"
_QUOTA_INFOS = {_TPU_SERVICE: Quotas.tpu_infos, "compute.googleapis.com": Quotas.machine_infos}
_AGENTS = {_TPU_SERVICE: "cloud-tpu"}
"""Services whose agent has a name of its own (https://cloud.google.com/iam/docs/service-agents)."""


class ProjectApi:
    """Answers every path below `PREFIXES`; raises ApiError for refusals."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._types = load_types("project")
        handlers: Mapping[str, Handler] = {
            "projects.get": self._get_project,
            "projects.testIamPermissions": self._test_permissions,
            "projects.getIamPolicy": self._get_policy,
            "projects.setIamPolicy": self._set_policy,
            "projects.search": self._list_projects,
            "projects.list": self._list_projects,
            "services.list": self._list_services,
            "services.batchGet": self._batch_get,
            "services.get": self._get_service,
            "services.batchEnable": self._batch_enable,
            "services.generateServiceIdentity": self._make_identity,
            "services.enable": self._enable,
            "services.disable": self._disable,
            "quotaInfos.list": self._list_quotas,
            "quotaInfos.get": self._get_quota,
            "quotaPreferences.create": self._create_preference,
            "quotaPreferences.list": self._list_preferences,
            "quotaPreferences.get": self._get_preference,
            "quotaPreferences.patch": self._update_preference,
            **SecretsApi(world).handlers(),
        }
        self._routes = [
            (call, compile_template(path, named=True), handlers[call.id])
            for call in project_calls()
            for path in call.paths
        ]

    def handle(self, request: Request) -> Response:
        path = unquote(request.path)
        for call, pattern, handler in self._routes:
            found = pattern.fullmatch(path)
            if found is None or call.verb != request.method:
                continue
            access = self._world.access
            access.check_token()
            access.check_service(call.api)
            parts = found.groupdict()
            self._check_project(parts.pop("project", PROJECT_NUMBER))
            asked = self._read(call, request)
            if call.permission:
                below = "/secrets" if call.api == SECRET_MANAGER else ""
                access.check_permission(call.permission, f"{self._name()}{below}")
            answer = handler(request, asked, **parts)
            try:
                return json_response(shaped(request, answer))
            except FieldsError as error:
                raise invalid_argument(f"Invalid field selection {error}") from None
        raise unknown_method(f"{request.method} {path}")

    def _read(self, call: Call, request: Request) -> Json:
        """Query parameters and body, in the types of the method. Raises ApiError, INVALID_ARGUMENT. Those of
        Secret Manager, which has no types here, read the request themselves."""
        if call.id not in self._types.queries:
            return {}
        asked = read_query(self._types, call.id, request.query)
        if call.body:
            asked |= read_message(self._types, call.message or "Empty", parse_body(request))
        return asked

    def _check_project(self, project: str) -> None:
        if project not in (self._world.options.project, PROJECT_NUMBER):
            raise ApiError(Code.PERMISSION_DENIED, "The caller does not have permission")

    def _name(self) -> str:
        return f"projects/{PROJECT_NUMBER}"

    # Resource Manager.

    def _get_project(self, request: Request, _asked: Json) -> Json:
        id = self._world.options.project
        self._world.access.check_permission("resourcemanager.projects.get", f"projects/{id}")
        if request.path.startswith("/v3/"):
            return {"name": self._name(), "projectId": id, "state": "ACTIVE", "displayName": id}
        return {"projectNumber": PROJECT_NUMBER, "projectId": id, "lifecycleState": "ACTIVE", "name": id}

    def _test_permissions(self, _request: Request, asked: Json) -> Json:
        wrong = [each for each in asked.get("permissions", []) if not _PERMISSION.fullmatch(each)]
        if wrong:
            raise invalid_argument(f"Permission {wrong[0]} is not valid for this resource.")
        granted = self._world.access.granted(asked.get("permissions", []))
        return {"permissions": granted} if granted else {}

    def _list_projects(self, request: Request, asked: Json) -> Json:
        """The only one, if it is meant."""
        shown = self._get_project(replace(request, path=f"{request.path}/"), {})
        text = str(asked.pop("query", "") or asked.pop("filter", ""))
        wanted = re.fullmatch(r"(?:(?:project)?[iI]d|name)[:=]\"?([^ \"*]+)\"?\*?", text)
        if text and wanted is None and not text.lower().startswith(("state:active", "lifecyclestate:active")):
            raise unknown_method(f"the filter {text} of projects")
        found = [shown] if wanted is None or wanted[1] == shown["projectId"] else []
        return page_of([(each["projectId"], each) for each in found], asked, "projects")

    def _get_policy(self, _request: Request, _asked: Json) -> Json:
        return dict(self._world.access.policy)

    def _set_policy(self, _request: Request, asked: Json) -> Json:
        return self._world.access.set_policy(asked.get("policy") or {})

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

    def _list_services(self, _request: Request, asked: Json) -> Json:
        text = asked.pop("filter", "")
        wanted = text.removeprefix("state:")
        if text and text not in ("state:ENABLED", "state:DISABLED"):
            raise invalid_argument(f"Invalid filter: {text}. Use state:ENABLED or state:DISABLED.")
        shown = [self._service(service) for service in SERVICES]
        rows = [(each["name"], each) for each in shown if wanted in ("", each["state"])]
        return page_of(rows, asked, "services")

    def _batch_get(self, _request: Request, asked: Json) -> Json:
        names = asked.get("names", [])
        return {"services": [self._service(name.rpartition("/")[2]) for name in names]}

    def _get_service(self, _request: Request, _asked: Json, service: str) -> Json:
        return self._service(service)

    def _enable(self, _request: Request, _asked: Json, service: str) -> Json:
        """Done at once: the faults that keep exactly this API off are cleared."""
        self._service(service)
        self._world.access.check_permission("serviceusage.services.enable", self._name())
        for fault in self._world.faults.standing(FaultKind.SERVICE_OFF, service):
            self._world.faults.remove(fault.id)
        return self._done("Enable", service)

    def _batch_enable(self, request: Request, asked: Json) -> Json:
        done = [self._enable(request, {}, each) for each in asked.get("serviceIds", [])]
        kind = "type.googleapis.com/google.api.serviceusage.v1.BatchEnableServicesResponse"
        return {
            "name": _DONE,
            "done": True,
            "response": {"@type": kind, "services": [each["response"]["service"] for each in done]},
        }

    def _make_identity(self, _request: Request, _asked: Json, service: str) -> Json:
        """The account with which Google manages a service in a project, which is there already."""
        self._service(service)
        self._world.access.check_permission("serviceusage.services.enable", self._name())
        title = _AGENTS.get(service, f"gcp-sa-{service.partition('.')[0]}")
        kind = "type.googleapis.com/google.api.serviceusage.v1beta1.ServiceIdentity"
        email = f"service-{PROJECT_NUMBER}@{title}.iam.gserviceaccount.com"
        return {"name": _DONE, "done": True, "response": {"@type": kind, "email": email, "uniqueId": "1"}}

    def _disable(self, _request: Request, _asked: Json, service: str) -> Json:
        """The fault of that name, made by another way."""
        self._service(service)
        self._world.access.check_permission("serviceusage.services.disable", self._name())
        if self._world.access.is_enabled(service):
            self._world.faults.add({"kind": str(FaultKind.SERVICE_OFF.value), "name": service})
        return self._done("Disable", service)

    def _done(self, verb: str, service: str) -> Json:
        kind = f"type.googleapis.com/google.api.serviceusage.v1.{verb}ServiceResponse"
        response = {"@type": kind, "service": self._service(service)}
        return {"name": _DONE, "done": True, "response": response}

    # Cloud Quotas.

    def _quota_infos(self, service: str) -> list[Json]:
        infos = _QUOTA_INFOS.get(service)
        return self._world.read_quotas(infos) if infos is not None else []

    def _list_quotas(self, _request: Request, asked: Json, service: str) -> Json:
        rows = [(each["name"], each) for each in self._quota_infos(service)]
        return page_of(rows, asked, "quotaInfos")

    def _get_quota(self, _request: Request, _asked: Json, service: str, quota_info: str) -> Json:
        found = [each for each in self._quota_infos(service) if each["quotaId"] == quota_info]
        if not found:
            raise not_found(f"quotaInfos/{quota_info}")
        return found[0]

    def _list_preferences(self, _request: Request, asked: Json) -> Json:
        if asked.keys() & {"filter", "orderBy"}:
            raise unknown_method("a filter or an order of quotaPreferences")
        rows = [(each["name"], each) for each in self._world.quota_preferences.list()]
        return page_of(rows, asked, "quotaPreferences")

    def _get_preference(self, _request: Request, _asked: Json, quota_preference: str) -> Json:
        return self._world.quota_preferences.get(quota_preference)

    def _create_preference(self, _request: Request, asked: Json) -> Json:
        unsafe = "ignoreSafetyChecks" in asked
        return self._world.quota_preferences.create(asked.pop("quotaPreferenceId", ""), asked, unsafe=unsafe)

    def _update_preference(self, _request: Request, asked: Json, quota_preference: str) -> Json:
        unsafe, missing = "ignoreSafetyChecks" in asked, bool(asked.get("allowMissing"))
        if asked.get("validateOnly"):
            raise unknown_method("a change of a quotaPreference that is validated only")
        found = self._world.quota_preferences
        return found.update(quota_preference, asked, unsafe=unsafe, allow_missing=missing)
