"""Accelerator types, looked up in a table and never computed from their names.

The number in a name counts TensorCores or chips depending on the generation, and hosts do not follow from
either: v6e-8 is one host, v6e-16 is four, v5p-16 is two (docs.cloud.google.com/tpu/docs, pages v5p and v6e).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.errors import UsageError
from tpuctl.lib.text import suggest
from tpuctl.model.hosts import Api

ALL_SIZES = "*"
_TOPOLOGY = re.compile(r"[1-9][0-9]{0,3}(?:x[1-9][0-9]{0,3}){1,2}")


class ComputeForm(Struct, frozen=True):
    """How Compute Engine has a type: its machine type; image families with the recommended one first."""

    machine_type: str
    image_families: tuple[str, ...]
    flex_start_zones: tuple[str, ...]


class AcceleratorType(Struct, frozen=True):
    """One size of one generation.

    `zones` are documented or known to work; `listed_zones` are only listed by the API, which lists too much, or
    for single customers.
    `runtime_versions` starts with the recommended one. `quota_unit` is `chips` or `tensorcores`.
    """

    name: str
    generation: str
    chips: int
    hosts: int
    chips_per_host: int
    topology: str
    cores_per_chip: int
    zones: tuple[str, ...]
    listed_zones: tuple[str, ...]
    flex_start_zones: tuple[str, ...]
    runtime_versions: tuple[str, ...]
    apis: tuple[Api, ...]
    """Those that make it, the usual one first."""
    quota_unit: str
    config_type: str | None
    compute: ComputeForm | None = None
    by_shape: bool = False
    """In no table, so it is asked for and remembered by its topology."""

    @property
    def in_tpu_api(self) -> bool:
        return Api.TPU in self.apis

    def of_api(self, api: Api) -> AcceleratorType:
        """The same as `api` has it: Compute Engine knows image families in the place of runtime versions."""
        form = self.compute
        if api is Api.TPU or form is None:
            return self
        return replace(
            self,
            runtime_versions=form.image_families,
            flex_start_zones=form.flex_start_zones,
            config_type=None,
        )

    @property
    def cores(self) -> int:
        return self.chips * self.cores_per_chip

    @property
    def runtime_version(self) -> str:
        """The recommended runtime version; types of the TPU API have one."""
        return self.runtime_versions[0]


class Aot(Struct, frozen=True):
    """How libtpu compiles for a generation ahead of time, where no chip is: the name of its topologies, the
    configuration of its chips, and the GiB of HBM that a program may have on one device."""

    platform: str
    devices_per_chip: int
    hbm_gib: float
    config: str = ""


class Generation(Struct, frozen=True):
    """What all sizes of one generation share. Prices are USD per chip and hour, by region and tier."""

    name: str
    name_prefix: str
    aliases: tuple[str, ...]
    apis: tuple[Api, ...]
    hbm_gib: int
    prices: Mapping[str, Mapping[str, float | None]]
    custom_multiple: int | None = None
    """Topologies beside the table's: ascending dimensions, all multiples of this; None: there are none."""
    custom_chips: int = 0
    """Chips of the largest such topology."""
    tflops: float | None = None
    """Peak of one chip in bfloat16, 10^12 a second."""
    aot: Aot | None = None
    devices_per_chip: int = 1
    """What JAX and PyTorch count: TensorCores where a chip has two that do not work as one."""
    machine_families: tuple[str, ...] = ()
    """How the names of Compute Engine's machine types of this generation begin, such as `ct6e`."""

    @property
    def in_tpu_api(self) -> bool:
        return Api.TPU in self.apis


