"""The collections and methods of Compute Engine, and what it has without anybody making it: places, types of
machines and disks, the default network.

Shapes are those of the recordings in GoogleCloudPlatform/k8s-config-connector (mockgcp/mockcompute/testdata,
folders computezones, computenetworks and computesubnets); numbers of types are those of https://cloud.google.com/compute/docs/machine-resource,
https://cloud.google.com/tpu/docs/v6e and its neighbours, and https://cloud.google.com/compute/docs/disks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_network

from tpuctl.lib.names import region_of
from tpuctl.sim.compute.group_facts import TPU_MACHINES
from tpuctl.sim.wire.status import Json
from tpuctl.sim.world.identity import DEFAULT_ACCOUNT

ROOT = "https://www.googleapis.com/compute/v1"
GLOBAL = "global"
_MADE = "2024-04-01T05:34:56.123-07:00"
_MACHINES: tuple[tuple[str, str, int, int], ...] = (
    *(("", f"e2-standard-{n}", n, n * 4096) for n in (2, 4, 8, 16)),
    *(("", f"n1-standard-{n}", n, n * 3840) for n in (1, 2, 4, 8, 16, 32)),
    *(("", f"n2-standard-{n}", n, n * 4096) for n in (2, 4, 8, 16, 32)),
    ("v4", "ct4p-hightpu-4t", 240, 416_768),
    ("v5e", "ct5lp-hightpu-1t", 24, 49_152),
    ("v5e", "ct5lp-hightpu-4t", 112, 196_608),
    ("v5e", "ct5lp-hightpu-8t", 224, 393_216),
    ("v5p", "ct5p-hightpu-1t", 52, 114_688),
    ("v5p", "ct5p-hightpu-4t", 208, 458_752),
    ("v6e", "ct6e-standard-1t", 44, 180_224),
    ("v6e", "ct6e-standard-4t", 180, 737_280),
    ("v6e", "ct6e-standard-8t", 180, 1_474_560),
    ("tpu7x", "tpu7x-standard-1t", 56, 245_760),
    ("tpu7x", "tpu7x-standard-4t", 224, 983_040),
)
"""Generation that a zone must have, name, CPUs, MiB of memory."""
DISK_TYPES: Mapping[str, tuple[int, int, int]] = {
    "hyperdisk-balanced": (100, 4, 65_536),
    "hyperdisk-extreme": (1000, 64, 65_536),
    "hyperdisk-ml": (100, 4, 65_536),
    "hyperdisk-throughput": (2048, 2048, 32_768),
    "local-ssd": (375, 375, 375),
    "pd-balanced": (100, 10, 65_536),
    "pd-extreme": (1000, 500, 65_536),
    "pd-ssd": (100, 10, 65_536),
    "pd-standard": (500, 10, 65_536),
}
"""Default, smallest and largest size in GB."""
INTERNAL_RULE = "default-allow-internal"
_EVERY_PORT = ["0-65535"]
_FIREWALL: Mapping[str, tuple[str, Mapping[str, list[str]]]] = {
    "default-allow-icmp": ("0.0.0.0/0", {"icmp": []}),
    INTERNAL_RULE: ("10.128.0.0/9", {"tcp": _EVERY_PORT, "udp": _EVERY_PORT, "icmp": []}),
    "default-allow-rdp": ("0.0.0.0/0", {"tcp": ["3389"]}),
    "default-allow-ssh": ("0.0.0.0/0", {"tcp": ["22"]}),
}
"""Rule → from where it lets in what, by protocol and ports."""


@dataclass(frozen=True)
class Scope:
    """`zones/us-central2-b`, `regions/us-central2` or `global`."""

    kind: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}" if self.name else self.kind

    @property
    def location(self) -> str:
        return self.name or self.kind


@dataclass(frozen=True)
class Kind:
    """A collection of the API: where its resources live, and what `kind` they say they are."""

    collection: str
    singular: str
    scopes: tuple[str, ...]
    message: str = ""
    """The type of its resources where the simulator can make some."""
    in_regions: str = ""
    """What the API calls those of regions, where that is a collection of its own."""
    called_whole: tuple[str, ...] = ()
    """Verbs whose operations say the whole method, as recorded (k8s-config-connector, instance groups)."""

    def operation_type(self, verb: str) -> str:
        """`operationType` of what a verb begins."""
        return f"compute.{self.collection}.{verb}" if verb in self.called_whole else verb

    def method(self, scope: Scope | None, verb: str) -> str:
        """The method's id in the discovery document."""
        if self.collection == "operations" and scope is not None:
            return f"{scope.kind.removesuffix('s')}Operations.{verb}"
        if self.collection == "operations":
            return f"globalOperations.{verb}"
        if self.in_regions and scope is not None and scope.kind == "regions":
            return f"{self.in_regions}.{verb}"
        both = "regions" in self.scopes and GLOBAL in self.scopes and not self.in_regions
        if both and scope is not None and scope.kind == GLOBAL:
            return f"global{self.collection[0].upper()}{self.collection[1:]}.{verb}"
        return f"{self.collection}.{verb}"


