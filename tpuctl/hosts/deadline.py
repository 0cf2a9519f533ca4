"""The time of one step: every call that a step makes to hosts ends with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

from tpuctl.engine.ports import Clock, OutputSink, Remote, Stdin, StreamOptions
from tpuctl.hosts.remote_wrapper import RemoteWrapper
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


class TimedRemote(RemoteWrapper):
    """A `Remote` whose commands end at `until` (by `clock`); after that hosts are not asked, and time out."""

    def __init__(self, remote: Remote, clock: Clock, until: float) -> None:
        super().__init__(remote)
        self._clock = clock
        self._until = until

    def run(
        self, targets: Sequence[HostTarget], command: str, *, stdin: Stdin = b"", timeout_s: float = 20.0
    ) -> list[RemoteResult]:
        """See `Remote.run`."""
        left = self._until - self._clock.now()
        if left <= 0:
            return _not_asked(targets)
        return self._remote.run(targets, command, stdin=stdin, timeout_s=min(timeout_s, left))

    def stream(
        self,
        targets: Sequence[HostTarget],
        command: str | Callable[[HostTarget], str],
        sink: OutputSink,
        **options: Unpack[StreamOptions],
    ) -> list[RemoteResult]:
        """See `Remote.stream`."""
        left = self._until - self._clock.now()
        if left <= 0:
            results = _not_asked(targets)
            on_end = options.get("on_end")
            if on_end is not None:
                for result in results:
                    on_end(result)
            return results
        timeout_s = options.get("timeout_s")
        options["timeout_s"] = left if timeout_s is None else min(timeout_s, left)
        return self._remote.stream(targets, command, sink, **options)


def _not_asked(targets: Sequence[HostTarget]) -> list[RemoteResult]:
    detail = "not asked any more: the time of this step is over"
    return [RemoteResult(target.worker, None, failure=FailureKind.TIMEOUT, detail=detail) for target in targets]
