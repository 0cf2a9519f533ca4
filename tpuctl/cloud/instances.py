"""Instances of Compute Engine: JSON of the API to our data. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from tpuctl.cloud import wire
from tpuctl.cloud.rest import last_part
from tpuctl.cloud.wire import Json
from tpuctl.model.cloud import Endpoint, Tier
from tpuctl.model.disks import DataDisk, DiskMode
from tpuctl.model.slice_spec import SliceOptions

T = TypeVar("T")

TPU_MACHINE = re.compile(r"(ct[0-9]|tpu[0-9])[a-z0-9]*-[a-z]+-(?P<chips>[0-9]+)t(-tpu)?")
"""Machine types with chips, such as ct6e-standard-8t and tpu7x-standard-4t."""
AS_INSTANCES = ("ct5p-", "ct6e-", "tpu7")
"""How those begin that are offered outside GKE (docs.cloud.google.com/compute/docs/tpus/tpu-machines)."""
GUEST_ATTRIBUTES = "enable-guest-attributes"
CREATED_BY = "created-by"
_OF_THE_SERVICE = frozenset(
    {
        GUEST_ATTRIBUTES,
        CREATED_BY,
        "instance-template",
        "accelerator-type",
        "accelerator_topology_id",
        "agent-worker-number",
        "tpu-env",
        "worker-id",
        "worker-network-endpoints",
    }
)
"""Metadata that the service writes, or this program for itself: never shown as what somebody asked for, and
kept when the rest is replaced."""


class AttachedDisk(Struct, frozen=True):
    """A disk of an instance beside its boot disk. `device` is what detaching asks for."""

    zone: str
    name: str
    mode: DiskMode
    device: str


class Instance(Struct, frozen=True):
    """An instance as Compute Engine shows it."""

    name: str
    zone: str
    uid: str
    status: str
    machine_type: str
    tier: Tier
    endpoint: Endpoint
    group: str = ""
    """The zonal group that made it."""
    labels: Mapping[str, str] = field(default_factory=dict)
    label_fingerprint: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    metadata_fingerprint: str = ""
    disks: tuple[AttachedDisk, ...] = ()
    options: SliceOptions = SliceOptions()
    tags: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()
    created: str = ""
    started: str = ""
    ends: str = ""
    """When Compute Engine stops or deletes it by itself; empty for never."""


def parse_instance(found: Json) -> Instance:
    """An instance of the API as data."""
    metadata = parse_metadata(wire.message(found.get("metadata")))
    return Instance(
        name=wire.text(found.get("name")),
        zone=last_part(wire.text(found.get("zone"))),
        uid=wire.text(found.get("id")),
        status=wire.text(found.get("status")),
        machine_type=last_part(wire.text(found.get("machineType"))),
        tier=parse_tier(found),
        endpoint=_endpoint(found),
        group=_group(metadata.get(CREATED_BY, "")),
        labels=wire.strings(found.get("labels")),
        label_fingerprint=wire.text(found.get("labelFingerprint")),
        metadata=metadata,
        metadata_fingerprint=wire.text(wire.message(found.get("metadata")).get("fingerprint")),
        disks=tuple(_disk(each) for each in wire.messages(found.get("disks")) if not each.get("boot")),
        options=parse_options(found),
        tags=wire.texts(wire.message(found.get("tags")).get("items")),
        unsaid=find_unsaid(found),
        created=wire.text(found.get("creationTimestamp")),
        started=wire.text(found.get("lastStartTimestamp")),
        ends=wire.text(
            wire.message(wire.message(found.get("resourceStatus")).get("scheduling")).get(
                "terminationTimestamp"
            )
        ),
    )


def is_tpu(machine_type: str) -> bool:
    """Whether machines of this type have chips."""
    return TPU_MACHINE.fullmatch(machine_type) is not None


def chips_of(machine_type: str) -> int:
    """The chips of one machine of this type; 0 where it has none."""
    found = TPU_MACHINE.fullmatch(machine_type)
    return int(found["chips"]) if found else 0


def parse_metadata(found: Json) -> dict[str, str]:
    """Key → value."""
    return {
        wire.text(each.get("key")): wire.text(each.get("value")) for each in wire.messages(found.get("items"))
    }


def _group(created_by: str) -> str:
    match = re.search(r"/zones/[^/]+/instanceGroupManagers/([^/]+)$", created_by)
    return match[1] if match else ""


_MODELS = {
    "SPOT": Tier.SPOT,
    "FLEX_START": Tier.FLEX_START,
    "RESERVATION_BOUND": Tier.RESERVED,
}


def parse_tier(found: Json) -> Tier:
    """How an instance, or one by these properties of a template, is paid for."""
    scheduling = wire.message(found.get("scheduling"))
    model = wire.text(scheduling.get("provisioningModel"))
    if model in _MODELS:
        return _MODELS[model]
    if scheduling.get("preemptible"):
        return Tier.PREEMPTIBLE
    affinity = wire.message(found.get("reservationAffinity"))
    specific = affinity.get("consumeReservationType") == "SPECIFIC_RESERVATION"
    return Tier.RESERVED if specific else Tier.ON_DEMAND


def _endpoint(found: Json) -> Endpoint:
    first = wire.first(found.get("networkInterfaces"))
    outer = (wire.text(each.get("natIP")) for each in wire.messages(first.get("accessConfigs")))
    address = next((each for each in outer if each), None)
    return Endpoint(wire.text(first.get("networkIP")), address, wire.text(found.get("name")))


_DISK_PLACE = re.compile(r"zones/([^/]+)/disks/([^/]+)$")


def _disk(found: Json) -> AttachedDisk:
    place = _DISK_PLACE.search(wire.text(found.get("source")))
    zone, name = (place[1], place[2]) if place else ("", last_part(wire.text(found.get("source"))))
    mode = DiskMode.READ_ONLY if found.get("mode") == DiskMode.READ_ONLY else DiskMode.READ_WRITE
    return AttachedDisk(zone, name, mode, wire.text(found.get("deviceName")))


def shared_disks(instances: Sequence[Instance]) -> tuple[DataDisk, ...]:
    """The data disks of a slice, in the order of its hosts. `workers` are the positions of the hosts that have
    one, where not all do."""
    having: dict[DataDisk, list[str]] = {}
    for position, instance in enumerate(instances):
        for each in instance.disks:
            having.setdefault(DataDisk(each.zone, each.name, each.mode), []).append(str(position))
    return tuple(
        disk if len(workers) == len(instances) else DataDisk(disk.zone, disk.name, disk.mode, tuple(workers))
        for disk, workers in having.items()
    )


def next_disk(
    host: Instance, position: int, before: Sequence[DataDisk], wanted: Sequence[DataDisk]
) -> DataDisk | AttachedDisk | None:
    """What to attach to a host, or to detach from it, next on its way from the data disks that its slice had
    `before` to those `wanted`; None where nothing is left to do. What neither names stays as it is."""
    has = {(each.zone, each.name): each for each in host.disks}
    asked = {(each.zone, each.name): each for each in wanted}
    for disk in before:
        place = (disk.zone, disk.name)
        if place not in asked and place in has:
            return has[place]
    for place, disk in asked.items():
        if disk.workers and str(position) not in disk.workers:
            continue
        if place not in has:
            return disk
        if has[place].mode is not disk.mode:
            return has[place]
    return None


def common(maps: Iterable[Mapping[str, T]]) -> dict[str, T]:
    """What all have alike."""
    found = list(maps)
    if not found:
        return {}
    return {k: v for k, v in found[0].items() if all(each.get(k) == v for each in found)}


def shown_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """What somebody asked for, without what is the service's."""
    return {key: value for key, value in metadata.items() if key not in _OF_THE_SERVICE}


