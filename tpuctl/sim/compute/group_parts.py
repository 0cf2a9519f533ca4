"""The template and the workload policy that a group of instances is made from."""

from __future__ import annotations

from tpuctl.lib.names import region_of
from tpuctl.sim.compute.catalog import Scope
from tpuctl.sim.compute.disks import invalid
from tpuctl.sim.compute.records import Records
from tpuctl.sim.compute.refusals import absent
from tpuctl.sim.wire.status import Json


def find_template(records: Records, project: str, scope: Scope, at: tuple[str, str]) -> tuple[str, Json]:
    """URL and properties of the template `at` (scope, name). Raises ApiError."""
    where, name = at
    region = region_of(scope.name)
    if where not in ("global", f"regions/{region}"):
        url = f"{where}/instanceTemplates/{name}"
        raise invalid("resource.instanceTemplate", url, f"It must be global or in the region {region}.")
    found = records.find("instanceTemplates", where, name)
    if found is None:
        raise absent(f"projects/{project}/{where}/instanceTemplates/{name}")
    return str(found["selfLink"]), found["properties"]


def find_policy(records: Records, project: str, scope: Scope, at: tuple[str, str] | None) -> tuple[str, str]:
    """URL and topology of the workload policy `at` (region, name); empty for none. Raises ApiError."""
    if at is None:
        return "", ""
    region, name = at
    if region != region_of(scope.name):
        url = f"regions/{region}/resourcePolicies/{name}"
        text = f"It must be in the region of the group, {region_of(scope.name)}."
        raise invalid("resource.resourcePolicies.workloadPolicy", url, text)
    found = records.find("resourcePolicies", f"regions/{region}", name)
    if found is None:
        raise absent(f"projects/{project}/regions/{region}/resourcePolicies/{name}")
    return str(found["selfLink"]), str(found["workloadPolicy"].get("acceleratorTopology") or "")
