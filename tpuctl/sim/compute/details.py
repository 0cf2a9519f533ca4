"""What new addresses, firewall rules, workload policies and reservations show besides their names. Pure.

Fields and what excludes what: docs.cloud.google.com/compute/docs/reference/rest/v1, under `firewalls`,
`resourcePolicies` and `reservations`. Sentences are ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tpuctl.sim.compute.bodies import last_part
from tpuctl.sim.compute.catalog import KINDS, ROOT, TPU_MACHINES, Scope
from tpuctl.sim.compute.refusals import absent, invalid
from tpuctl.sim.wire.status import Json, unknown_method

_ADDRESSES = 64_516
_TOPOLOGY = re.compile(r"[1-9]\d*x[1-9]\d*(x[1-9]\d*)?")
_FIELD = "resource.workloadPolicy"
_FAMILIES: Mapping[str, str] = {
    "VM_FAMILY_CLOUD_TPU_POD_SLICE_CT5P": "v5p",
    "VM_FAMILY_CLOUD_TPU_LITE_POD_SLICE_CT6E": "v6e",
    "VM_FAMILY_CLOUD_TPU_POD_SLICE_TPU7X": "tpu7x",
}
"""`vmFamily` → the generation: those that Compute Engine has machines of."""


def address_details(number: int, body: Json) -> Json:
    """The `number`-th new address of the project."""
    number = (number - 1) % _ADDRESSES + 1
    return {
        "address": str(body.get("address") or f"198.{18 + number // 254 % 2}.{number // 254}.{number % 254}"),
        "addressType": str(body.get("addressType") or "EXTERNAL"),
        "networkTier": str(body.get("networkTier") or "PREMIUM"),
        "description": str(body.get("description") or ""),
    }


def firewall_details(project: str, body: Json) -> Json:
    """A rule with what the service fills in."""
    network = last_part(body.get("network") or "default")
    if network != "default":
        raise absent(f"projects/{project}/global/networks/{network}")
    if bool(body.get("allowed")) == bool(body.get("denied")):
        raise invalid("resource.allowed", "", "Either allowed or denied must be specified.")
    asked = {key: value for key, value in body.items() if key in KINDS["firewalls"].inputs}
    inward = asked.get("direction") != "EGRESS"
    anywhere = "sourceRanges" if inward else "destinationRanges"
    limited = any(asked.get(key) for key in (anywhere, *(("sourceTags",) if inward else ())))
    return {
        "priority": 1000,
        **asked,
        **({} if limited else {anywhere: ["0.0.0.0/0"]}),
        "network": f"{ROOT}/projects/{project}/global/networks/{network}",
    }


def policy_details(scope: Scope, body: Json) -> Json:
    """What a new policy shows besides its name."""
    region = last_part(body.get("region") or scope.name)
    if region != scope.name:
        raise invalid(
            "resource.region", body["region"], f"The region must be that of the request, {scope.name}."
        )
    policy: Json | None = body.get("workloadPolicy")
    if policy is None:
        raise unknown_method("resource policies other than workload policies")
    _check_policy(policy)
    return {"workloadPolicy": policy}


def _check_policy(policy: Json) -> None:
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


def reservation_details(_scope: Scope, body: Json) -> Json:
    """What a new reservation shows besides its name."""
    specific: Json | None = body.get("specificReservation")
    whole: Json | None = body.get("aggregateReservation")
    if (specific is None) == (whole is None):
        text = "Either a specific or an aggregate reservation must be specified."
        raise invalid("resource.specificReservation", "", text)
    reserved_chips(body)
    required = bool(body.get("specificReservationRequired"))
    shown: Json = {"specificReservationRequired": required}
    if specific is not None:
        count = str(specific["count"])
        return {**shown, "specificReservation": {**specific, "assuredCount": count, "inUseCount": "0"}}
    return {**shown, "aggregateReservation": whole}


def reserved_chips(body: Json) -> tuple[str, int]:
    """Generation and number of the chips that a reservation sets aside."""
    specific, whole = body.get("specificReservation"), body.get("aggregateReservation") or {}
    if specific is not None:
        name = last_part((specific.get("instanceProperties") or {}).get("machineType") or "")
        machine, count = TPU_MACHINES.get(name), int(specific.get("count") or 0)
        if machine is None:
            raise unknown_method(f"reservations of machines without TPUs ({name or 'no machine type'})")
        if count < 1:
            raise invalid("resource.specificReservation.count", count, "It must be at least 1.")
        return machine.generation, count * machine.chips
    family = str(whole.get("vmFamily") or "")
    if family not in _FAMILIES:
        raise invalid("resource.aggregateReservation.vmFamily", family, "It is not a family of TPU machines.")
    rows = [each.get("accelerator") or {} for each in whole.get("reservedResources") or ()]
    chips = sum(int(each.get("acceleratorCount") or 0) for each in rows)
    if chips < 1:
        raise invalid("resource.aggregateReservation.reservedResources", chips, "No chips are reserved.")
    return _FAMILIES[family], chips