class Catalog(Struct, frozen=True):
    """All accelerator types, by name, in the order of the table."""

    types: Mapping[str, AcceleratorType]
    generations: Mapping[str, Generation]
    prices_note: str = ""

    def find(self, name: str) -> AcceleratorType | None:
        """By name or alias (`v5e-16` is `v5litepod-16`), in any case; None if there is no such type."""
        wanted = name.strip().lower()
        return self.types.get(wanted) or self.types.get(self.canonical(wanted))

    def get(self, name: str) -> AcceleratorType:
        """Like `find`. Raises UsageError with the nearest names."""
        found = self.find(name)
        if found is None:
            nearest = self.nearest(name)
            guess = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
            raise UsageError(
                f"there is no accelerator type {name!r}{guess}",
                hint="tpuctl types",
                details={"accelerator_type": name, "nearest": list(nearest)},
            )
        return found

    def find_generation(self, name: str) -> Generation | None:
        """By name, prefix or alias: `v5e` is `v5litepod`; None for everything else."""
        wanted = name.strip().lower()
        return next(
            (g for g in self.generations.values() if wanted in (g.name, g.name_prefix, *g.aliases)), None
        )

    def of_machines(self, machine_type: str) -> Generation | None:
        """The generation of a machine type of Compute Engine, or of a family of these, in any case."""
        family = machine_type.partition("-")[0].lower()
        return next((g for g in self.generations.values() if family in g.machine_families), None)

    def find_config(self, config_type: str, topology: str) -> AcceleratorType | None:
        """The accelerator that an `acceleratorConfig` of the API means, in the table or not."""
        found = next((each for each in self.types.values() if each.config_type == config_type), None)
        return self.shaped(self.generations[found.generation], topology) if found else None

    def shaped(self, generation: Generation, topology: str) -> AcceleratorType | None:
        """The accelerator with this topology, in the table or not; None where the generation has no such shape.

        Rule: TPU types and topologies in the Cloud TPU documentation, checked against the table's sizes.
        """
        sizes = [found for found in self.types.values() if found.generation == generation.name]
        listed = next((found for found in sizes if found.topology == topology), None)
        multiple = generation.custom_multiple
        if listed is not None or multiple is None or not _TOPOLOGY.fullmatch(topology):
            return listed
        dimensions = [int(part) for part in topology.split("x")]
        chips, largest = math.prod(dimensions), sizes[-1]
        fits = len(dimensions) == largest.topology.count("x") + 1 and dimensions == sorted(dimensions)
        if not fits or chips > generation.custom_chips or any(each % multiple for each in dimensions):
            return None
        number = chips * _size(largest.name) // largest.chips
        return replace(
            largest,
            name=f"{generation.name_prefix}-{number}",
            chips=chips,
            hosts=chips // largest.chips_per_host,
            topology=topology,
        )

    def of(self, name: str, topology: str | None = None, slices: int = 1) -> AcceleratorType:
        """The accelerator of a slice that was asked for before: all its nodes together. Raises UsageError."""
        found = None
        if topology is not None:
            generation = self.find_generation(name.rpartition("-")[0])
            found = self.shaped(generation, topology) if generation else None
            found = found or self.unlisted(name, topology)
        one = found or self.get(name)
        return one if slices == 1 else replace(one, chips=one.chips * slices, hosts=one.hosts * slices)

    def unlisted(self, name: str, topology: str) -> AcceleratorType | None:
        """A size that no table has, as the API described it; None for a generation that is not known. How many
        hosts it has follows from the generation's largest size; the nodes themselves say it for certain."""
        generation = self.find_generation(name.rpartition("-")[0])
        if generation is None or not _TOPOLOGY.fullmatch(topology):
            return None
        largest = [found for found in self.types.values() if found.generation == generation.name][-1]
        chips = math.prod(int(part) for part in topology.split("x"))
        each = min(chips, largest.chips_per_host)
        return replace(
            largest,
            name=name,
            chips=chips,
            hosts=math.ceil(chips / each),
            chips_per_host=each,
            topology=topology,
            zones=(),
            listed_zones=(),
            by_shape=True,
        )

    def having(self, found: AcceleratorType) -> Catalog:
        """The catalog with one more type, or with this one in its place."""
        return replace(self, types={**self.types, found.name: found})

    def in_zone(self, generation: str, zone: str) -> Catalog:
        """The catalog as if all sizes of a generation were in `zone`, for any tier."""

        def there(found: AcceleratorType) -> AcceleratorType:
            if found.generation != generation:
                return found
            flex = _unique((*found.flex_start_zones, zone)) if found.flex_start_zones else ()
            return replace(found, listed_zones=_unique((*found.listed_zones, zone)), flex_start_zones=flex)

        return replace(self, types={name: there(found) for name, found in self.types.items()})

    def nearest(self, name: str) -> tuple[str, ...]:
        """The sizes just below and above within the generation; otherwise the nearest by spelling."""
        wanted = self.canonical(name)
        prefix, _, size = wanted.rpartition("-")
        siblings = [known for known in self.types if known.rpartition("-")[0] == prefix]
        if siblings and size.isascii() and size.isdigit():
            return _neighbours(siblings, int(size))
        near = suggest(wanted, list(self.types))
        return () if near is None else (near,)

    def check_zone(self, accelerator: AcceleratorType, zone: str) -> None:
        """Raises UsageError naming the zones that have the type if `zone` is not one of them."""
        if zone in accelerator.zones or zone in accelerator.listed_zones:
            return
        raise UsageError(
            f"{accelerator.name} is not offered in zone {zone!r}; it is in {', '.join(accelerator.zones)}",
            hint=f"--zone {accelerator.zones[0]}" if accelerator.zones else None,
            details={"accelerator_type": accelerator.name, "zone": zone, "zones": list(accelerator.zones)},
        )

    def zones(self) -> tuple[str, ...]:
        """Every zone that has some type, sorted."""
        return tuple(sorted({zone for found in self.types.values() for zone in found.zones}))

    def canonical(self, name: str) -> str:
        """The name as the API has it: `v5e-16` is `v5litepod-16`."""
        name = name.strip().lower()
        prefix, dash, size = name.rpartition("-")
        for generation in self.generations.values():
            if prefix in generation.aliases:
                return f"{generation.name_prefix}{dash}{size}"
        return name