def replaced_in_host(
    own: Mapping[str, str], shown: Mapping[str, str], wanted: Mapping[str, str]
) -> dict[str, str]:
    """The metadata or labels of one host after those of its slice, `shown`, were replaced by `wanted`: what is
    its own alone, or the service's, stays."""
    return {**{key: value for key, value in own.items() if key not in shown}, **wanted}


_DEFAULT_NETWORK = "default"
_DEFAULT_ACCOUNT = re.compile(r"default|\d+-compute@developer\.gserviceaccount\.com")
"""What a request gets that names none (cloud.google.com/compute/docs/access/service-accounts)."""
ALL_APIS = "https://www.googleapis.com/auth/cloud-platform"


def parse_options(found: Json) -> SliceOptions:
    """With which options an instance, or properties of a template, was asked for. Names in its own project come
    as short ones; the default network and service account come as None."""
    network, account = wire.first(found.get("networkInterfaces")), wire.first(found.get("serviceAccounts"))
    values = wire.texts(wire.message(found.get("reservationAffinity")).get("values"))
    metadata = shown_metadata(parse_metadata(wire.message(found.get("metadata"))))
    options = options_of(wire.text(found.get("selfLink")), network, account, metadata, found)
    return replace(options, reservation=values[0] if values else None)


def options_of(
    own: str, network: Json, account: Json, metadata: Mapping[str, str], found: Json
) -> SliceOptions:
    """What a slice of either API was asked for; `own` is a name or an address in its project."""
    project = _project(own)
    name = _short(wire.text(network.get("network")), project, "global/networks/")
    subnetwork = _short(wire.text(network.get("subnetwork")), project, "regions/[^/]+/subnetworks/")
    by_default = {name, subnetwork} <= {"", _DEFAULT_NETWORK}
    email = wire.text(account.get("email"))
    return SliceOptions(
        network=None if by_default else name or None,
        subnetwork=None if by_default else subnetwork or None,
        service_account=None if _DEFAULT_ACCOUNT.fullmatch(email) else email or None,
        metadata=metadata,
        description=wire.text(found.get("description")) or None,
    )


def _project(link: str) -> str:
    match = re.search(r"projects/([^/]+)/", link)
    return match[1] if match else "[^/]+"


def _short(link: str, project: str, place: str) -> str:
    if "projects/" not in link:
        return link
    return re.sub(rf"^projects/{project}/{place}", "", link[link.find("projects/") :])


def find_unsaid(found: Json) -> tuple[str, ...]:
    """Fields in which an instance, or properties of a template, is what no `SliceSpec` can ask for."""
    unsaid = [name for name in ("canIpForward",) if found.get(name)]
    if wire.message(found.get("shieldedInstanceConfig")).get("enableSecureBoot"):
        unsaid.append("shieldedInstanceConfig.enableSecureBoot")
    accounts = wire.messages(found.get("serviceAccounts"))
    if accounts and ALL_APIS not in wire.texts(accounts[0].get("scopes")):
        unsaid.append("serviceAccounts.scopes")
    if len(wire.messages(found.get("networkInterfaces"))) > 1:
        unsaid.append("networkInterfaces")
    return tuple(unsaid)
