"""TPU topologies as libtpu's compiler wants them named, from the accelerator table."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from tpuctl.errors import UsageError
from tpuctl.model.accelerators import AcceleratorType, Catalog

HOST_BOUNDS: Mapping[int, tuple[int, int, int]] = {1: (1, 1, 1), 4: (2, 2, 1), 8: (2, 4, 1)}
"""How the chips of one host lie, by their number (docs.cloud.google.com/tpu/docs, the page of each version).
The compiler's own default is 2x2x1, which makes two hosts of a v6e-8."""
TORUS_2D = 16
"""An axis of v5e and v6e closes to a ring where it has the whole pod's 16 chips; one of v4, v5p and TPU7x where
every axis is a multiple of 4 (docs.cloud.google.com/tpu/docs/system-architecture-tpu-vm)."""
REST = 0
"""Size of an axis that takes the devices which the others leave, written `*`."""
_AXIS = re.compile(r"([a-z][a-z0-9_]*)=([1-9][0-9]{0,5}|\*)")


class Topology(Struct, frozen=True):
    """One slice for the compiler. `arguments` are those of `jax.experimental.topologies.get_topology_desc`;
    `hbm_bytes` is what a program may have on each device."""

    accelerator: AcceleratorType
    arguments: Mapping[str, Any]
    devices: int
    hbm_bytes: int

    @property
    def name(self) -> str:
        return self.accelerator.name


def find_topology(catalog: Catalog, name: str) -> Topology:
    """The topology of an accelerator type such as `v6e-8`; it need not be one of the Cloud TPU API.

    Raises UsageError for an unknown type, and for a generation that no compiler knows ahead of time.
    """
    found = catalog.find(name) or catalog.get(name)
    generation = catalog.generations[found.generation]
    aot = generation.aot
    if aot is None:
        known = [each for each, one in catalog.generations.items() if one.aot is not None]
        raise UsageError(
            f"--for {name}: nothing can be compiled for {generation.name} without a chip",
            hint=f"types of {', '.join(known)} can: tpuctl types",
        )
    axes = [int(part) for part in found.topology.split("x")]
    arguments: dict[str, Any] = {
        "topology_name": f"{aot.platform}:{found.topology}",
        "chips_per_host_bounds": list(HOST_BOUNDS[found.chips_per_host]),
        "wrap": wraps(axes),
    }
    if aot.config:
        arguments["chip_config_name"] = aot.config
    return Topology(found, arguments, found.chips * aot.devices_per_chip, int(aot.hbm_gib * (1 << 30)))


def wraps(axes: Sequence[int]) -> list[bool]:
    """Which of the three axes close to a ring."""
    if len(axes) == 3:
        return [all(axis % 4 == 0 for axis in axes)] * 3
    return [axis == TORUS_2D for axis in axes] + [False]


def parse_mesh(words: str) -> dict[str, int]:
    """`data=4,model=2` or `data=*,model=2` → its axes in order. Raises UsageError."""
    axes: dict[str, int] = {}
    for word in words.split(","):
        matched = _AXIS.fullmatch(word.strip())
        if matched is None or matched[1] in axes or (matched[2] == "*" and REST in axes.values()):
            wrong = word.strip() or "an empty word"
            raise UsageError(f"--mesh {words}: {wrong} is no axis", hint="--mesh data=*,model=2")
        axes[matched[1]] = REST if matched[2] == "*" else int(matched[2])
    return axes


def mesh_for(axes: Mapping[str, int], topology: Topology) -> dict[str, int]:
    """The axes for the devices of one topology: without any, one called `data` over all; else the product has
    to be their number. Raises UsageError with a mesh that would fit."""
    if not axes:
        return {"data": topology.devices}
    product = math.prod(size or 1 for size in axes.values())
    rest, over = divmod(topology.devices, product)
    if REST in axes.values() and not over:
        return {axis: size or rest for axis, size in axes.items()}
    if product == topology.devices:
        return dict(axes)
    words = ",".join(f"{axis}={size or '*'}" for axis, size in axes.items())
    raise UsageError(
        f"--mesh {words} does not divide the {topology.devices} devices of {topology.name}",
        hint=f"--mesh {next(iter(axes))}=* takes what the other axes leave",
    )
