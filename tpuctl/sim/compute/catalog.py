"""The collections and methods of Compute Engine, and what it has without anybody making it: places, types of
machines and disks, the default network. All of it is rows of `manifests/tables/sim_compute.yaml`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_network

from msgspec import Struct, convert

from tpuctl.lib.names import region_of
from tpuctl.model.shipped_files import load_sim_compute
from tpuctl.sim.wire.status import Json
from tpuctl.sim.world.catalog import DISK_TYPES
from tpuctl.sim.world.identity import DEFAULT_ACCOUNT

ROOT = "https://www.googleapis.com/compute/v1"
GLOBAL = "global"
_MADE = "2024-04-01T05:34:56.123-07:00"
SHOWN: Mapping[str, Json] = load_sim_compute()["shown"]
"""What all resources of a kind show, by its singular."""
INTERNAL_RULE = "default-allow-internal"


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


class Machine(Struct, frozen=True):
    """A machine type. One with a generation is only in zones that have that; one with a topology, which is what
    one machine alone is, is offered as an instance."""

    cpus: int
    mib: int
    generation: str = ""
    chips: int = 0
    topology: str = ""


MACHINES = convert(load_sim_compute()["machines"], dict[str, Machine])
TPU_MACHINES = {name: each for name, each in MACHINES.items() if each.topology}


class Kind(Struct, frozen=True):
    """A collection of the API: where its resources live, what `kind` they say they are, and its methods; see
    the table."""

    collection: str
    singular: str
    scopes: tuple[str, ...]
    message: str = ""
    inputs: frozenset[str] = frozenset()
    changes: Mapping[str, str] = {}
    reads: Mapping[str, str] = {}
    parameters: Mapping[str, tuple[str, ...]] = {}
    permissions: Mapping[str, str] = {}
    in_regions: str = ""
    whole: tuple[str, ...] = ()
    labelled: bool = False
    underway: str = ""
    """Its status while it is being made."""
    aggregated: bool = True

    def operation_type(self, verb: str) -> str:
        """`operationType` of what a verb begins."""
        return f"compute.{self.collection}.{verb}" if verb in self.whole else verb

    def method(self, scope: Scope | None, verb: str) -> str:
        """The method's id in the discovery document."""
        if self.collection == "operations":
            return f"{scope.kind.removesuffix('s') if scope else GLOBAL}Operations.{verb}"
        if self.in_regions and scope is not None and scope.kind == "regions":
            return f"{self.in_regions}.{verb}"
        both = "regions" in self.scopes and GLOBAL in self.scopes and not self.in_regions
        if both and scope is not None and scope.kind == GLOBAL:
            return f"global{self.collection[0].upper()}{self.collection[1:]}.{verb}"
        return f"{self.collection}.{verb}"

    def permission(self, verb: str) -> str:
        """What a caller must be allowed to do: `disks.insert` asks for compute.disks.create."""
        usual = f"{self.collection}.{_PERMISSION_VERBS.get(verb, verb)}"
        return f"compute.{self.permissions.get(verb, usual)}"


_PERMISSION_VERBS: Mapping[str, str] = {
    **{"insert": "create", "aggregatedList": "list", "wait": "get"},
}
KINDS: Mapping[str, Kind] = {
    name: convert({"collection": name, **row}, Kind) for name, row in load_sim_compute()["collections"].items()
}
"""AcceleratorTypes (which are GPUs) and autoscalers are there, and the project has none."""
UPDATED = ("accessMode", "provisionedThroughput")
"""What `disks.update` changes, one at a time."""
LIKE = {"snapshots.aggregatedList": "disks.aggregatedList"}
"""Methods that only the beta has, with the same parameters as another."""


def place(base: str, scope: Scope) -> Json:
    """`zone` or `region` as the API shows it; nothing for global resources."""
    return {} if scope.kind == GLOBAL else {scope.kind.removesuffix("s"): f"{base}/{scope}"}


def skeleton(base: str, kind: Kind, scope: Scope, name: str, id: str, made: str = _MADE) -> Json:
    """How every resource begins; `base` is the project's URL."""
    return {
        "kind": f"compute#{kind.singular}",
        "id": id,
        "creationTimestamp": made,
        "name": name,
        "selfLink": f"{base}/{scope}/{kind.collection}/{name}",
        **place(base, scope),
        **SHOWN.get(kind.singular, {}),
    }


ACCELERATOR_IMAGES = "ubuntu-os-accelerator-images"


def public_images(project: str) -> list[Json]:
    """All images of one of Google's projects, oldest first; the simulator has those of one, from which TPU
    machines boot."""
    if project != ACCELERATOR_IMAGES:
        return []
    table = load_sim_compute()["images"]
    rows = [(family, build) for build in table["builds"] for family in table["families"]]
    return [_image(family, build, table) for family, build in rows]