KINDS: Mapping[str, Kind] = {
    kind.collection: kind
    for kind in (
        Kind("acceleratorTypes", "acceleratorType", ("zones",)),
        Kind("addresses", "address", ("regions", GLOBAL), "Address"),
        Kind("autoscalers", "autoscaler", ("zones", "regions"), in_regions="regionAutoscalers"),
        Kind("diskTypes", "diskType", ("zones",)),
        Kind("disks", "disk", ("zones",), "Disk"),
        Kind("firewalls", "firewall", (GLOBAL,), "Firewall"),
        Kind("images", "image", (GLOBAL,), "Image"),
        Kind(
            "instanceGroupManagers",
            "instanceGroupManager",
            ("zones", "regions"),
            "InstanceGroupManager",
            in_regions="regionInstanceGroupManagers",
            called_whole=("insert", "delete", "deleteInstances", "recreateInstances", "resize"),
        ),
        Kind("instanceGroups", "instanceGroup", ("zones",)),
        Kind(
            "instanceTemplates",
            "instanceTemplate",
            ("regions", GLOBAL),
            "InstanceTemplate",
            in_regions="regionInstanceTemplates",
            called_whole=("insert",),
        ),
        Kind("instances", "instance", ("zones",), "Instance"),
        Kind("machineTypes", "machineType", ("zones",)),
        Kind("networks", "network", (GLOBAL,), "Network"),
        Kind("operations", "operation", ("zones", "regions", GLOBAL)),
        Kind("reservations", "reservation", ("zones",), "Reservation"),
        Kind("resourcePolicies", "resourcePolicy", ("regions",), "ResourcePolicy"),
        Kind("snapshots", "snapshot", (GLOBAL,), "Snapshot"),
        Kind("subnetworks", "subnetwork", ("regions",)),
    )
}
"""AcceleratorTypes (which are GPUs) and autoscalers are there, and the project has none."""
CHANGES: Mapping[str, str] = {
    "disks.createSnapshot": "Snapshot",
    "disks.resize": "DisksResizeRequest",
    "disks.setLabels": "ZoneSetLabelsRequest",
    "disks.update": "Disk",
    "firewalls.patch": "Firewall",
    "instances.attachDisk": "AttachedDisk",
    "instances.detachDisk": "",
    "instances.setLabels": "InstancesSetLabelsRequest",
    "instances.setMetadata": "Metadata",
    "instances.start": "",
    "instances.stop": "",
    "instanceGroupManagers.deleteInstances": "InstanceGroupManagersDeleteInstancesRequest",
    "instanceGroupManagers.patch": "InstanceGroupManager",
    "instanceGroupManagers.recreateInstances": "InstanceGroupManagersRecreateInstancesRequest",
    "instanceGroupManagers.resize": "",
    "snapshots.setLabels": "GlobalSetLabelsRequest",
}
"""Methods besides insert and delete that change what is there, named as in the discovery document without the
scope, and the types of their bodies; empty where they have none."""
READS: Mapping[str, str] = {
    "instanceGroupManagers.listErrors": "GET",
    "instanceGroupManagers.listManagedInstances": "POST",
    "instanceGroups.listInstances": "POST",
    "instances.getGuestAttributes": "GET",
}
"""Methods besides get and list that read something of a resource, and their HTTP methods."""
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "instances.attachDisk": ("forceAttach",),
    "instances.detachDisk": ("deviceName",),
    "instanceGroupManagers.resize": ("size",),
}
"""Query parameters of methods of both kinds that belong to what is asked; they are given on with the body."""
UPDATED = ("accessMode", "provisionedThroughput")
"""What `disks.update` changes, one at a time."""
LIKE = {"snapshots.aggregatedList": "disks.aggregatedList"}
"""Methods that only the beta has, with the same parameters as another."""
_PERMISSION_VERBS: Mapping[str, str] = {"insert": "create", "aggregatedList": "list", "wait": "get"}
"""What permissions call them (https://cloud.google.com/iam/docs/roles-permissions/compute)."""
_PERMISSIONS: Mapping[str, str] = {
    "firewalls.patch": "firewalls.update",
    **{
        f"instanceGroupManagers.{verb}": "instanceGroupManagers.update"
        for verb in ("deleteInstances", "patch", "recreateInstances", "resize")
    },
    **{
        f"instanceGroupManagers.{verb}": "instanceGroupManagers.get"
        for verb in ("listErrors", "listManagedInstances")
    },
    "instanceGroups.listInstances": "instanceGroups.list",
}


