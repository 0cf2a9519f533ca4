"""Puts the adapters together for one command; the only module that knows them all.

Every adapter is imported and built when it is first used, so that a command pays only for what it needs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tpuctl.cli.console import Console
from tpuctl.cli.invocation import Invocation
from tpuctl.errors import BadConfigError, InterruptedByUserError, TpuctlError, UsageError
from tpuctl.lib.input_files import read_text
from tpuctl.lib.names import SecretName, parse_secret_name
from tpuctl.lib.shell import Secret
from tpuctl.lib.time import parse_duration

if TYPE_CHECKING:
    from tpuctl.cli.live import Renderer
    from tpuctl.config.settings import Config
    from tpuctl.engine.cloud_ports import Cloud, Disks, Inventory, Objects, ProjectApi, TpuApi
    from tpuctl.engine.ports import RateLimiter, Remote, RunLogs, Store
    from tpuctl.engine.services import Sightings
    from tpuctl.model.hosts import Api
    from tpuctl.ssh.keys import KeyPair
    from tpuctl.ssh.ssh_config import SshConfigFiles
    from tpuctl.state.bucket import BucketStore
    from tpuctl.state.sqlite import SqliteStore


class SystemClock:
    """Real time."""

    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))


class TimeIds:
    """Ids that sort by the time they were made: the date, the second of the day and randomness."""

    def new_id(self) -> str:
        import secrets

        alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
        tail = "".join(secrets.choice(alphabet) for _ in range(4))
        return f"r{time.strftime('%y%m%d-%H%M%S', time.gmtime())}-{tail}"


class ReferencedSecrets:
    """Reads a secret where its reference points; the value is never kept. `managed` reads one of Secret
    Manager."""

    def __init__(self, managed: Callable[[SecretName], bytes]) -> None:
        self._managed = managed

    def resolve(self, reference: str) -> Secret:
        kind, _, where = reference.partition(":")
        if kind == "sm":
            try:
                return Secret(self._managed(parse_secret_name(reference)).decode().rstrip("\n"))
            except UnicodeDecodeError as error:
                raise UsageError(f"secret {reference} is no text, as variables must be") from error
        if kind == "env":
            value = os.environ.get(where)
            if value is None:
                raise UsageError(f"secret {reference}: {where} is not set here", hint=f"export {where}=…")
            return Secret(value)
        if kind != "file":
            raise UsageError(f"secret reference {reference!r} is neither env:VAR, file:PATH nor sm://…")
        try:
            return Secret(read_text(Path(where).expanduser()).rstrip("\n"))
        except (OSError, RuntimeError) as error:  # RuntimeError: ~nobody
            why = getattr(error, "strerror", None) or error
            raise UsageError(f"secret {reference} cannot be read: {why}", hint=f"ls -l {where}") from error


class AppContext:
    """Everything a command works with; implements `engine.services.Services`. Close it when done."""

    clock, ids = SystemClock(), TimeIds()

    def __init__(self, shared: Invocation) -> None:
        self.shared = shared
        self._closing = ExitStack()

    def __enter__(self) -> AppContext:
        return self

    def __exit__(self, *error: Any) -> None:
        self._closing.__exit__(*error)

    def close(self) -> None:
        """Before this process becomes another program."""
        self._closing.close()

    @contextmanager
    def interruptible(self, hint: str) -> Iterator[None]:
        """Ctrl-C in here says what still exists then, and what goes on with it. The innermost one speaks."""
        from tpuctl.cli.errors import follows_ctrl_c

        try:
            yield
        except (TpuctlError, typer.Exit):
            raise
        except BaseException as error:
            if follows_ctrl_c(error):
                raise InterruptedByUserError("interrupted", hint=hint or None) from error
            raise

    @cached_property
    def config(self) -> Config:
        from tpuctl.config.load import load_config

        flags = {
            "profile": self.shared.profile,
            "project": self.shared.project,
            "internal_ip": self.shared.internal_ip or None,
        }
        config = load_config(
            flags,
            cwd=Path.cwd(),
            environ=os.environ,
            home=Path.home(),
            project_file=self.shared.project_file,
        )
        self.shared.gcloud_first, self.shared.start_server = config.gcloud_first, config.start_server
        if config.project is not None:
            from tpuctl.cli.logging import start_logging

            try:
                start_logging(config.state_dir, self.shared.verbosity)
            except OSError as error:
                raise BadConfigError(
                    f"cannot write below {config.state_dir}: {error.strerror}",
                    hint="set TPUCTL_STATE_DIR to a directory of yours",
                ) from error
        return config

    @cached_property
    def console(self) -> Console:
        console = Console(
            json_mode=self.shared.json,
            quiet=self.shared.quiet,
            label=self.config.label or "",
            gcloud_first=self.config.gcloud_first,
        )
        self._closing.callback(console.close)
        return console

    @cached_property
    def emit(self) -> Renderer:
        from tpuctl.cli.live import Renderer

        renderer = Renderer(self.console, unattended=self.shared.unattended)
        self._closing.callback(renderer.close)
        return renderer

    def deadline(self, timeout: float | None) -> float | None:
        """When so many seconds are over, on this machine's clock; None for no limit."""
        return None if timeout is None else self.clock.now() + timeout

    @cached_property
    def secrets(self) -> ReferencedSecrets:
        def read_managed(name: SecretName) -> bytes:
            from tpuctl.cloud.project import read_secret

            return read_secret(self.config.endpoint_secret_manager, self.credentials, name)

        return ReferencedSecrets(read_managed)

    @cached_property
    def credentials(self) -> Any:
        """The token of `token_file`, else the application default credentials. Raises DeniedError."""
        from tpuctl.cloud.credentials import load_credentials

        self.config.require_project()
        return load_credentials(self.config.token_file)

    def require_credentials(self) -> None:
        """Before anything is shown or changed that would need them later. Raises DeniedError."""
        _ = self.credentials

    @cached_property
    def cloud(self) -> TpuApi:
        from tpuctl.cloud.tpu import GoogleCloud

        return GoogleCloud(self.config.require_project(), self.config.endpoint_tpu, self.credentials)

    @cached_property
    def _compute_tpus(self) -> Cloud:
        from tpuctl.cloud.groups import ComputeTpus

        return ComputeTpus(self.config.require_project(), self.config.endpoint_compute, self.credentials)

    def tpus(self, api: Api) -> Cloud:
        from tpuctl.model.hosts import Api

        return self._compute_tpus if api is Api.COMPUTE else self.cloud

    @cached_property
    def objects(self) -> Objects:
        from tpuctl.cloud.storage import GoogleObjects

        return GoogleObjects(self.config.require_project(), self.config.endpoint_storage, self.credentials)

    @property
    def project(self) -> str:
        return self.config.require_project()

    @cached_property
    def project_api(self) -> ProjectApi:
        from tpuctl.cloud.project import GoogleProject

        config = self.config
        return GoogleProject(
            self.project,
            lambda: self.credentials,
            resource_manager=config.endpoint_resource_manager,
            service_usage=config.endpoint_service_usage,
            compute=config.endpoint_compute,
            quotas=config.endpoint_quotas,
            tpu=config.endpoint_tpu,
            storage=config.endpoint_storage,
        )

    @cached_property
    def inventory(self) -> Inventory:
        from tpuctl.cloud.disks import GoogleInventory

        places = self.config.endpoint_compute, self.config.endpoint_storage
        return GoogleInventory(self.project, *places, self.credentials)

    @cached_property
    def disks(self) -> Disks:
        from tpuctl.cloud.disks import GoogleDisks

        return GoogleDisks(self.project, self.config.endpoint_compute, self.credentials)

    @cached_property
    def store(self) -> Store:
        """The shared store where one is set, else the one on this machine. Raises BadConfigError when that one
        has moved."""
        uri = self.config.store
        if uri is not None:
            return self.bucket_store(uri)
        from tpuctl.state.migrate import refuse_moved

        refuse_moved(self.local_store)
        return self.local_store

    @cached_property
    def local_store(self) -> SqliteStore:
        from tpuctl.state.sqlite import SqliteStore

        store = SqliteStore(self.config.state_dir / "store.sqlite")
        self._closing.callback(store.close)
        return store

    def bucket_store(self, uri: str, *, unborn: bool = False) -> BucketStore:
        """The store at `uri`, with its cache on this machine."""
        from hashlib import sha256

        from tpuctl.state.bucket import BucketStore

        cache = self.config.state_dir / "cache" / sha256(uri.encode()).hexdigest()[:16]
        store = BucketStore(
            self.objects, uri, cache, sleep=self.clock.sleep, project=self.project, unborn=unborn
        )
        self._closing.callback(store.close)
        return store

    @cached_property
    def rate_limiter(self) -> RateLimiter:
        from tpuctl.state.create_limit import FileRateLimiter

        return FileRateLimiter(self.config.state_dir / "creates.json")

    @cached_property
    def logs(self) -> RunLogs:
        from tpuctl.state.run_logs import LogFiles

        return LogFiles(self.config.state_dir / "runs")

    @cached_property
    def sightings(self) -> Sightings:
        from tpuctl.engine.services import Sightings

        return Sightings()

    @cached_property
    def key_pair(self) -> KeyPair:
        from tpuctl.ssh.keys import ensure_keypair

        self.config.state_base.mkdir(parents=True, exist_ok=True, mode=0o700)
        return ensure_keypair(self.config.state_base)

    def make_key_pair(self) -> None:
        """Where this is the first command that needs it."""
        _ = self.key_pair

    @property
    def public_key(self) -> str:
        return self.key_pair.public_line

    @cached_property
    def remote(self) -> Remote:
        from tpuctl.slices.host_keys import RepinningRemote, renewed_pin
        from tpuctl.ssh.remote import SshRemote

        remote = SshRemote(self.key_pair.private_path, proxy=self.proxy)
        self._closing.callback(remote.close)
        return RepinningRemote(remote, lambda target: renewed_pin(self, target))

    @cached_property
    def proxy(self) -> tuple[str, ...]:
        """The command to reach hosts through; empty for none."""
        from tpuctl.config.proxy import proxy_words

        config = self.config
        return proxy_words(config.proxy_command, config.jump_host, self.project if config.iap else None)

    @property
    def internal_ip(self) -> bool:
        return self.config.internal_ip

    @property
    def replace_after_s(self) -> float | None:
        said = self.config.replace_after
        return None if said is None else parse_duration(said, "replace_after")

    @property
    def trust_first_use(self) -> bool:
        from tpuctl.config.settings import FIRST_USE

        return self.config.host_keys == FIRST_USE

    @cached_property
    def ssh_entries(self) -> SshConfigFiles:
        from tpuctl.ssh.keys import private_key_path
        from tpuctl.ssh.ssh_config import SshConfigFiles

        folder = self.config.state_dir / "ssh_config"
        return SshConfigFiles(folder, private_key_path(self.config.state_base), self.proxy)

    @property
    def user(self) -> str:
        return self.config.user

    @cached_property
    def machine(self) -> str:
        from tpuctl.config.load import machine_identity

        return machine_identity(self.config.state_base)

    @cached_property
    def lease_owner(self) -> str:
        """The start time tells this process from a later one with the same pid."""
        return f"{self.machine}/{os.getpid()}-{_start_time(os.getpid())}"

    def process_alive(self, owner: str) -> bool:
        machine, _, process = owner.partition("/")
        pid, _, started = process.partition("-")
        if machine != self.machine or not pid.isdigit():
            return True
        return _start_time(int(pid)) == started

    @property
    def ssh_port(self) -> int:
        return self.config.ssh_port

    @cached_property
    def agent_source(self) -> bytes:
        from tpuctl.model.shipped_files import read_agent

        return read_agent()

    @property
    def wheel_cache(self) -> Path:
        return self.config.state_base / "wheelhouse"


def _start_time(pid: int) -> str:
    """Clock ticks since boot at which a process began (proc(5), field 22); empty when it is not there."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]
