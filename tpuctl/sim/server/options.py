"""How a simulator is run, as plain data: nothing heavy is imported here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tpuctl.errors import UsageError
from tpuctl.lib.names import check_project
from tpuctl.sim.world.delays import Delays

PROCESS, ISOLATED = "process", "isolated"
TIERS = (PROCESS, ISOLATED)
OPEN, STRICT = "open", "strict"


@dataclass(frozen=True)
class SimOptions:
    """How to run the simulator; plain data, so that it can travel to the background process.

    `delays`: `realistic`, `instant` or a mapping of single ones; `quotas`: see `sim.world.quotas`; ports 0:
    any free one.
    """

    project: str = "sim-project"
    speed: float = 1.0
    seed: int = 1
    delays: str | dict[str, float] = "realistic"
    quotas: Mapping[str, int] = field(default_factory=dict)
    hosts: str = PROCESS
    firewall: str = OPEN
    """`strict`: the network has no rule for traffic between hosts, and its rules are obeyed."""
    port: int = 0
    grpc_port: int = 0
    catalog: str | None = None
    """File of accelerator types and zones, in the form of tpuctl's own table, which it has otherwise."""

    def check(self) -> None:
        """Raises UsageError before anything is started."""
        check_project(self.project)
        Delays.parse(self.delays)
        if self.catalog is not None:
            from tpuctl.sim.world.catalog import load_catalog

            load_catalog(self.catalog)
        if self.hosts not in TIERS:
            raise UsageError(f"no tier of hosts `{self.hosts}`", hint=f"one of: {', '.join(TIERS)}")
        if self.firewall not in (OPEN, STRICT):
            raise UsageError(f"no firewall `{self.firewall}`", hint=f"one of: {OPEN}, {STRICT}")
        if self.firewall == STRICT and self.hosts != ISOLATED:
            raise UsageError(
                "process hosts share the network of this machine, where no firewall of theirs filters",
                hint=f"--hosts {ISOLATED} --firewall {STRICT}",
            )
        if self.hosts == ISOLATED:
            from tpuctl.sim.hosts.isolated.requirements import check_firewall, check_possible

            check_possible()
            if self.firewall == STRICT:
                check_firewall()
        if not 0 < self.speed < math.inf:
            raise UsageError(f"speed must be more than 0, not {self.speed}", hint="--speed 20, or --instant")

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "quotas": dict(self.quotas)}