def permission_of(method: str) -> str:
    """What a caller must be allowed to do: `disks.insert` asks for compute.disks.create."""
    collection, _, verb = method.partition(".")
    return f"compute.{_PERMISSIONS.get(method, f'{collection}.{_PERMISSION_VERBS.get(verb, verb)}')}"


def _accelerators(machine: str) -> Json:
    """The chips of a machine type; the name of the kind is what users of v6e read there."""
    found = TPU_MACHINES.get(machine)
    if found is None:
        return {}
    kind = machine.partition("-")[0]
    return {"accelerators": [{"guestAcceleratorType": kind, "guestAcceleratorCount": found.chips}]}


class ComputeCatalog:
    """`generations` says which TPU generations a zone has, `has_network` which networks the project has;
    `address_range` is that of all hosts, where they have one."""

    def __init__(
        self,
        project: str,
        zones: list[str],
        generations: Callable[[str], set[str]],
        has_network: Callable[[str], bool],
        address_range: str = "",
    ) -> None:
        self._base = f"{ROOT}/projects/{project}"
        self._zones = zones
        self._generations = generations
        self._address_range = address_range
        self._makers: Mapping[str, Callable[[Scope], list[Json]]] = {
            "diskTypes": self._disk_types,
            "machineTypes": self._machine_types,
            "networks": lambda _: [self._network()] if has_network("default") else [],
            "subnetworks": lambda scope: [self._subnetwork(scope)] if has_network("default") else [],
        }

    def firewalls(self, *, internal: bool) -> list[Json]:
        """The rules with which a default network begins; `internal`: with that for traffic between hosts."""
        return [self._firewall(name) for name in _FIREWALL if internal or name != INTERNAL_RULE]

    def usable_subnetworks(self) -> list[Json]:
        """Those in which machines can be made, each with less of it than elsewhere."""
        found = []
        for _, _, each in self.rows(KINDS["subnetworks"]):
            kept = {key: each[key] for key in ("ipCidrRange", "network", "purpose", "stackType")}
            found.append({**kept, "subnetwork": each["selfLink"]})
        return found

    def regions(self) -> list[str]:
        return sorted({region_of(zone) for zone in self._zones})

    def scopes(self, kind: Kind) -> list[Scope]:
        """All places where a collection can have something."""
        found = [Scope("zones", zone) for zone in self._zones if "zones" in kind.scopes]
        found += [Scope("regions", region) for region in self.regions() if "regions" in kind.scopes]
        return [*found, *([Scope(GLOBAL)] if GLOBAL in kind.scopes else [])]

    def rows(self, kind: Kind) -> list[tuple[str, str, Json]]:
        """(scope, name, resource) of a collection, everywhere."""
        make = self._makers.get(kind.collection)
        return [
            (str(scope), data["name"], data)
            for scope in self.scopes(kind)
            for data in (make(scope) if make else ())
        ]

    def project(self, metadata: Mapping[str, str], quotas: Sequence[Json]) -> Json:
        """The project as the API shows it."""
        items = [{"key": key, "value": value} for key, value in sorted(metadata.items())]
        return {
            "kind": "compute#project",
            "id": "3099843102246789847",
            "name": self._base.rpartition("/")[2],
            "creationTimestamp": "2024-06-17T18:00:40.463-07:00",
            "commonInstanceMetadata": {
                "kind": "compute#metadata",
                "fingerprint": "uIRm46oOI3I=",
                **({"items": items} if items else {}),
            },
            "defaultServiceAccount": DEFAULT_ACCOUNT,
            "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
            "defaultNetworkTier": "PREMIUM",
            "vmDnsSetting": "ZONAL_ONLY",
            "cloudArmorTier": "CA_STANDARD",
            "quotas": list(quotas),
            "selfLink": self._base,
        }

    def place(self, kind: str, name: str) -> Json:
        """A zone or region; quotas are for the caller to add."""
        shown = self._resource(kind[:-1], Scope(kind), name, len(name))
        shown |= {"description": name, "status": "UP", "selfLink": f"{self._base}/{kind}/{name}"}
        if kind == "zones":
            cpus = ["Intel Skylake", "Intel Broadwell", "AMD Rome"]
            region = f"{self._base}/regions/{region_of(name)}"
            return {**shown, "availableCpuPlatforms": cpus, "region": region, "supportsPzs": False}
        inside = [f"{self._base}/zones/{zone}" for zone in self._zones if region_of(zone) == name]
        return {**shown, "zones": inside, "supportsPzs": False}

    def _resource(self, singular: str, scope: Scope, name: str, number: int) -> Json:
        collection = f"{singular}s"
        data: Json = {
            "kind": f"compute#{singular}",
            "id": str(1000 + number),
            "creationTimestamp": _MADE,
            "name": name,
            "selfLink": f"{self._base}/{scope}/{collection}/{name}",
        }
        return data

    def _disk_types(self, scope: Scope) -> list[Json]:
        return [
            {
                **self._resource("diskType", scope, name, number),
                "description": name,
                "defaultDiskSizeGb": str(default),
                "validDiskSize": f"{smallest}GB-{largest}GB",
                "zone": f"{self._base}/{scope}",
            }
            for number, (name, (default, smallest, largest)) in enumerate(DISK_TYPES.items())
        ]

    def _machine_types(self, scope: Scope) -> list[Json]:
        generations = {"", *self._generations(scope.name)}
        return [
            {
                **self._resource("machineType", scope, name, number),
                "description": f"{cpus} vCPUs {memory / 1024:g} GB RAM",
                "guestCpus": cpus,
                "memoryMb": memory,
                "imageSpaceGb": 0,
                "isSharedCpu": False,
                "maximumPersistentDisks": 128,
                "maximumPersistentDisksSizeGb": "263168",
                "zone": scope.name,
                **_accelerators(name),
            }
            for number, (generation, name, cpus, memory) in enumerate(_MACHINES)
            if generation in generations
        ]

    def _network(self) -> Json:
        shown = self._resource("network", Scope(GLOBAL), "default", 0)
        return {
            **shown,
            "autoCreateSubnetworks": True,
            "description": "Default network for the project",
            "networkFirewallPolicyEnforcementOrder": "AFTER_CLASSIC_FIREWALL",
            "routingConfig": {"bgpBestPathSelectionMode": "LEGACY", "routingMode": "REGIONAL"},
            "selfLinkWithId": f"{self._base}/global/networks/{shown['id']}",
            "subnetworks": [f"{self._base}/regions/{each}/subnetworks/default" for each in self.regions()],
        }

    def _subnetwork(self, scope: Scope) -> Json:
        number = self.regions().index(scope.name)
        block = ip_network(self._address_range or f"10.{128 + 4 * number}.0.0/20")
        return {
            **self._resource("subnetwork", scope, "default", number),
            "fingerprint": "abcdef0123A=",
            "gatewayAddress": str(block[1]),
            "ipCidrRange": str(block),
            "network": f"{self._base}/global/networks/default",
            "privateIpGoogleAccess": False,
            "privateIpv6GoogleAccess": "DISABLE_GOOGLE_ACCESS",
            "purpose": "PRIVATE",
            "region": f"{self._base}/{scope}",
            "stackType": "IPV4_ONLY",
        }

    def _firewall(self, name: str) -> Json:
        source, allowed = _FIREWALL[name]
        return {
            **self._resource("firewall", Scope(GLOBAL), name, len(name)),
            "allowed": [
                {"IPProtocol": each, **({"ports": ports} if ports else {})} for each, ports in allowed.items()
            ],
            "direction": "INGRESS",
            "disabled": False,
            "logConfig": {"enable": False},
            "network": f"{self._base}/global/networks/default",
            "priority": 65_534,
            "sourceRanges": [source],
        }
