"""What wrappers of a `Remote` do not change: they pass it on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tpuctl.engine.ports import Forwarding, Remote
from tpuctl.model.hosts import HostTarget


class RemoteWrapper:
    """Passes on to `remote` all but the commands, for which wrappers are made."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def forward(
        self,
        resolve: Callable[[], HostTarget],
        remote_port: int,
        *,
        local_port: int = 0,
        report: Callable[[str], None],
    ) -> Forwarding:
        """See `Remote.forward`."""
        return self._remote.forward(resolve, remote_port, local_port=local_port, report=report)

    def read_host_keys(self, targets: Sequence[HostTarget], *, timeout_s: float = 10.0) -> list[str | None]:
        """See `Remote.read_host_keys`."""
        return self._remote.read_host_keys(targets, timeout_s=timeout_s)

    def close(self) -> None:
        self._remote.close()
