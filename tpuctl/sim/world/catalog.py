"""Which accelerators, zones and runtime versions the simulated cloud offers: the data tables, as the API
shows them."""

from __future__ import annotations

from pathlib import Path

import yaml
from msgspec import Struct, convert

from tpuctl.errors import UsageError
from tpuctl.lib.input_files import read_text
from tpuctl.model.accelerators import AcceleratorType, Catalog, parse_catalog
from tpuctl.model.shipped_files import load_accelerators, load_sim_compute


class DiskType(Struct, frozen=True):
    """A type of disk: see `manifests/tables/sim_compute.yaml`."""

    size: tuple[int, int, int]
    generations: frozenset[str] = frozenset()
    quota: str = ""
    access: tuple[str, ...] = ()


DISK_TYPES = convert(load_sim_compute()["disk_types"], dict[str, DiskType])


class SimCatalog:
    """Exact names only, as the API wants them; types that the TPU API does not have are left out."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._offers = {name: each for name, each in catalog.types.items() if each.in_tpu_api}
        self._zones = sorted({zone for each in self._offers.values() for zone in self._listed(each)})

    @staticmethod
    def _listed(offer: AcceleratorType) -> tuple[str, ...]:
        return (*offer.zones, *offer.listed_zones)

    def find(self, name: str) -> AcceleratorType | None:
        return self._offers.get(name)

    def find_config(self, config_type: str, topology: str) -> AcceleratorType | None:
        """The offer for an `acceleratorConfig`: any shape that the generation has, named or not."""
        found = self._catalog.find_config(config_type, topology)
        return found if found and found.in_tpu_api else None

    def zones(self) -> list[str]:
        return self._zones

    def in_zone(self, zone: str) -> list[AcceleratorType]:
        """What the API lists for a zone: too much, see `AcceleratorType.listed_zones`."""
        return [offer for offer in self._offers.values() if zone in self._listed(offer)]

    def generations(self, zone: str) -> set[str]:
        """Of the chips that a zone has, by whichever API."""
        return {each.generation for each in self._catalog.types.values() if zone in self._listed(each)}

    def runtime_versions(self, zone: str) -> list[str]:
        return sorted({version for offer in self.in_zone(zone) for version in offer.runtime_versions})


def load_catalog(path: str | None = None) -> SimCatalog:
    """tpuctl's own table, or a file of the same form, which may say something else. Raises UsageError."""
    if path is None:
        return SimCatalog(load_accelerators())
    try:
        return SimCatalog(parse_catalog(yaml.safe_load(read_text(Path(path)))))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, yaml.YAMLError) as error:
        hint = "a file like manifests/tables/accelerators.yaml"
        why = "it is nested too deeply" if isinstance(error, RecursionError) else repr(error)
        raise UsageError(f"{path} is no table of accelerators: {why}", hint=hint) from error
