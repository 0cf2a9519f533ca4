"""The time of one step: every call that a step makes to hosts ends with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from tpuctl.engine.ports import Clock, Forwarding, Remote, RemoteCall
from tpuctl.model import timeouts
from tpuctl.model.hosts import FailureKind, HostTarget, RemoteResult

HOST_TIME_S = 0.9 * timeouts.STEP_MAX_S
"""Of a step, for its calls to hosts; the rest is for the store."""
OBSERVE_TIME_S = 0.6 * timeouts.STEP_MAX_S
"""For looking at workers in a step that may have to tell them something: a silent one must not use up the time
in which the others are started or stopped."""
BRISK_S = 0.25 * HOST_TIME_S
"""Who has used more than this of a step leaves what may take long to the next."""
WATCH_TIME_S = 0.7 * timeouts.STEP_MAX_S
"""For looking at workers that boot or run: where all are silent, others are asked in the rest."""


def is_late(clock: Clock, until: float | None) -> bool:
    """So much of the step that ends at `until` is over that what may take long is for the next one."""
    return until is not None and clock.now() > until - HOST_TIME_S + BRISK_S


class RemoteWrapper:
    """A `Remote` that passes on to another what it is asked; a subclass may change the calls."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def run(self, targets: Sequence[HostTarget], call: RemoteCall) -> list[RemoteResult]:
        """See `Remote.run`."""
        return self._remote.run(targets, call)

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

    def rest(self) -> bool:
        """See `Remote.rest`."""
        return self._remote.rest()

    def close(self) -> None:
        self._remote.close()


class TimedRemote(RemoteWrapper):
    """A `Remote` whose commands end at `until` (by `clock`); after that hosts are not asked, and time out."""

    def __init__(self, remote: Remote, clock: Clock, until: float) -> None:
        super().__init__(remote)
        self._clock = clock
        self._until = until

    def run(self, targets: Sequence[HostTarget], call: RemoteCall) -> list[RemoteResult]:
        """See `Remote.run`."""
        left = self._until - self._clock.now()
        if left > 0:
            limit_s = left if call.timeout_s is None else min(call.timeout_s, left)
            return self._remote.run(targets, replace(call, timeout_s=limit_s))
        detail = "not asked any more: the time of this step is over"
        results = [
            RemoteResult(each.worker, None, failure=FailureKind.TIMEOUT, detail=detail) for each in targets
        ]
        if call.on_end is not None:
            for result in results:
                call.on_end(result)
        return results
