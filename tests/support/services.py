"""The real adapters against a simulated cloud, put together as the command line does it."""

from __future__ import annotations

import itertools
import os
import pwd
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from google.oauth2.credentials import Credentials

from tests.support.sim import RunningSim
from tpuctl.cloud.disks import GoogleDisks
from tpuctl.cloud.groups import ComputeTpus
from tpuctl.cloud.project import GoogleProject
from tpuctl.cloud.storage import GoogleObjects
from tpuctl.cloud.tpu import GoogleCloud
from tpuctl.engine.ports import RemoteCall
from tpuctl.engine.services import Sightings
from tpuctl.errors import UsageError
from tpuctl.hosts.targets import host_targets
from tpuctl.lib.shell import Secret
from tpuctl.model.hosts import Api
from tpuctl.model.shipped_files import read_agent
from tpuctl.slices.host_keys import RepinningRemote, renewed_pin
from tpuctl.ssh.keys import ensure_keypair
from tpuctl.ssh.remote import SshRemote
from tpuctl.ssh.ssh_config import SshConfigFiles
from tpuctl.state.create_limit import FileRateLimiter
from tpuctl.state.repository import get_slice
from tpuctl.state.run_logs import LogFiles
from tpuctl.state.sqlite import SqliteStore


class HurryingClock:
    """Real time, but long waits pass at once: what is waited for has no delays in the simulator. Loops that ask
    hosts again and again still leave them time in between: each question starts a program on each host."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def now(self) -> float:
        return time.time() + self._skipped

    def sleep(self, seconds: float) -> None:
        short = min(seconds, 0.25)
        time.sleep(short)
        self._skipped += seconds - short

    def skip(self, seconds: float) -> None:
        """So much time passes at once."""
        self._skipped += seconds


class CountingIds:
    """Ids in order, unique within a test."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new_id(self) -> str:
        return f"run-{next(self._numbers):04d}"


class EnvSecrets:
    """Resolves `env:` and `file:` references."""

    def resolve(self, reference: str) -> Secret:
        kind, _, rest = reference.partition(":")
        if kind == "file":
            return Secret(Path(rest).read_text())
        if rest not in os.environ:
            raise UsageError(f"environment variable {rest} is not set")
        return Secret(os.environ[rest])


class SimServices:
    """Implements `workflows.services.Services`."""

    def __init__(self, sim: RunningSim, state_dir: Path, *, process: int = 1) -> None:
        credentials = Credentials(token=sim.token)
        project = sim.profile["project"]
        keys = ensure_keypair(state_dir)
        self.cloud: Any = GoogleCloud(project, sim.endpoint, credentials)
        self.compute_tpus: Any = ComputeTpus(project, sim.endpoint, credentials)
        self.objects: Any = GoogleObjects(project, sim.endpoint, credentials)
        self.disks: Any = GoogleDisks(project, sim.endpoint, credentials)
        self.project = project
        endpoints = ("resource_manager", "service_usage", "compute", "quotas", "tpu", "storage")
        self.project_api: Any = GoogleProject(
            project, lambda: credentials, **dict.fromkeys(endpoints, sim.endpoint)
        )
        self.clock: Any = HurryingClock()
        self.store: Any = SqliteStore(state_dir / "state.db", now=lambda: self.clock.now())
        self.remote: Any = RepinningRemote(
            SshRemote(keys.private_path), lambda target: renewed_pin(self, target)
        )
        self.ids = CountingIds()
        self.rate_limiter = FileRateLimiter(state_dir / "creates.json", per_minute=6e4)
        self.secrets = EnvSecrets()
        self.logs = LogFiles(state_dir / "runs")
        self.sightings = Sightings()
        self.events: list[object] = []
        self.user = pwd.getpwuid(os.getuid()).pw_name
        self.machine = "test-machine"
        self.lease_owner = f"test-machine/{process}"
        self.public_key = keys.public_line
        self.ssh_port = sim.ssh_port
        self.internal_ip = False
        self.trust_first_use = False
        self.replace_after_s: float | None = None
        self.ssh_entries = SshConfigFiles(state_dir / "ssh_config", keys.private_path)
        self.agent_source = read_agent()
        self.wheel_cache = state_dir / "wheelhouse"

    def emit(self, event: object) -> None:
        self.events.append(event)

    def tpus(self, api: Api) -> Any:
        return {Api.TPU: self.cloud, Api.COMPUTE: self.compute_tpus}[api]

    def process_alive(self, owner: str) -> bool:
        """Tests run one "process" after the other: whoever else holds a lease is dead."""
        return owner == self.lease_owner

    def output(self) -> str:
        """Everything the workers' programs were seen to write."""
        chunks = [event.data for event in self.events if hasattr(event, "data")]
        return b"".join(chunks).decode(errors="replace")


class ProcessByProcess:
    """A simulator, and one process of the client after the other on one machine."""

    def __init__(self, sim: RunningSim, folder: Path) -> None:
        self.sim = sim
        self.folder = folder
        self._numbers = itertools.count(1)
        self._ids = CountingIds()

    @contextmanager
    def process(self) -> Iterator[SimServices]:
        with sim_services(self.sim, self.folder / "state", process=next(self._numbers)) as services:
            services.ids = self._ids  # hosts remember what was done for each id
            yield services

    def on(self, services: SimServices, name: str, command: str) -> list[str]:
        """What the workers print."""
        targets = host_targets(services, get_slice(services, name).record)
        results = services.remote.run(targets, RemoteCall(command, timeout_s=60.0))
        assert [each.exit_status for each in results] == [0] * len(results), results
        return [each.stdout.decode() for each in results]


@contextmanager
def sim_services(sim: RunningSim, state_dir: Path, *, process: int = 1) -> Iterator[SimServices]:
    state_dir.mkdir(exist_ok=True)
    services = SimServices(sim, state_dir, process=process)
    try:
        yield services
    finally:
        services.remote.close()
