"""Reservations of TPU machines: by a count of machines, or by chips of a family."""

from __future__ import annotations

from collections.abc import Mapping

from tpuctl.sim.compute.catalog import Scope
from tpuctl.sim.compute.disks import invalid
from tpuctl.sim.compute.group_facts import TPU_MACHINES
from tpuctl.sim.wire.status import Json, unknown_method

_FAMILIES: Mapping[str, str] = {
    "VM_FAMILY_CLOUD_TPU_POD_SLICE_CT5P": "v5p",
    "VM_FAMILY_CLOUD_TPU_LITE_POD_SLICE_CT6E": "v6e",
    "VM_FAMILY_CLOUD_TPU_POD_SLICE_TPU7X": "tpu7x",
}
"""`vmFamily` → the generation: those that Compute Engine has machines of."""


def reservation_details(_scope: Scope, body: Json) -> Json:
    """What a new reservation shows besides its name."""
    specific: Json | None = body.get("specificReservation")
    whole: Json | None = body.get("aggregateReservation")
    if (specific is None) == (whole is None):
        text = "Either a specific or an aggregate reservation must be specified."
        raise invalid("resource.specificReservation", "", text)
    reserved_chips(body)
    required = bool(body.get("specificReservationRequired"))
    shown: Json = {"status": "READY", "specificReservationRequired": required}
    if specific is not None:
        count = str(specific["count"])
        return {**shown, "specificReservation": {**specific, "assuredCount": count, "inUseCount": "0"}}
    return {**shown, "aggregateReservation": whole}


def reserved_chips(body: Json) -> tuple[str, int]:
    """Generation and number of the chips that a reservation sets aside."""
    specific, whole = body.get("specificReservation"), body.get("aggregateReservation") or {}
    if specific is not None:
        name = str((specific.get("instanceProperties") or {}).get("machineType") or "").rsplit("/", 1)[-1]
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
