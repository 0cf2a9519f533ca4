"""The shape of a slice on GKE: which node pool its pods want, how many there are, and the chips of each. Pure.

Looked up in `manifests/tables/gke.yaml`. The same pair of labels means two kinds of node pools where one
machine or two have the chips of a topology, as with 2x4: only the chips that a pod asks for tell them apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from tpuctl.errors import UsageError
from tpuctl.lib.text import suggest
from tpuctl.model.accelerators import Catalog

CUBE = 4
"""Length of an edge of the cubes that large topologies are made of."""


class Shape(Struct, frozen=True):
    """One slice: `hosts` virtual machines of `machine_type`, each a pod, with `chips_per_host` chips for its
    `containers` together."""

    name: str
    generation: str
    accelerator: str
    """The value of the node label that says the accelerator."""
    topology: str
    machine_type: str
    hosts: int
    chips_per_host: int
    containers: int = 1

    @property
    def chips(self) -> int:
        return self.hosts * self.chips_per_host


def resolve_shape(
    table: Mapping[str, Any],
    catalog: Catalog,
    accelerator: str,
    topology: str | None = None,
    machine_type: str | None = None,
) -> Shape:
    """The shape of `accelerator`, a type such as v6e-16, or a generation with a `topology`; on machines of
    `machine_type` where several would do. Raises UsageError for what no node pool has."""
    if topology is None:
        found = catalog.find(accelerator)
        if found is None:
            raise _unknown(catalog, accelerator)
        generation, topology, name = found.generation, found.topology, found.name
    else:
        known = catalog.find_generation(accelerator)
        if known is None:
            raise _unknown(catalog, accelerator)
        generation, name = known.name, f"{known.name}-{topology}"
    row = table["generations"].get(generation)
    if row is None:
        known_names = ", ".join(table["generations"])
        raise UsageError.of("up", f"GKE has no node pools of {generation}", f"one of: {known_names}")
    chips = math.prod(_sides(row, generation, topology))
    machine = _machine(row["machines"], f"{generation} with the topology {topology}", chips, machine_type)
    each = row["machines"][machine]
    return Shape(
        name=name,
        generation=generation,
        accelerator=row["accelerator"],
        topology=topology,
        machine_type=machine,
        hosts=chips // each,
        chips_per_host=each,
        containers=min(row.get("containers", 1), each),
    )


def _unknown(catalog: Catalog, accelerator: str) -> UsageError:
    nearest = catalog.nearest(accelerator)
    guess = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
    return UsageError.of("up", f"there is no accelerator type {accelerator!r}{guess}", "tpuctl types")


def _sides(row: Mapping[str, Any], generation: str, topology: str) -> list[int]:
    """The lengths of a topology. Raises UsageError where the generation's node pools have no such one."""
    small, cubes = row["small"], row.get("cubes", 0)
    parts = topology.split("x")
    if all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts):
        sides = [int(part) for part in parts]
        if topology in small:
            return sides
        ordered = row.get("any_order") or sides == sorted(sides)
        whole = len(sides) == 3 and all(side and side % CUBE == 0 for side in sides)
        if whole and ordered and math.prod(sides) <= cubes * CUBE**3:
            return sides
    near = suggest(topology, small)
    more = f", or multiples of {CUBE} up to {cubes} cubes of 64 chips" if cubes else ""
    raise UsageError.of(
        "topology",
        f"no node pool of {generation} has the topology {topology}"
        + (f"; did you mean {near}?" if near else ""),
        f"--topology: one of {', '.join(small)}{more}",
    )


def _machine(machines: Mapping[str, int], pools: str, chips: int, wanted: str | None) -> str:
    """The machine type: as `wanted`, else one machine where one has all `chips`. Raises UsageError."""
    of_several = next(iter(machines.values()))
    fitting = [name for name, each in machines.items() if each in (chips, of_several) and chips % each == 0]
    if wanted is not None:
        if wanted not in fitting:
            why = f"no node pool of {pools} has machines of type {wanted!r}"
            raise UsageError.of("machine_type", why, f"--machine-type: one of {', '.join(fitting)}")
        return wanted
    return next((name for name in fitting if machines[name] == chips), fitting[0])
