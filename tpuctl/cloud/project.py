"""The project itself: enabled APIs, the caller's permissions, metadata, quotas; each from the API that knows.

- Service Usage v1 `services.list`, Resource Manager v3 `projects.testIamPermissions`
- Compute v1 `projects.get` and `regions.get`, which show limit and usage; `firewalls` and `subnetworks`
- Cloud Quotas v1 `quotaInfos.list`, which shows limits only

REST method `projects.secrets.versions.access` (https://cloud.google.com/secret-manager/docs/reference/rest).
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any
from urllib.parse import quote

import requests
from google.auth.credentials import Credentials
from google.oauth2.credentials import Credentials as UserCredentials
from msgspec import Struct

from tpuctl.cloud.errors import translate
from tpuctl.cloud.rest import CALL_TIMEOUT_S, RestClient
from tpuctl.cloud.retry import read
from tpuctl.cloud.wire import message
from tpuctl.errors import TpuctlError, TransientError
from tpuctl.lib.names import SecretName
from tpuctl.model.facts import BucketPlace, BucketSettings, LifecycleDeletion
from tpuctl.model.firewall import Firewall, parse_rules
from tpuctl.model.hosts import Api
from tpuctl.model.quota import (
    QUOTA_SERVICES,
    ComputeQuota,
    ProjectInfo,
    TpuQuota,
    parse_family_quota,
    parse_tpu_quota,
)
from tpuctl.model.shipped_files import load_accelerators

_PAGE = 200


class GoogleProject(Struct, frozen=True):
    """Implements `cloud_ports.ProjectApi`. `credentials` are asked for when the first call needs them."""

    project: str
    credentials: Callable[[], Credentials]
    resource_manager: str
    service_usage: str
    compute: str
    quotas: str
    tpu: str
    storage: str

    def _client(self, endpoint: str, *, charged: bool = False) -> RestClient:
        """A session for each call: calls may run at the same time, and sessions are not thread-safe.

        `charged`: the API counts calls against the caller's own project. A person's login has none and is
        refused unless the request names one (https://cloud.google.com/docs/quotas/set-quota-project).
        """
        credentials = self.credentials()
        if charged and isinstance(credentials, UserCredentials) and not credentials.quota_project_id:
            credentials = credentials.with_quota_project(self.project)
        return RestClient(endpoint, credentials)

    def list_services(self) -> frozenset[str]:
        path, enabled = f"/v1/projects/{self.project}/services", {"filter": "state:ENABLED", "pageSize": _PAGE}
        client = self._client(self.service_usage, charged=True)
        return frozenset(
            client.listing(path, "services", "list the enabled APIs", _service_name, enabled).items
        )

    def granted_permissions(self, permissions: Sequence[str]) -> frozenset[str]:
        # A POST that changes nothing: asked again like any read.
        client = self._client(self.resource_manager, charged=True)
        what = f"test permissions on project {self.project}"
        path = f"/v3/projects/{self.project}:testIamPermissions"
        answer = read(what, lambda: client.change("POST", path, what, {"permissions": list(permissions)}))
        return frozenset(answer.get("permissions", ()))

    def project_info(self) -> ProjectInfo:
        found = self._client(self.compute).get(
            f"/compute/v1/projects/{self.project}", f"read project {self.project} in Compute Engine"
        )
        items = (found.get("commonInstanceMetadata") or {}).get("items", ())
        metadata = {str(item["key"]): str(item.get("value", "")) for item in items}
        return ProjectInfo(metadata, _compute_quotas(found, ""))

    def network(self, name: str) -> str:
        full = self._network_path(name)
        found = self._client(self.compute).get(f"/compute/v1/{full}", f"look at the network {name}")
        return str(found.get("name", name))

    def firewall(self, name: str) -> Firewall:
        full = self._network_path(name)
        place = f"/compute/v1/{full.partition('/global/')[0]}"
        client = self._client(self.compute)
        what = f"list the firewall rules of the network {name}"
        rules = client.listing(f"{place}/global/firewalls", "items", what, dict).items
        what = f"list the subnetworks of {name}"
        subnets = client.listing(f"{place}/aggregated/subnetworks", "subnetworks", what, dict)
        if subnets.unreachable:
            raise TransientError(f"could not {what}: not read: {', '.join(sorted(subnets.unreachable))}")
        ranges: dict[str, tuple[str, ...]] = {}
        for found in subnets.items:
            if str(found.get("network", "")).endswith(f"/{full}") and found.get("ipCidrRange"):
                region = str(found["region"]).rpartition("/")[2]
                ranges[region] = (*ranges.get(region, ()), str(found["ipCidrRange"]))
        in_it = [each for each in rules if str(each.get("network", "")).endswith(f"/{full}")]
        return Firewall(ranges, parse_rules(in_it))

    def _network_path(self, name: str) -> str:
        return name if "/" in name else f"projects/{self.project}/global/networks/{name}"

    def region_quotas(self, region: str) -> tuple[ComputeQuota, ...]:
        found = self._client(self.compute).get(
            f"/compute/v1/projects/{self.project}/regions/{region}", f"read the quotas of region {region}"
        )
        return _compute_quotas(found, region)

    def tpu_quotas(self, api: Api) -> tuple[TpuQuota, ...]:
        path = f"/v1/projects/{self.project}/locations/global/services/{QUOTA_SERVICES[api]}/quotaInfos"
        client = self._client(self.quotas, charged=True)
        what = "list the TPU quotas" + (" of Compute Engine" if api is Api.COMPUTE else "")
        found = client.listing(path, "quotaInfos", what, partial(_tpu_quotas, api), {"pageSize": _PAGE})
        return tuple(quota for quotas in found.items for quota in quotas)

    def bucket_settings(self, bucket: str) -> BucketSettings:
        return parse_bucket_settings(self._bucket(bucket))

    def bucket_permissions(self, bucket: str, permissions: Sequence[str]) -> frozenset[str]:
        answer = self._client(self.storage).get(
            f"/storage/v1/b/{quote(bucket, safe='')}/iam/testPermissions",
            f"test permissions on gs://{bucket}",
            {"permissions": list(permissions)},
        )
        return frozenset(answer.get("permissions", ()))

    def bucket_members(self, bucket: str) -> Mapping[str, Sequence[str]]:
        path = f"/storage/v1/b/{quote(bucket, safe='')}/iam"
        answer = self._client(self.storage).get(path, f"read the policy of gs://{bucket}")
        return {row["role"]: tuple(row.get("members", ())) for row in answer.get("bindings", ())}

    def _bucket(self, bucket: str) -> Mapping[str, Any]:
        return self._client(self.storage).get(
            f"/storage/v1/b/{quote(bucket, safe='')}", f"look at bucket gs://{bucket}"
        )

    def bucket_place(self, bucket: str) -> BucketPlace:
        found = self._bucket(bucket)
        regions = (found.get("customPlacementConfig") or {}).get("dataLocations", ())
        return BucketPlace(
            str(found.get("location", "")),
            str(found.get("locationType", "region")),
            tuple(str(region).lower() for region in regions),
        )

    def clock_ahead(self) -> float:
        """Any answer has a Date, also a refusal; half of the way there and back is taken off."""
        what = "compare clocks with the API"
        before = time.time()
        try:
            answer = requests.get(f"{self.tpu}/", timeout=CALL_TIMEOUT_S)
        except Exception as error:  # every transport error becomes ours
            raise translate(error, what) from error
        after = time.time()
        try:
            date = parsedate_to_datetime(answer.headers["Date"]).timestamp()
        except (KeyError, ValueError) as error:
            raise TransientError(f"could not {what}: the answer has no Date") from error
        return date + 0.5 - (before + after) / 2


def _service_name(found: Mapping[str, Any]) -> str:
    return str((found.get("config") or {}).get("name") or found["name"].rpartition("/")[2])


def parse_bucket_settings(found: Mapping[str, Any]) -> BucketSettings:
    """Of a bucket resource: https://cloud.google.com/storage/docs/json_api/v1/buckets."""
    retention = found.get("retentionPolicy") or {}
    rules = (found.get("lifecycle") or {}).get("rule", ())
    return BucketSettings(
        storage_class=str(found.get("storageClass", "STANDARD")),
        versioning=bool((found.get("versioning") or {}).get("enabled")),
        soft_delete_s=float((found.get("softDeletePolicy") or {}).get("retentionDurationSeconds", 0)),
        retention_s=float(retention.get("retentionPeriod", 0)),
        retention_locked=bool(retention.get("isLocked")),
        holds_new_objects=bool(found.get("defaultEventBasedHold")),
        deletions=tuple(_deletion(rule["condition"]) for rule in rules if _deletes_live_objects(rule)),
        labels={str(key): str(value) for key, value in (found.get("labels") or {}).items()},
    )


_OF_OLD_VERSIONS = frozenset({"daysSinceNoncurrentTime", "noncurrentTimeBefore", "numNewerVersions"})


def _deletes_live_objects(rule: Mapping[str, Any]) -> bool:
    condition = rule.get("condition") or {}
    noncurrent = condition.get("isLive") is False or bool(_OF_OLD_VERSIONS & condition.keys())
    return (rule.get("action") or {}).get("type") == "Delete" and bool(condition) and not noncurrent


def _deletion(condition: Mapping[str, Any]) -> LifecycleDeletion:
    age = condition.get("age")
    return LifecycleDeletion(tuple(condition.get("matchesPrefix", ())), None if age is None else int(age))


def _compute_quotas(found: Mapping[str, Any], region: str) -> tuple[ComputeQuota, ...]:
    """Quotas without a number are left out, so that nothing unread looks like 0."""
    return tuple(
        ComputeQuota(str(row["metric"]), int(row["limit"]), int(row.get("usage", 0)), region)
        for row in found.get("quotas", ())
        if "metric" in row and "limit" in row
    )


def _tpu_quotas(api: Api, info: Mapping[str, Any]) -> Iterable[TpuQuota]:
    """One quota per place. Values are int64 in proto3 JSON, where 0 is left out: empty details mean 0.

    An entry without a place is the default of all places it names. Of Compute Engine one without a value says
    nothing: users' machines were made where it was read so, as well as refused. One below 0 is no limit.
    """
    id = str(info.get("quotaId", ""))
    for entry in info.get("dimensionsInfos", ()):
        value = (entry.get("details") or {}).get("value")
        limit = int(value or 0)
        dimensions = entry.get("dimensions") or {}
        place = dimensions.get("zone") or dimensions.get("region")
        if limit < 0 or (api is Api.COMPUTE and value is None and place is None):
            continue
        for location in map(str, [place] if place else entry.get("applicableLocations", ())):
            if family := str(dimensions.get("tpu_family", "")):
                quota = parse_family_quota(id, location, limit, family, load_accelerators().of_machines(family))
            else:
                quota = parse_tpu_quota(id, location, limit)
            if quota is not None:
                yield quota


def read_secret(endpoint: str, credentials: Credentials, name: SecretName) -> bytes:
    """The bytes of a secret. Raises NotFoundError, DeniedError or another TpuctlError; none has the value."""
    what = f"read secret sm://{name.project}/{name.secret}"
    path = f"/v1/projects/{name.project}/secrets/{name.secret}/versions/{name.version}:access"
    answer = RestClient(endpoint, credentials).get(path, what)
    try:
        return base64.b64decode(str(message(answer.get("payload")).get("data", "")), validate=True)
    except binascii.Error as error:
        raise TpuctlError(f"could not {what}: the answer is not as documented") from error
