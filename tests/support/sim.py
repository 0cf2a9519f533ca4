"""A simulated cloud inside the test's process: real APIs on free ports, real hosts, no delays."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from tpuctl.config.settings import ENDPOINTS
from tpuctl.sim.server.options import SimOptions
from tpuctl.sim.server.simulator import Simulator, new_token
from tpuctl.sim.world.call_log import Journal
from tpuctl.sim.world.iam import account_token
from tpuctl.sim.world.world import World


@dataclass(frozen=True)
class RunningSim:
    """`profile` holds the settings of the client's `sim` profile."""

    simulator: Simulator
    profile: dict[str, Any]

    @property
    def world(self) -> World:
        return self.simulator.world

    @property
    def endpoint(self) -> str:
        return self.simulator.endpoint

    @property
    def token(self) -> str:
        return self.simulator.token

    @property
    def journal(self) -> Journal:
        return self.world.journal

    @property
    def ssh_port(self) -> int:
        return self.simulator.ssh_port

    def call(self, verb: str, path: str, *, account: str = "", **more: Any) -> requests.Response:
        """One request with the credentials of the user, or of a service account."""
        token = account_token(self.token, account) if account else self.token
        headers = {"authorization": f"Bearer {token}"} | more.pop("headers", {})
        return requests.request(
            verb, f"{self.endpoint}/{path.lstrip('/')}", headers=headers, timeout=30, **more
        )

    def preempt(self, name: str, zone: str | None = None) -> list[str]:
        return self.world.preempt(name, zone)

    def fail_hosts(self, name: str) -> None:
        """The hosts of a node die, and the API goes on calling it READY."""
        self.world.fail_hosts(name)

    def cut_connections(self, name: str) -> None:
        self.world.cut_connections(name)

    def changes(self) -> list[str]:
        """Every call so far that changed something in the cloud."""
        verbs = ("create", "delete", "patch", "start", "stop", "reset")
        return [entry.method for entry in self.journal.entries() if entry.method.endswith(verbs)]

    def fault(self, spec: Mapping[str, Any] | None = None, **fields: Any) -> None:
        """`sim.fault(preset="stockout", times=2)`; see `tpuctl.sim.world.faults.Fault` for the fields."""
        self.world.faults.add({**(spec or {}), **fields})


@contextmanager
def running_sim(tmp_path: Path, **options: Any) -> Iterator[RunningSim]:
    """A simulator below `tmp_path` with instant delays unless `options` (of SimOptions) say otherwise."""
    root = tmp_path / f"sim-{uuid.uuid4().hex[:4]}"
    root.mkdir(parents=True)
    settings = SimOptions(**{"delays": "instant", **options})
    simulator = Simulator(root, settings, world_id=f"test-{uuid.uuid4().hex}", token=new_token())
    token_file = root / "token"
    token_file.write_text(simulator.token)
    profile = {
        "label": "sim",
        "project": settings.project,
        **dict.fromkeys(ENDPOINTS, simulator.endpoint),
        "token_file": str(token_file),
        "ssh_port": simulator.ssh_port,
    }
    try:
        yield RunningSim(simulator, profile)
    finally:
        simulator.close()
