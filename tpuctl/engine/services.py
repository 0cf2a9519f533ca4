"""What every workflow is given. Properties, so that a command pays only for the adapters it uses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tpuctl.engine.ports import (
    Clock,
    EventSink,
    IdSource,
    RateLimiter,
    Remote,
    RunLogs,
    SecretResolver,
    SshEntries,
    Store,
)
from tpuctl.model.cloud import Listing, QueuedInfo
from tpuctl.model.hosts import Api

if TYPE_CHECKING:  # as in `ports`
    from tpuctl.engine.cloud_ports import Cloud, Disks, Objects, ProjectApi, TpuApi


class Services(Protocol):
    """Adapters and identity of one invocation."""

    @property
    def cloud(self) -> TpuApi:
        """The Cloud TPU API, for its queued resources; whatever both APIs have is asked of `tpus`."""
        ...

    def tpus(self, api: Api) -> Cloud:
        """The API that makes TPUs of that kind; `cloud` is one of them."""
        ...

    @property
    def objects(self) -> Objects: ...

    @property
    def disks(self) -> Disks: ...

    @property
    def project_api(self) -> ProjectApi: ...

    @property
    def project(self) -> str:
        """The project's id."""
        ...

    @property
    def store(self) -> Store: ...

    @property
    def remote(self) -> Remote: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def ids(self) -> IdSource: ...

    @property
    def rate_limiter(self) -> RateLimiter: ...

    @property
    def secrets(self) -> SecretResolver: ...

    @property
    def logs(self) -> RunLogs: ...

    @property
    def sightings(self) -> Sightings:
        """The same object each time."""
        ...

    @property
    def replace_after_s(self) -> float | None:
        """How long hosts of a live slice may be silent, where somebody said that."""
        ...

    @property
    def emit(self) -> EventSink: ...

    @property
    def user(self) -> str:
        """Who runs this command; slices and runs belong to them."""
        ...

    @property
    def machine(self) -> str:
        """A stable id of this machine."""
        ...

    @property
    def lease_owner(self) -> str:
        """`machine/pid`, unique to this process."""
        ...

    @property
    def public_key(self) -> str:
        """This machine's own SSH public key, `ssh-ed25519 AAAA… comment`."""
        ...

    @property
    def ssh_port(self) -> int: ...

    @property
    def internal_ip(self) -> bool:
        """This machine is in the hosts' own network and reaches them at their internal addresses."""
        ...

    @property
    def trust_first_use(self) -> bool:
        """Where the cloud publishes no host keys, believe those that hosts show first."""
        ...

    @property
    def ssh_entries(self) -> SshEntries: ...

    @property
    def agent_source(self) -> bytes:
        """The agent, as it is installed on hosts."""
        ...

    @property
    def wheel_cache(self) -> Path:
        """This machine's folder of files for environments, by their sha256."""
        ...

    def process_alive(self, owner: str) -> bool:
        """Whether the process that took a lease may still run; True when it is on another machine."""
        ...


def list_queued(services: Services, api: Api, zone: str = "-") -> Listing[QueuedInfo]:
    """The queued resources for slices that `api` makes, which the Cloud TPU API alone has."""
    return services.cloud.list_queued(zone) if api is Api.TPU else Listing(())


class Sightings:
    """By slice and the number of its incarnation: the newest moment, by the store's clock, at which the cloud
    showed it READY or one of its hosts answered."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], float] = {}

    def saw(self, slice_name: str, incarnation: int, at: float) -> None:
        key = (slice_name, incarnation)
        self._seen[key] = max(at, self._seen.get(key, at))

    def last(self, slice_name: str, incarnation: int) -> float | None:
        return self._seen.get((slice_name, incarnation))
