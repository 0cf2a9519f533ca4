"""What the hosts of TPU instances are told of their slice.

Compute Engine fills these attributes in for the members of a group with a workload policy, as users of such
groups print them. JAX (jax/_src/clusters/cloud_tpu_cluster.py) knows both forms of the endpoints. That an
instance without a group is told the same, as worker 0 of one, is inferred from libtpu, which works there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TpuMachine:
    """A machine type with chips. `topology` is what one machine alone is."""

    generation: str
    chips: int
    topology: str


TPU_MACHINES: Mapping[str, TpuMachine] = {
    "ct5p-hightpu-1t": TpuMachine("v5p", 1, "1x1x1"),
    "ct5p-hightpu-4t": TpuMachine("v5p", 4, "2x2x1"),
    "ct6e-standard-1t": TpuMachine("v6e", 1, "1x1"),
    "ct6e-standard-4t": TpuMachine("v6e", 4, "2x2"),
    "ct6e-standard-8t": TpuMachine("v6e", 8, "2x4"),
    "tpu7x-standard-1t": TpuMachine("tpu7x", 1, "1x1x1"),
    "tpu7x-standard-4t": TpuMachine("tpu7x", 4, "2x2x1"),
}
"""Those that Compute Engine offers as instances (docs.cloud.google.com/compute/docs/tpus/tpu-machines); types
of one chip are in the tables of autoscaler and xpk."""
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


def accelerator_type(machine: TpuMachine, topology: str) -> str:
    """What the attribute `accelerator-type` says: `v7x-16`, which tpuctl and GKE call tpu7x-16."""
    return f"{_PREFIXES[machine.generation]}-{_chips(topology) * _NUMBER_PER_CHIP[machine.generation]}"


def _chips(topology: str) -> int:
    count = 1
    for each in topology.split("x"):
        count *= int(each)
    return count
