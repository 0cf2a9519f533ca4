"""A whole simulated cloud: the world, its hosts and all APIs."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path

from tpuctl.sim.api import admin, discovery, oauth, project
from tpuctl.sim.api.admin import AdminApi
from tpuctl.sim.api.discovery import answer_discovery
from tpuctl.sim.api.http import Handler, HttpServer, Router
from tpuctl.sim.api.https import HttpsProxy, is_google
from tpuctl.sim.api.oauth import TokenApi
from tpuctl.sim.api.project import ProjectApi
from tpuctl.sim.api.tpu_grpc import TpuGrpcApi
from tpuctl.sim.api.tpu_rest import TpuRestApi
from tpuctl.sim.compute import rest as compute
from tpuctl.sim.compute.rest import ComputeApi
from tpuctl.sim.gcs.server import Storage
from tpuctl.sim.hosts.backend import HostBackend
from tpuctl.sim.hosts.files import wheel_cache
from tpuctl.sim.hosts.init import RIGHTS_DROPPED, give_to_hosts
from tpuctl.sim.hosts.process.backend import ProcessHosts
from tpuctl.sim.server.environment import proxy_environment, trust_environment
from tpuctl.sim.server.options import ISOLATED, STRICT, SimOptions
from tpuctl.sim.world.catalog import load_catalog
from tpuctl.sim.world.clock import Clock
from tpuctl.sim.world.delays import Delays
from tpuctl.sim.world.faults import FaultKind
from tpuctl.sim.world.paths import STORAGE_BY_REST
from tpuctl.sim.world.world import World, WorldOptions


class Simulator:
    """World, hosts and APIs of one simulated cloud below `root`, which belongs to it until `close`.

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
        buckets: Path | None = None,
    ) -> None:
        options.check()
        self.options = options
        self.token = token
        self.world_id = world_id
        self.stopped = threading.Event()
        self._wheels = wheel_cache("wheels-of-nobody" if RIGHTS_DROPPED else "wheels")
        give_to_hosts(self._wheels)
        (root / "h").mkdir(parents=True, exist_ok=True)
        self.hosts = _make_hosts(options, root / "h", world_id)
        self.world = World(
            self.hosts,
            _world_options(options),
            clock=clock,
            catalog=load_catalog(options.catalog),
            host_environment=self._host_environment,
            token=token,
        )
        self.storage = Storage(buckets or root / "gcs", self.world)
        self._serve(root / "tls", token)

    def _serve(self, folder: Path, token: str) -> None:
        """Starts all servers."""
        apis, options = self._handlers(), self.options
        self.grpc = TpuGrpcApi(
            self.world,
            token,
            port=options.grpc_port,
            storage=self.storage,
            project=lambda request: apis[f"/{request.path.split('/')[1]}/"](request),
        )
        renewing = TokenApi(token, self.world.access.check_token).handle
        public = {**dict.fromkeys(oauth.PATHS, renewing), **dict.fromkeys(discovery.PATHS, answer_discovery)}
        router = Router(token, apis, public, self.storage)
        skew = self.world.access.clock_skew
        self.http = HttpServer(router.handle, port=options.port, clock_skew=skew)
        self._host_address = self.hosts.publish_port(self.http.port)
        self.http.allow_host(self._host_address)
        self._rest = HttpServer(router.handle, clock_skew=skew, behind_tls=is_google)
        self.https = HttpsProxy(
            folder,
            self._rest,
            http_port=self.http.port,
            grpc_port=self.grpc.port,
            to_the_world=lambda: not self.world.faults.standing(FaultKind.NO_INTERNET, "*"),
        )
        self.hosts.publish_port(self.https.host_port)
        self.hosts.show(self.https.ca_file.parent)
        self.grpc.start()
        self.http.start()
        self._rest.start()

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
        """What a login on a host sees besides what its tier sets: how it reaches the network that it is on.

        A TPU VM needs none of it. Here Google's APIs are behind a proxy, so programs must know the proxy and
        whom to trust; credentials they find by themselves, at the metadata server.
        """
        return {
            **machine_network(os.environ),
            **trust_environment(str(self.https.ca_file)),
            **proxy_environment(f"http://{self._host_address}:{self.https.host_port}"),
            **STORAGE_BY_REST,
            # All hosts are on this machine: what one downloads, none downloads again.
            "TPUCTL_WHEEL_CACHE": str(self._wheels),
        }

    def _handlers(self) -> dict[str, Handler]:
        tpu = TpuRestApi(self.world)
        self._computing = computing = ComputeApi(self.world)
        projects = ProjectApi(self.world)

        def reset() -> None:
            self.storage.reset()
            computing.reset()

        control = AdminApi(self.world, on_reset=reset, on_shutdown=self.stopped.set)
        return {
            "/v2/": tpu.handle,
            "/v2alpha1/": tpu.handle,
            "/v2alpha/": tpu.handle,
            **dict.fromkeys(compute.PREFIXES, computing.handle),
            compute.BATCH: computing.handle,
            admin.PREFIX: control.handle,
            **dict.fromkeys(project.PREFIXES, projects.handle),
            project.SHARED_PREFIX: lambda request: (tpu if tpu.owns(request.path) else projects).handle(
                request
            ),
        }

    def close(self) -> None:
        """Stops the APIs, then the world, then the hosts."""
        self.https.close()
        self.grpc.close()
        self.http.close()
        self._rest.close()
        self.world.close()
        self._computing.close()
        self.hosts.close()
        self.storage.close()


def _world_options(options: SimOptions) -> WorldOptions:
    return WorldOptions(
        project=options.project,
        seed=options.seed,
        speed=options.speed,
        delays=Delays.parse(options.delays),
        quotas=options.quotas,
        internal_rule=options.firewall != STRICT,
    )


def _make_hosts(options: SimOptions, root: Path, world_id: str) -> HostBackend:
    if options.hosts == ISOLATED:
        from tpuctl.sim.hosts.isolated.backend import IsolatedHosts

        return IsolatedHosts(root, world_id=world_id, filtered=options.firewall == STRICT)
    return ProcessHosts(root, world_id=world_id)


def new_token() -> str:
    return secrets.token_urlsafe(32)


NETWORK_PREFIXES = ("PIP_", "UV_", "SSL_CERT_DIR", "HTTP_PROXY")


def machine_network(environ: Mapping[str, str]) -> dict[str, str]:
    """How this machine reaches package registries, for its hosts; HTTPS goes through a proxy of ours."""
    return {name: value for name, value in environ.items() if name.upper().startswith(NETWORK_PREFIXES)}
