"""One-off commands on workers, each in a session: when this process goes, they go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

from tpuctl.engine.events import Warn, WorkerOutput
from tpuctl.engine.ports import Input
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, TpuctlError, UsageError
from tpuctl.hosts.agent_link import AgentLink
from tpuctl.hosts.targets import host_targets
from tpuctl.lib.text import common_cause, counted, fold_label, group_equal
from tpuctl.model.hosts import FailureKind, HostTarget, RemoteResult
from tpuctl.model.records import HOSTS_ANSWER, SliceRecord
from tpuctl.model.verdict import Blocked
from tpuctl.slices.enrollment import send_own_key, why_closed

_LEAVE_IT = "-n, --no-stdin leaves it alone, as within a loop that reads it"


def choose_workers(
    record: SliceRecord, workers: Sequence[int] | None, everyone: Sequence[HostTarget]
) -> list[HostTarget]:
    """The targets of the chosen workers; all for None. Raises UsageError for one out of range."""
    if workers is None:
        return list(everyone)
    for worker in workers:
        if not 0 <= worker < len(everyone):
            raise UsageError(
                f"worker {worker} does not exist: {record.name} has workers 0 to {len(everyone) - 1}",
                hint="tpuctl status " + record.name,
            )
    return [everyone[worker] for worker in workers]


def execute(
    services: Services,
    record: SliceRecord,
    argv: Sequence[str],
    *,
    workers: Sequence[int] | None = None,
    timeout_s: float | None = None,
    sink: Callable[[int, str, bytes], None] | None = None,
    given: Input | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[RemoteResult]:
    """Runs `argv` on the chosen workers and waits. Results come in worker order, failures included; a worker
    that is lost while others go on is told soon, and with others of the same cause. One worker's command reads
    what was `given`; UsageError where that has something for several. Once `should_stop` is true, it returns
    when nothing of the command is left on workers that answer."""
    if record.state not in HOSTS_ANSWER:
        raise ConflictError(f"slice {record.name} is {record.state}, not ready", hint=record.way_up)
    targets = choose_workers(record, workers, host_targets(services, record))

    def emit(worker: int, stream: str, data: bytes) -> None:
        services.emit(WorkerOutput(record.name, worker, stream, data, len(targets)))

    losses = _Losses(services, record, targets)
    agent = AgentLink(services.remote, services.agent_source)
    limits: _Limits = {
        "timeout_s": timeout_s,
        "should_stop": lambda: losses.emit_if_due() or should_stop(),
        "on_end": losses.note,
    }
    if given is not None and len(targets) == 1:
        results = [agent.session_fed(targets[0], list(argv), given, sink or emit, **limits)]
        if given.lost:
            gone = f"{counted(given.lost, 'byte')} of standard input came, which the command did not read"
            services.emit(Warn(record.name, f"{gone}: they are gone; {_LEAVE_IT}"))
    else:
        if given is not None and given.has_some():
            said = f"standard input is for one worker, and these are {len(targets)}"
            raise UsageError(said, hint=f"--worker N passes it to one; {_LEAVE_IT}")
        results = agent.session(
            targets, list(argv), sink or emit, env=env, cwd=cwd, end_within_s=STOP_WITHIN_S, **limits
        )
    if any(result.failure is FailureKind.AUTH for result in results):
        knock(services, record)
    return results


class _Limits(TypedDict):
    timeout_s: float | None
    should_stop: Callable[[], bool]
    on_end: Callable[[RemoteResult], None]


def by_cause(name: str, failed: Sequence[RemoteResult]) -> list[tuple[str, str]]:
    """Workers of slice `name` on which something failed, and why: those with one cause together."""

    def why(result: RemoteResult) -> str:
        wrote = result.stderr.decode("utf-8", "replace").strip().splitlines() if not result.failure else []
        said = result.detail or result.failure or (wrote[-1] if wrote else f"exit status {result.exit_status}")
        return common_cause(f"{name}-{result.worker}", str(said))

    return [
        (fold_label(name, [result.worker for result in members]), cause)
        for cause, members in group_equal(failed, why)
    ]


STOP_WITHIN_S = 15.0
"""For a command that is to end: its 2 s of grace, then 10 s in which the kernel kills it, and the way there."""
LOSSES_TOLD_AFTER_S = 1.0
"""Workers that are lost within so short a time are told of together."""


class _Losses:
    """Tells of lost workers while others go on, those of one cause in one line; at the end the results tell of
    all of them."""

    def __init__(self, services: Services, record: SliceRecord, targets: Sequence[HostTarget]) -> None:
        self._services = services
        self._name = record.name
        self._busy = {target.worker for target in targets}
        self._lost: dict[str, list[int]] = {}
        self._since = 0.0

    def note(self, result: RemoteResult) -> None:
        self._busy.discard(result.worker)
        if result.failure is None:
            return
        if not self._lost:
            self._since = self._services.clock.now()
        cause = common_cause(f"{self._name}-{result.worker}", result.detail or str(result.failure))
        self._lost.setdefault(cause, []).append(result.worker)

    def emit_if_due(self) -> bool:
        """Called again and again while a worker is at work; a loss is no reason to stop the others."""
        due = self._services.clock.now() - self._since >= LOSSES_TOLD_AFTER_S
        if self._lost and self._busy and due:
            for cause, workers in self._lost.items():
                self._services.emit(Warn(fold_label(self._name, workers), cause))
            self._lost.clear()
        return False


def knock(services: Services, record: SliceRecord) -> None:
    """Hosts refused this machine's key: sends it to them, and says what that means for the person who waits.
    Whatever goes wrong with that, what the other hosts answered stands."""
    try:
        sent = send_own_key(services, record.name)
    except TpuctlError as error:
        services.emit(Warn(record.name, f"this machine's key could not be sent: {error.message}"))
        return
    if sent:
        services.emit(Warn(record.name, f"{sent}: the same command again in a minute"))
        return
    verdict = why_closed(services, record, "its hosts refuse this machine's key")
    hint = f": {verdict.hint}" if isinstance(verdict, Blocked) and verdict.hint else ""
    services.emit(Warn(record.name, f"{verdict.why}{hint}"))
