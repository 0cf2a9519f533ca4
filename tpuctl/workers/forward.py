"""A port of a worker on this machine, following the slice through recovery."""

from __future__ import annotations

from tpuctl.engine.events import Warn
from tpuctl.engine.ports import Forwarding, RemoteCall
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, UnreachableError, UsageError
from tpuctl.hosts.targets import host_targets
from tpuctl.lib.text import parse_number
from tpuctl.model.cloud import HostTarget
from tpuctl.model.records import HOSTS_ANSWER
from tpuctl.state.repository import get_slice
from tpuctl.workers.exec import choose_workers

PORT_MAX = 65535


def parse_ports(text: str) -> tuple[int, int]:
    """Local and remote port of `PORT` or `LOCAL:REMOTE`. Raises UsageError."""
    local, colon, remote = text.partition(":")
    here, there = parse_number(local), parse_number(remote if colon else local)
    if here is None or here > PORT_MAX or not there or there > PORT_MAX:
        raise UsageError(f"{text[:80]!r} is not PORT or LOCAL:REMOTE", hint="tpuctl forward NAME 6006")
    return here, there


def current_target(services: Services, name: str, worker: int) -> HostTarget:
    """The worker as it is pinned now. ConflictError while its hosts do not answer."""
    record = get_slice(services, name).record
    if record.state not in HOSTS_ANSWER:
        raise ConflictError(f"slice {name} is {record.state}, not ready", hint=record.way_up)
    return choose_workers(record, [worker], host_targets(services, record))[0]


def forward_port(
    services: Services, name: str, worker: int, remote_port: int, *, local_port: int = 0
) -> Forwarding:
    """Listens until closed. Each connection goes to the worker as it is then; a slice that is being recovered
    refuses it, and takes the next one when it is back.

    Raises ConflictError when the slice is not ready now or the local port is taken, and UnreachableError when
    the worker does not answer now.
    """
    target = current_target(services, name, worker)
    [result] = services.remote.run([target], RemoteCall("true"))
    if result.failure is not None:
        raise UnreachableError(
            f"{target.label} does not answer: {result.detail or result.failure}",
            hint=f"tpuctl status {name}, or tpuctl up {name} to bring it back",
        )
    return services.remote.forward(
        lambda: current_target(services, name, worker),
        remote_port,
        local_port=local_port,
        report=lambda text: services.emit(Warn(name, f"a connection was refused: {text}")),
    )
