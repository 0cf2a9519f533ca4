"""Instance templates: what they show of the properties that their instances will have.

What is filled in is that of a recording (k8s-config-connector, zonalcomputeinstancegroupmanager).
Whether a machine can be made from it turns out when one is made, as in the real service.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tpuctl.model.shipped_files import load_sim_compute
from tpuctl.sim.compute.bodies import refuse_others
from tpuctl.sim.compute.instance_form import access_configs, find_source_image, shown_metadata, shown_scheduling
from tpuctl.sim.compute.refusals import invalid
from tpuctl.sim.wire.status import Json, unknown_method

_MACHINE_TYPE = re.compile(r"[a-z][-a-z0-9]*")
_PROPERTIES = frozenset(load_sim_compute()["properties"])


def template_details(body: Json, find_image: Callable[[str], Json | None]) -> Json:
    """What a new template shows besides its name."""
    where = "resource.properties"
    properties: Json | None = body.get("properties")
    if body.get("sourceInstance"):
        raise unknown_method("instance templates of an instance (sourceInstance)")
    if not properties:
        raise invalid(where, "", "The properties of a template must be specified.")
    refuse_others(properties, _PROPERTIES, "instance templates")
    machine = str(properties.get("machineType") or "")
    if not _MACHINE_TYPE.fullmatch(machine):
        raise invalid(f"{where}.machineType", machine, "It must be the name of a machine type, without a zone.")
    shown = {
        **properties,
        "disks": _disks(properties.get("disks") or [], f"{where}.disks", find_image),
        "metadata": shown_metadata((properties.get("metadata") or {}).get("items") or (), where),
        "networkInterfaces": _interfaces(
            properties.get("networkInterfaces") or [], f"{where}.networkInterfaces"
        ),
        "scheduling": shown_scheduling(properties.get("scheduling") or {}),
    }
    return {"description": str(body.get("description") or ""), "properties": shown}


def _disks(disks: list[Json], where: str, find_image: Callable[[str], Json | None]) -> list[Json]:
    """With the names of their devices. The first must be one to boot from."""
    if not disks or not disks[0].get("boot"):
        raise invalid(where, "", "The first disk must be a boot disk.")
    shown = []
    for number, each in enumerate(disks):
        asked: Json = each.get("initializeParams") or {}
        find_source_image(asked, number, f"{where}[{number}].initializeParams", find_image)
        filled = {
            "kind": "compute#attachedDisk",
            "index": number,
            "deviceName": f"persistent-disk-{number}",
            "mode": "READ_WRITE",
            "type": "PERSISTENT",
        }
        shown.append({**filled, **each})
    return shown


def _interfaces(interfaces: list[Json], where: str) -> list[Json]:
    if not interfaces:
        raise invalid(where, "", "At least one network interface is required.")
    shown = []
    for number, each in enumerate(interfaces):
        if not (each.get("network") or each.get("subnetwork")):
            raise invalid(f"{where}[{number}]", "", "Either a network or a subnetwork must be specified.")
        found = {"kind": "compute#networkInterface", "name": f"nic{number}", **each}
        shown.append({**found, **access_configs(each)})
    return shown