def find_public_image(project: str, by_family: str | None, name: str) -> Json | None:
    """An image by its name, or the newest of a family."""
    field = "family" if by_family else "name"
    return next((each for each in reversed(public_images(project)) if each[field] == name), None)


def _image(family: str, build: str, table: Json) -> Json:
    base, scope = f"{ROOT}/projects/{ACCELERATOR_IMAGES}", Scope(GLOBAL)
    number = 10_000 * (1 + list(table["families"]).index(family)) + table["builds"].index(build)
    made = f"{build[:4]}-{build[4:6]}-{build[6:]}T02:00:00.000-07:00"
    id, version = str(4_000_000_000_000_000_000 + number), table["families"][family]
    return {
        **skeleton(base, KINDS["images"], scope, f"{family}-v{build}", id, made),
        "description": f"Canonical, Ubuntu, {version} LTS, for TPU, amd64, built on {build}",
        "family": family,
        "licenses": [f"{base}/global/licenses/{family}"],
        **SHOWN["public image"],
    }


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
        network = f"{self._base}/global/networks/default"
        rules: Mapping[str, Json] = load_sim_compute()["firewalls"]
        return [
            {**self._resource("firewalls", Scope(GLOBAL), name, len(name)), **rule, "network": network}
            for name, rule in rules.items()
            if internal or name != INTERNAL_RULE
        ]

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
        own = {"kind": "compute#metadata", "fingerprint": "uIRm46oOI3I=", **({"items": items} if items else {})}
        return {
            **SHOWN["project"],
            "name": self._base.rpartition("/")[2],
            "commonInstanceMetadata": own,
            "defaultServiceAccount": DEFAULT_ACCOUNT,
            "quotas": list(quotas),
            "selfLink": self._base,
        }

    def place(self, kind: str, name: str) -> Json:
        """A zone or region; quotas are for the caller to add."""
        shown = {
            "kind": f"compute#{kind[:-1]}",
            "id": str(1000 + len(name)),
            "creationTimestamp": _MADE,
            "name": name,
            "description": name,
            "selfLink": f"{self._base}/{kind}/{name}",
            **SHOWN[kind[:-1]],
        }
        if kind == "zones":
            return {**shown, "region": f"{self._base}/regions/{region_of(name)}"}
        inside = [f"{self._base}/zones/{zone}" for zone in self._zones if region_of(zone) == name]
        return {**shown, "zones": inside}

    def _resource(self, collection: str, scope: Scope, name: str, number: int) -> Json:
        return skeleton(self._base, KINDS[collection], scope, name, str(1000 + number))

    def _disk_types(self, scope: Scope) -> list[Json]:
        return [
            {
                **self._resource("diskTypes", scope, name, number),
                "description": name,
                "defaultDiskSizeGb": str(each.size[0]),
                "validDiskSize": f"{each.size[1]}GB-{each.size[2]}GB",
            }
            for number, (name, each) in enumerate(DISK_TYPES.items())
        ]

    def _machine_types(self, scope: Scope) -> list[Json]:
        generations = {"", *self._generations(scope.name)}
        return [
            {
                **self._resource("machineTypes", scope, name, number),
                "description": f"{each.cpus} vCPUs {each.mib / 1024:g} GB RAM",
                "guestCpus": each.cpus,
                "memoryMb": each.mib,
                "zone": scope.name,
                **_accelerators(name, each),
            }
            for number, (name, each) in enumerate(MACHINES.items())
            if each.generation in generations
        ]

    def _network(self) -> Json:
        shown = self._resource("networks", Scope(GLOBAL), "default", 0)
        subnetworks = [f"{self._base}/regions/{each}/subnetworks/default" for each in self.regions()]
        by_id = f"{self._base}/global/networks/{shown['id']}"
        return {**shown, "selfLinkWithId": by_id, "subnetworks": subnetworks}

    def _subnetwork(self, scope: Scope) -> Json:
        number = self.regions().index(scope.name)
        block = ip_network(self._address_range or f"10.{128 + 4 * number}.0.0/20")
        return {
            **self._resource("subnetworks", scope, "default", number),
            "gatewayAddress": str(block[1]),
            "ipCidrRange": str(block),
            "network": f"{self._base}/global/networks/default",
        }


def _accelerators(name: str, machine: Machine) -> Json:
    """The chips of a machine type; the name of the kind is what users of v6e read there."""
    if not machine.topology:
        return {}
    kind = name.partition("-")[0]
    return {"accelerators": [{"guestAcceleratorType": kind, "guestAcceleratorCount": machine.chips}]}
