"""How a simulator is run, as plain data: nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tpuctl.errors import UsageError

BUCKET = "sim-bucket"
"""Exists from the start."""
WORLD_VARIABLE = "TPUCTL_SIM_WORLD"
"""Every process of a simulated host carries the world's id under this name."""
PROCESS, ISOLATED = "process", "isolated"
TIERS = (PROCESS, ISOLATED)


@dataclass(frozen=True)
class Delays:
    """How long things take, in seconds before the speed is applied. Defaults follow published logs of TRC
    spot capacity (create to READY p50 about 3 minutes, delete about one)."""

    node_create: float = 150.0
    host_accounts: float = 5.0
    """From the answer of a host's SSH server until it knows the keys of the metadata."""
    node_delete: float = 60.0
    node_stop: float = 40.0
    node_start: float = 60.0
    node_patch: float = 40.0
    """gcloud says "Propagating SSH public key to all TPU workers" for so long."""
    create_failure: float = 130.0
    preempt_visible: float = 60.0
    """From the death of the hosts until the API says so."""
    shutdown: float = 30.0
    """What the programs of a host have to end in order before its power is cut: Compute Engine gives 30 s
    between the ACPI signal of a preemption and the end ("Preemptible VM instances")."""
    host_reboot: float = 45.0
    """From the end of a host that reboots until it answers again."""
    queued_accept: float = 2.0
    queued_wait: float = 30.0
    queued_assign: float = 10.0
    queued_suspend: float = 30.0
    queued_delete: float = 20.0
    list_everywhere: float = 2.0
    """A list with the wildcard zone asks every zone."""
    compute_operation: float = 3.0
    """Of Compute Engine: from the call until its operation is DONE."""

    @classmethod
    def instant(cls) -> Delays:
        """Everything is done as soon as the schedule runs."""
        return cls(**{each.name: 0.0 for each in fields(cls)})

    def at(self, speed: float) -> dict[str, float]:
        """What a user waits for, in seconds: from the request until the slice is ready, and so on."""
        ready = self.queued_accept + self.queued_wait + self.queued_assign + self.node_create
        ready += self.host_accounts
        shown = {
            "until_ready": ready,
            "until_gone": self.node_delete,
            "until_preemption_shows": self.preempt_visible,
        }
        return {name: round(seconds / speed, 1) for name, seconds in shown.items()}

    @classmethod
    def parse(cls, spec: str | dict[str, float] | None) -> Delays:
        """`realistic`, `instant`, or a mapping of single delays over the realistic ones."""
        if spec is None or spec == "realistic":
            return cls()
        if spec == "instant":
            return cls.instant()
        if isinstance(spec, dict) and set(spec) <= {each.name for each in fields(cls)}:
            return replace(cls(), **spec)
        raise UsageError(
            f"unknown delays `{spec}`",
            hint=f"`instant`, `realistic` or keys of: {', '.join(each.name for each in fields(cls))}",
        )


@dataclass(frozen=True)
class SimOptions:
    """How to run the simulator; plain data, so that it can travel to the background process.

    `delays`: `realistic`, `instant` or a mapping of single ones; `quotas`: see `tpuctl.sim.quotas`; ports 0:
    any free one.
    """

    project: str = "sim-project"
    speed: float = 1.0
    seed: int = 1
    delays: str | dict[str, float] = "realistic"
    quotas: Mapping[str, int] = field(default_factory=dict)
    hosts: str = PROCESS
    port: int = 0
    grpc_port: int = 0
    catalog: str | None = None
    """File of accelerator types and zones, in the form of tpuctl's own table, which it has otherwise."""

    def check(self) -> None:
        """Raises UsageError before anything is started."""
        Delays.parse(self.delays)
        if self.catalog is not None:
            from tpuctl.sim.catalog import load_catalog

            load_catalog(self.catalog)
        if self.hosts not in TIERS:
            raise UsageError(f"no tier of hosts `{self.hosts}`", hint=f"one of: {', '.join(TIERS)}")
        if self.hosts == ISOLATED:
            from tpuctl.sim.hosts.requirements import check_possible

            check_possible()
        if self.speed <= 0:
            raise UsageError(f"speed must be more than 0, not {self.speed}", hint="--speed 20")

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "quotas": dict(self.quotas)}
