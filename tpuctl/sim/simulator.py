"""A whole simulated cloud: the world, its hosts and all front doors."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path

from tpuctl.sim import admin, compute, project
from tpuctl.sim.access import COMPUTE, STORAGE
from tpuctl.sim.admin import AdminDoor
from tpuctl.sim.clock import Clock
from tpuctl.sim.compute import ComputeDoor
from tpuctl.sim.hosts.interface import HostBackend
from tpuctl.sim.hosts.process import ProcessHosts
from tpuctl.sim.http import STORAGE_PREFIXES, Handler, HttpServer, Router
from tpuctl.sim.options import ISOLATED, Delays, SimOptions
from tpuctl.sim.paths import storage_endpoint
from tpuctl.sim.project import ProjectDoor
from tpuctl.sim.storage import Storage
from tpuctl.sim.tpu_grpc import TpuGrpcDoor
from tpuctl.sim.tpu_rest import TpuRestDoor
from tpuctl.sim.world import World, WorldOptions


class Simulator:
    """World, hosts and doors of one simulated cloud below `root`, which belongs to it until `close`.

    Its buckets are in `buckets`, or below `root` as well. They are as durable as that folder.
    """

    def __init__(
        self,
        root: Path,
        options: SimOptions,
        *,
        world_id: str,
        token: str,
        clock: Clock | None = None,
        on_shutdown: threading.Event | None = None,
        buckets: Path | None = None,
    ) -> None:
        options.check()
        self.options = options
        self.token = token
        self.world_id = world_id
        self.stopped = on_shutdown or threading.Event()
        (root / "h").mkdir(parents=True, exist_ok=True)
        self.hosts = _make_hosts(options.hosts, root / "h", world_id)
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
        self.storage = Storage(buckets or root / "gcs", self.world)
        self.grpc = TpuGrpcDoor(self.world, token, port=options.grpc_port)
        self.http = HttpServer(
            Router(token, self._doors()).handle, port=options.port, clock_skew=self.world.access.clock_skew
        )
        self._door = self.hosts.door(self.http.port)
        self.http.allow_host(self._door)
        self.grpc.start()
        self.http.start()

    @property
    def endpoint(self) -> str:
        return self.http.endpoint

    @property
    def grpc_endpoint(self) -> str:
        """`HOST:PORT`, without encryption."""
        return self.grpc.endpoint

    @property
    def ssh_port(self) -> int:
        return self.hosts.ssh_port

    def _host_environment(self) -> dict[str, str]:
        return {
            **machine_network(os.environ),
            "STORAGE_EMULATOR_HOST": storage_endpoint(f"http://{self._door}:{self.http.port}", self.token),
            "GOOGLE_CLOUD_PROJECT": self.options.project,
            # All hosts are on this machine: what one downloads, none downloads again.
            "TPUCTL_WHEEL_CACHE": str(wheel_cache()),
        }

    def _doors(self) -> dict[str, Handler]:
        tpu = TpuRestDoor(self.world)
        computing = ComputeDoor(self.world)
        access = self.world.access

        def reset() -> None:
            self.storage.reset()
            computing.reset()

        control = AdminDoor(self.world, on_reset=reset, on_shutdown=self.stopped.set)
        return {
            "/v2/": tpu.handle,
            "/v2alpha1/": tpu.handle,
            compute.PREFIX: access.guard(COMPUTE, computing.handle),
            admin.PREFIX: control.handle,
            **dict.fromkeys(project.PREFIXES, ProjectDoor(self.world).handle),
            **dict.fromkeys(STORAGE_PREFIXES, access.guard(STORAGE, self.storage.handle)),
        }

    def close(self) -> None:
        """Stops the doors, then the world, then the hosts."""
        self.grpc.close()
        self.http.close()
        self.world.close()
        self.hosts.close()
        self.storage.close()


def _make_hosts(tier: str, root: Path, world_id: str) -> HostBackend:
    if tier == ISOLATED:
        from tpuctl.sim.hosts.isolated import IsolatedHosts

        return IsolatedHosts(root, world_id=world_id)
    return ProcessHosts(root, world_id=world_id)


def new_token() -> str:
    return secrets.token_urlsafe(32)


def wheel_cache() -> Path:
    """Where simulated hosts share downloaded wheels; it outlives the simulator, as a package cache should."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tpuctl" / "wheels"


NETWORK_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
NETWORK_PREFIXES = ("PIP_", "UV_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def machine_network(environ: Mapping[str, str]) -> dict[str, str]:
    """How this machine reaches package registries (certificates, indexes, proxies), for its hosts."""
    return {
        name: value
        for name, value in environ.items()
        if name in NETWORK_VARIABLES or name.upper().startswith(NETWORK_PREFIXES)
    }
