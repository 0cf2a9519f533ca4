"""Resource policies: the workload policies of groups, as Compute Engine checks them.

Fields and what excludes what: docs.cloud.google.com/compute/docs/reference/rest/v1/resourcePolicies. Sentences
are ours.
"""

from __future__ import annotations

import re

from tpuctl.sim.compute.catalog import Scope
from tpuctl.sim.compute.disks import invalid
from tpuctl.sim.wire.status import Json, unknown_method

_TOPOLOGY = re.compile(r"[1-9]\d*x[1-9]\d*(x[1-9]\d*)?")
_FIELD = "resource.workloadPolicy"


def policy_details(scope: Scope, body: Json) -> Json:
    """What a new policy shows besides its name."""
    region = str(body.get("region") or scope.name).rsplit("/", 1)[-1]
    if region != scope.name:
        raise invalid(
            "resource.region", body["region"], f"The region must be that of the request, {scope.name}."
        )
    policy: Json | None = body.get("workloadPolicy")
    if policy is None:
        raise unknown_method("resource policies other than workload policies")
    _check(policy)
    return {"status": "READY", "workloadPolicy": policy}


def _check(policy: Json) -> None:
    kind, topology, distance = (
        str(policy.get(each) or "") for each in ("type", "acceleratorTopology", "maxTopologyDistance")
    )
    mode = policy.get("acceleratorTopologyMode")
    if not kind:
        raise invalid(f"{_FIELD}.type", "", "The type of a workload policy must be specified.")
    if kind != "HIGH_THROUGHPUT" and (topology or mode or distance):
        text = "Topologies and distances can only be set when the type is HIGH_THROUGHPUT."
        raise invalid(f"{_FIELD}.type", kind, text)
    if distance and (topology or mode):
        text = "It cannot be set together with an accelerator topology or its mode."
        raise invalid(f"{_FIELD}.maxTopologyDistance", distance, text)
    if mode and not topology:
        raise invalid(f"{_FIELD}.acceleratorTopologyMode", mode, "An accelerator topology must be set, too.")
    if mode == "PROVISION_ONLY":
        raise unknown_method("workload policies that connect chips on demand (PROVISION_ONLY)")
    if topology and not _TOPOLOGY.fullmatch(topology):
        raise invalid(f"{_FIELD}.acceleratorTopology", topology, "It must have a form like 4x8 or 2x2x2.")
