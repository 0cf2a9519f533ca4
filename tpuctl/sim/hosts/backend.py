"""What the simulated cloud needs of a tier of hosts; every tier passes the same tests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tpuctl.sim.hosts.metadata import Values
    from tpuctl.sim.wire.splice import Streams

STARTUP_SCRIPT = "startup-script"
SHUTDOWN_SCRIPT = "shutdown-script"
"""Keys of the metadata: what Google's guest agent runs as root at every boot, and when a host is shut down in
order (docs.cloud.google.com/compute/docs/shutdownscript). Those of a `-url` are not fetched."""


def find_script(metadata: Values, key: str) -> str:
    """The script under that key; empty where there is none."""
    return str(metadata.get(f"instance/attributes/{key}") or "")


@dataclass(frozen=True)
class HostSpec:
    """One worker to be made.

    `environment` is what a login session sees besides the tier's own variables, asked anew for every session
    because the addresses of peers are known only after all are made; `metadata` is what the metadata server
    says now, by its path below `/computeMetadata/v1/`; `publish` takes a guest attribute (`NAMESPACE/KEY` and
    its value, None to remove it), False where they are turned off. All are called from threads of the tier.
    `bans` is asked by its event loop: see `Blocker` of `process/host.py`; the isolated tier has no such thing.
    """

    node_key: str
    worker: int
    hostname: str
    environment: Callable[[], Mapping[str, str]]
    metadata: Callable[[], Values]
    publish: Callable[[str, str | None], bool] = lambda _path, _value: False
    bans: Callable[[], tuple[int, float] | None] = lambda: None


@dataclass(frozen=True)
class HostAddress:
    """Where a made worker answers. `host_key` is `ssh-ed25519 AAAA…`."""

    internal_ip: str
    external_ip: str
    ssh_port: int
    host_key: str


@dataclass(frozen=True)
class HostDisk:
    """A data disk on a host. `key` names its content; `number` is 1 for the first one of a host. If it is
    `marked`, `name` is its name in /dev/disk/by-id."""

    key: str
    number: int
    read_only: bool
    nvme: bool
    marked: bool = field(default=True, compare=False)
    name: str = ""
    """Of the device; without one it is named by its number."""

    @property
    def link(self) -> str:
        """Below /dev/disk/by-id."""
        return f"google-{self.name or f'persistent-disk-{self.number}'}"


class HostBackend(Protocol):
    """A tier of hosts. `node_key` names one incarnation of a node; methods are thread-safe and idempotent."""

    ssh_port: int
    """On which all hosts answer."""
    address_range: str = ""
    """Of the hosts' internal addresses; empty where the tier has none of its own."""
    resolves: bool = False
    """Whether hosts can find others by the names of `set_names`."""

    def publish_port(self, port: int) -> str:
        """Makes `port` of the machine's loopback reachable for hosts; the address under which they find it."""
        ...

    def show(self, folder: Path) -> None:
        """Lets hosts that are made from now on read a folder of the machine, under its own path."""
        ...

    def create(self, specs: list[HostSpec]) -> list[HostAddress]:
        """Makes the workers of one node and returns once all answer on SSH.

        At every boot each runs what the metadata key `startup-script` holds, and does not wait for it.
        """
        ...

    def set_ssh_keys(self, node_key: str, ssh_keys: str) -> None:
        """Replaces the accepted keys: lines `USER:ssh-ed25519 AAAA… comment`, as in `ssh-keys` metadata."""
        ...

    def kill(self, node_key: str) -> None:
        """Preemption: every process dies, connections are cut, storage is wiped; the node never comes back."""
        ...

    def cut(self, node_key: str) -> None:
        """A network hiccup: every SSH connection to the node's workers breaks, their processes live on."""
        ...

    def shutdown(self, node_key: str, window_s: float, workers: Collection[int] | None = None) -> None:
        """Orderly, as systemd does it when the power button is pressed (ACPI soft-off): SIGTERM to every
        process, and `window_s` real seconds to end, less when all have ended before. Of all workers, or of
        `workers`. What the metadata key `shutdown-script` holds runs meanwhile; it gets no SIGTERM.

        What is left then goes on until the power is cut: by `stop` or `kill`.
        """
        ...

    def stop(self, node_key: str, workers: Collection[int] | None = None) -> None:
        """Power off: processes die, storage stays."""
        ...

    def start(self, node_key: str) -> None:
        """Power on after `stop`, at the same addresses with the same host keys, as another boot."""
        ...

    def destroy(self, node_key: str) -> None:
        """Deletion: like `kill`; unknown nodes are fine."""
        ...

    def serve(self, node_key: str, worker: int, ports: Mapping[int, Streams]) -> None:
        """By port, what answers on the loopback of one worker from now on, until its power goes, as a program
        there would; nothing else any more. Nothing happens to a worker that is off or unknown."""
        ...

    def write_disk(self, key: str, size_gb: int, source: str = "") -> None:  # noqa: ARG002
        """Content for a disk or snapshot: empty, or what `source` is at this moment; a larger size for one that
        is there. A tier without devices keeps none."""
        return

    def drop_disk(self, key: str) -> None:  # noqa: ARG002
        """Removes content; of a key without one it is fine."""
        return

    def set_disks(self, node_key: str, disks: Mapping[int, Sequence[HostDisk]]) -> None:  # noqa: ARG002
        """By worker, the data disks that it has as devices from now on; those of others are pulled out, in use
        or not. New ones are found in this order. A tier without devices does nothing: programs find none."""
        return

    def set_names(self, _node_key: str, _names: Mapping[str, str]) -> None:
        """The hosts of a node find these addresses by these names from now on. A tier whose hosts have the
        machine's files has no names of its own."""
        return

    def set_firewall(self, rules: Sequence[Mapping[str, object]]) -> None:  # noqa: ARG002
        """The rules of the network from now on, as the API has them. A tier without networks of its own filters
        nothing."""
        return

    def close(self) -> None:
        """Everything goes; nothing is left running or on disk."""
        ...


WORLD_VARIABLE = "TPUCTL_SIM_WORLD"
"""Every process of a simulated host carries the world's id under this name."""
