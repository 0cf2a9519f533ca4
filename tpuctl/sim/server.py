"""The simulator's process: the world, its hosts and all front doors, from start to clean end."""

from __future__ import annotations

import secrets
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpuctl.errors import UsageError
from tpuctl.sim import admin, compute
from tpuctl.sim.admin import AdminDoor
from tpuctl.sim.clock import Clock
from tpuctl.sim.compute import ComputeDoor
from tpuctl.sim.hosts.process import ProcessHosts
from tpuctl.sim.http import TOKEN_PREFIX, Handler, HttpServer, Router
from tpuctl.sim.kernel import Delays
from tpuctl.sim.tpu_rest import TpuRestDoor
from tpuctl.sim.world import World, WorldOptions

BUCKET = "sim-bucket"
"""Exists from the start."""
WORLD_VARIABLE = "TPUCTL_SIM_WORLD"
"""Every process of a simulated host carries the world's id under this name."""
TIERS = ("process",)


@dataclass(frozen=True)
class SimOptions:
    """How to run the simulator; plain data, so that it can travel to the background process.

    `delays`: `realistic`, `instant` or a mapping of single ones; ports 0: any free one.
    """

    project: str = "sim-project"
    speed: float = 1.0
    seed: int = 1
    delays: str | dict[str, float] = "realistic"
    quotas: Mapping[str, int] = field(default_factory=dict)
    hosts: str = "process"
    port: int = 0
    grpc_port: int = 0

    def check(self) -> None:
        """Raises UsageError before anything is started."""
        Delays.parse(self.delays)
        if self.hosts not in TIERS:
            raise UsageError(f"no tier of hosts `{self.hosts}`", hint=f"one of: {', '.join(TIERS)}")
        if self.speed <= 0:
            raise UsageError(f"speed must be more than 0, not {self.speed}")

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "quotas": dict(self.quotas)}


class Simulator:
    """World, hosts and doors of one simulated cloud below `root`, which belongs to it until `close`."""

    def __init__(
        self,
        root: Path,
        options: SimOptions,
        *,
        world_id: str,
        token: str,
        clock: Clock | None = None,
        on_shutdown: threading.Event | None = None,
    ) -> None:
        options.check()
        self.options = options
        self.token = token
        self.world_id = world_id
        self.stopped = on_shutdown or threading.Event()
        (root / "hosts").mkdir(parents=True, exist_ok=True)
        (root / "storage").mkdir(parents=True, exist_ok=True)
        self.hosts = ProcessHosts(root / "hosts", world_id=world_id)
        self.world = World(
            self.hosts,
            WorldOptions(
                project=options.project,
                seed=options.seed,
                speed=options.speed,
                delays=Delays.parse(options.delays),
                quotas=options.quotas,
            ),
            clock=clock,
            host_environment=self._host_environment,
        )
        self.http = HttpServer(Router(token, self._doors(root)).handle, port=options.port)
        self.http.start()

    @property
    def endpoint(self) -> str:
        return self.http.endpoint

    @property
    def ssh_port(self) -> int:
        return self.hosts.ssh_port

    @property
    def storage_endpoint(self) -> str:
        """What STORAGE_EMULATOR_HOST wants: the token travels in the path."""
        return f"{self.endpoint}{TOKEN_PREFIX}{self.token}"

    def _host_environment(self) -> dict[str, str]:
        return {"STORAGE_EMULATOR_HOST": self.storage_endpoint, "GOOGLE_CLOUD_PROJECT": self.options.project}

    def _doors(self, root: Path) -> dict[str, Handler]:
        del root
        tpu = TpuRestDoor(self.world)
        control = AdminDoor(self.world, on_reset=self._reset_storage, on_shutdown=self.stopped.set)
        return {
            "/v2/": tpu.handle,
            "/v2alpha1/": tpu.handle,
            compute.PREFIX: ComputeDoor(self.world).handle,
            admin.PREFIX: control.handle,
        }

    def _reset_storage(self) -> None:
        """Buckets as at the start."""

    def close(self) -> None:
        """Stops the doors, then the world, then the hosts."""
        self.http.close()
        self.world.close()
        self.hosts.close()


def new_token() -> str:
    return secrets.token_urlsafe(32)


def wait_for_end(stopped: threading.Event) -> None:
    """Blocks until a signal or the admin door ends the server."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stopped.set())
    stopped.wait()