def parse_catalog(data: Mapping[str, Any]) -> Catalog:
    """The catalog from the content of `manifests/tables/accelerators.yaml`."""
    generations = {name: _generation(name, raw) for name, raw in data["generations"].items()}
    types = {
        size: _type(name, size, row, raw)
        for name, raw in data["generations"].items()
        for size, row in raw["sizes"].items()
    }
    return Catalog(types, generations, str(data.get("prices_note", "")))


def _generation(name: str, raw: Mapping[str, Any]) -> Generation:
    return Generation(
        name=name,
        name_prefix=raw["name_prefix"],
        aliases=tuple(raw["aliases"]),
        apis=tuple(map(Api, raw["apis"])),
        hbm_gib=raw["hbm_gib"],
        prices=raw["price_usd_per_chip_hour"],
        custom_multiple=raw.get("custom_topology", {}).get("multiple"),
        custom_chips=raw.get("custom_topology", {}).get("max_chips", 0),
        tflops=raw.get("tflops_bf16"),
        aot=Aot(**raw["aot"]) if "aot" in raw else None,
        devices_per_chip=raw.get("devices_per_chip", 1),
        machine_families=tuple(raw.get("machine_families", ())),
    )


def _type(generation: str, name: str, row: list[Any], raw: Mapping[str, Any]) -> AcceleratorType:
    chips, hosts, chips_per_host, topology = row
    zones = raw["zones"]
    known = _zones_of(name, zones.get("documented", {})) + _zones_of(name, zones.get("hidden", {}))
    return AcceleratorType(
        name=name,
        generation=generation,
        chips=chips,
        hosts=hosts,
        chips_per_host=chips_per_host,
        topology=topology,
        cores_per_chip=raw["tensorcores_per_chip"],
        zones=known,
        listed_zones=_unique(
            zone for zone in (*zones.get("single_tenant", ()), *zones.get("listed", ())) if zone not in known
        ),
        flex_start_zones=tuple(zones.get("flex_start", ())),
        runtime_versions=_unique(
            version
            for kind, versions in raw["runtime_versions"].items()
            if kind != "note"
            for version in versions
        ),
        apis=tuple(Api(api) for api, sizes in raw["apis"].items() if name in sizes or ALL_SIZES in sizes),
        quota_unit=raw.get("quota", {}).get("unit", "chips"),
        config_type=raw["accelerator_config_type"],
        compute=_compute_form(raw.get("compute"), chips_per_host),
    )


def _compute_form(raw: Mapping[str, Any] | None, chips_per_host: int) -> ComputeForm | None:
    if raw is None:
        return None
    machine_types = {int(chips): name for chips, name in raw["machine_types"].items()}  # text, in JSON
    return ComputeForm(machine_types[chips_per_host], tuple(raw["image_families"]), tuple(raw["flex_start"]))


def _zones_of(name: str, zones: Mapping[str, list[str]]) -> tuple[str, ...]:
    return tuple(zone for zone, sizes in zones.items() if name in sizes or ALL_SIZES in sizes)


def _unique(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _neighbours(names: list[str], size: int) -> tuple[str, ...]:
    below = [name for name in names if _size(name) <= size]
    above = [name for name in names if _size(name) > size]
    picked = [max(below, key=_size)] if below else []
    return (*picked, *([min(above, key=_size)] if above else []))


def _size(name: str) -> int:
    return int(name.rpartition("-")[2])
