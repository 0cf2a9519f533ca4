"""What the hosts of TPU instances are told of their slice.

Compute Engine fills these attributes in for the members of a group with a workload policy, as users of such
groups print them. JAX (jax/_src/clusters/cloud_tpu_cluster.py) knows both forms of the endpoints. That an
instance without a group is told the same, as worker 0 of one, is inferred from libtpu, which works there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tpuctl.sim.compute.catalog import Machine

_PREFIXES = {"v5p": "v5p", "v6e": "v6e", "tpu7x": "v7x"}
_NUMBER_PER_CHIP = {"v5p": 2, "v6e": 1, "tpu7x": 2}
"""What the number of an accelerator type counts: TensorCores, and of v6e chips."""


@dataclass
class GroupOfInstances:
    """A group whose members know each other. `topology`: of its workload policy; None where it has none: then
    its members are alone. `members`: their names; the order is that of their worker numbers."""

    name: str
    topology: str | None
    members: list[str] = field(default_factory=list)
    created_by: str = ""
    """`projects/NUMBER/zones/ZONE/instanceGroupManagers/NAME`, which members have as attribute `created-by`."""

    def worker(self, member: str) -> int:
        """The worker number of a member; 0 where members are alone."""
        return self.members.index(member) if self.topology else 0


def accelerator_type(machine: Machine, topology: str) -> str:
    """What the attribute `accelerator-type` says: `v7x-16`, which tpuctl and GKE call tpu7x-16."""
    return f"{_PREFIXES[machine.generation]}-{chips_of(topology) * _NUMBER_PER_CHIP[machine.generation]}"


def chips_of(topology: str) -> int:
    """How many a topology has."""
    return math.prod(map(int, topology.split("x")))
