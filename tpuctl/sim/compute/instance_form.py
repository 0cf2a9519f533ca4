"""What instances are asked to be, checked, and what Compute Engine fills in.

What is filled in is that of a recording (k8s-config-connector, basic/compute/v1beta1/computeinstance).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tpuctl.lib.names import region_of
from tpuctl.sim.compute.bodies import fingerprint, last_part
from tpuctl.sim.compute.catalog import ROOT, Scope
from tpuctl.sim.compute.refusals import absent, invalid
from tpuctl.sim.hosts.backend import HostAddress
from tpuctl.sim.wire.status import Json, unknown_method
from tpuctl.sim.world.data_disks import NVME
from tpuctl.sim.world.identity import DEFAULT_ACCOUNT
from tpuctl.sim.world.state import RW

LEAST_RUN_S, MOST_RUN_S = 30.0, 120 * 86_400.0
"""Of `maxRunDuration` (cloud.google.com/compute/docs/instances/limit-vm-runtime)."""
ENDING = frozenset({"SPOT", "FLEX_START"})
"""Provisioning models whose instances end some day."""
MAX_METADATA = 512 * 1024
"""Bytes of all values (cloud.google.com/compute/docs/metadata/setting-custom-metadata)."""
IMAGE_GB = 10
"""Of a boot disk that nobody says more of."""


def check_inputs(body: Json) -> None:
    """Refuses what cannot be."""
    disks = body.get("disks") or []
    if not disks or not disks[0].get("boot"):
        raise invalid("resource.disks", "", "At least one disk must be specified, the first of which boots.")
    if not body.get("networkInterfaces"):
        raise invalid("resource.networkInterfaces", "", "At least one network interface is required.")


def shown_metadata(items: Sequence[Json], where: str = "resource") -> Json:
    """Metadata as resources show them. Raises ApiError for what is too much, or said twice."""
    found = {str(each.get("key")): str(each.get("value", "")) for each in items}
    if len(found) < len(items):
        raise invalid(f"{where}.metadata.items", "", "Keys of metadata must be unique.")
    if sum(len(value.encode()) for value in found.values()) > MAX_METADATA:
        raise invalid(f"{where}.metadata.items", "", f"Metadata is longer than {MAX_METADATA} bytes.")
    shown = [{"key": key, "value": value} for key, value in found.items()]
    kept = {"items": shown} if shown else {}
    return {"kind": "compute#metadata", "fingerprint": fingerprint(found), **kept}


def shown_scheduling(asked: Json) -> Json:
    """With what follows from the provisioning model."""
    model = str(asked.get("provisioningModel") or ("SPOT" if asked.get("preemptible") else "STANDARD"))
    ends = model in ENDING
    filled = {
        "automaticRestart": not ends,
        "onHostMaintenance": "TERMINATE" if ends else "MIGRATE",
        "provisioningModel": model,
    }
    return {**filled, **asked, "preemptible": model == "SPOT"}


def checked_scheduling(asked: Json) -> Json:
    """As it is shown. Raises ApiError for what machines with chips cannot have, or what excludes each other."""
    shown = shown_scheduling(asked)
    model, where = shown["provisioningModel"], "resource.scheduling"
    action = asked.get("instanceTerminationAction")
    if shown["onHostMaintenance"] != "TERMINATE":
        text = "Instances with TPUs do not support live migration: it must be TERMINATE."
        raise invalid(f"{where}.onHostMaintenance", shown["onHostMaintenance"], text)
    if model in ENDING and shown["automaticRestart"]:
        raise invalid(f"{where}.automaticRestart", True, f"It must be false with provisioning model {model}.")
    run_s = run_seconds(asked)
    if run_s is not None and not LEAST_RUN_S <= run_s <= MOST_RUN_S:
        raise invalid(f"{where}.maxRunDuration", f"{run_s:g}s", "It must be from 30 seconds to 120 days.")
    if run_s is not None and not action:
        text = "It must be set when the run time is limited."
        raise invalid(f"{where}.instanceTerminationAction", "", text)
    if model == "FLEX_START" and (run_s is None or action != "DELETE"):
        text = "Flex-start needs maxRunDuration and the termination action DELETE."
        raise invalid(f"{where}.provisioningModel", model, text)
    return shown


def run_seconds(asked: Json) -> float | None:
    """How long an instance may run after each start; None for ever."""
    duration = asked.get("maxRunDuration")
    if duration is None:
        return None
    if isinstance(duration, Mapping):
        return float(duration.get("seconds") or 0) + float(duration.get("nanos") or 0) / 1e9
    return float(str(duration).removesuffix("s"))


def attached(entry: Json, index: int, source: str, generation: str, size_gb: str) -> Json:
    """A disk as an instance shows it."""
    return {
        "kind": "compute#attachedDisk",
        "type": "PERSISTENT",
        "mode": str(entry.get("mode") or RW),
        "source": source,
        "deviceName": str(entry.get("deviceName") or f"persistent-disk-{index}"),
        "index": index,
        "boot": bool(entry.get("boot")),
        "autoDelete": bool(entry.get("autoDelete")),
        "interface": "NVME" if generation in NVME else "SCSI",
        "diskSizeGb": size_gb,
    }


def find_source_image(
    asked: Json, index: int, where: str, find_image: Callable[[str], Json | None]
) -> Json | None:
    """What the `index`-th disk is made from: the first one needs something. Raises ApiError."""
    image = str(asked.get("sourceImage") or "")
    found = find_image(image) if image else None
    if image and found is None:
        raise invalid(f"{where}.sourceImage", image, "The referenced image resource cannot be found.")
    if index == 0 and found is None:
        raise invalid(f"{where}.sourceImage", "", "A boot disk needs an image to be made from.")
    return found


def new_disk(
    zone: str, instance: str, entry: Json, index: int, find_image: Callable[[str], Json | None]
) -> Json:
    """The body of the disk that `initializeParams` ask for."""
    asked, where = entry.get("initializeParams") or {}, f"resource.disks[{index}].initializeParams"
    if asked.get("sourceSnapshot"):
        raise unknown_method("instances with a disk from a snapshot (initializeParams.sourceSnapshot)")
    found = find_source_image(asked, index, where, find_image)
    least = int((found or {}).get("diskSizeGb") or IMAGE_GB)
    size = int(asked.get("diskSizeGb") or entry.get("diskSizeGb") or least)
    if size < least:
        raise invalid(f"{where}.diskSizeGb", size, f"It must be at least the size of the image, {least} GB.")
    kind = last_part(asked.get("diskType") or "pd-standard")
    kept = {key: asked[key] for key in ("labels", "provisionedIops", "provisionedThroughput") if key in asked}
    return {
        "name": str(asked.get("diskName") or (instance if index == 0 else f"{instance}-{index}")),
        "sizeGb": str(size),
        "type": f"zones/{zone}/diskTypes/{kind}",
        **kept,
    }


def interfaces(project: str, zone: str, asked: list[Json]) -> list[Json]:
    """As they are shown before there are addresses."""
    base, region = f"{ROOT}/projects/{project}", region_of(zone)
    shown = []
    for number, each in enumerate(asked):
        network = last_part(each.get("network") or "default")
        if network != "default":
            raise absent(f"projects/{project}/global/networks/{network}")
        subnetwork = last_part(each.get("subnetwork") or network)
        shown.append(
            {
                "kind": "compute#networkInterface",
                "name": f"nic{number}",
                "network": f"{base}/global/networks/{network}",
                "subnetwork": f"{base}/regions/{region}/subnetworks/{subnetwork}",
                "stackType": "IPV4_ONLY",
                **({"nicType": each["nicType"]} if each.get("nicType") else {}),
                **access_configs(each),
            }
        )
    return shown


def access_configs(interface: Json) -> Json:
    """The external addresses of an interface, where it has some."""
    filled = {"kind": "compute#accessConfig", "type": "ONE_TO_ONE_NAT", "name": "external-nat"}
    found = [{**filled, **each} for each in interface.get("accessConfigs") or ()]
    return {"accessConfigs": found} if found else {}


def fill_addresses(shown: list[Json], address: HostAddress) -> None:
    """The first interface is that of the host. Others are shown, and nothing answers there."""
    for number, each in enumerate(shown):
        internal, external = address.internal_ip, address.external_ip
        each["networkIP"] = internal if number == 0 else f"10.129.{number}.{internal.rpartition('.')[2]}"
        for access in each.get("accessConfigs") or ():
            access["natIP"] = external if number == 0 else f"198.19.{number}.{external.rpartition('.')[2]}"


def accounts(asked: list[Json]) -> list[Json]:
    """`default` by its name; no account where none is asked for."""
    return [
        {
            "email": DEFAULT_ACCOUNT if str(each.get("email") or "default") == "default" else each["email"],
            "scopes": list(each.get("scopes") or ()),
        }
        for each in asked
    ]


def machine_link(project: str, zone: str, asked: object) -> tuple[str, str]:
    """(name, URL) of a machine type."""
    name = last_part(asked or "")
    return name, f"{ROOT}/projects/{project}/{Scope('zones', zone)}/machineTypes/{name}"
