"""A profile of what a run's processes do, taken at the same moment on its hosts.

Programs trace themselves, through the hook with which runs start them (`tpuctl/agent/trace_hook.py`). Where
none of a worker's does, its own profiler server is asked, through a channel. Hosts stop by themselves, and
remove what nobody fetched: whoever is interrupted here leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from tpuctl.engine.events import Waiting, Warn
from tpuctl.engine.ports import EventSink, Forwarding
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, NotFoundError
from tpuctl.hosts.agent import Reply
from tpuctl.hosts.protocol import TraceReply, WorkerState
from tpuctl.hosts.requests import StatusRequest, TraceStepRequest
from tpuctl.lib.text import common_cause, fold_workers
from tpuctl.model.cloud import HostTarget
from tpuctl.runs.attempt import AttemptHosts
from tpuctl.runs.stacks import running_hosts
from tpuctl.runs.trace_plan import (
    UNDER_WAY,
    ClockReading,
    WorkerTrace,
    describe_progress,
    judge_trace,
    lead_of,
    plan_offsets,
)
from tpuctl.telemetry.profiler import OUT, ProfilerCall, begin_profile

LOOK_S = 1.0
KEEP_EVERY_S = 15.0
"""Another may begin a trace where nobody looked at this one for 90 s, and after ten minutes hosts remove it."""
SILENT_S = 30.0
"""A host that does not answer for so long is not waited for any more."""
WRITE_MAX_S = 300.0
"""So long after its end a trace may be written: a program may be in a call that lets no other thread work."""
CALL_S = 60.0
UNSEEN = (
    "none of its processes can be traced: none has taken its devices with a JAX or PyTorch/XLA that the hook "
    "of runs sees, and no profiler server is known (--port names one)"
)


class TraceRequest(Struct, frozen=True):
    """`workers` None means all. `port` is that of the program's own profiler server, where it has one; `python`
    has calls of Python functions traced, too."""

    seconds: float = 5.0
    workers: Collection[int] | None = None
    port: int | None = None
    python: bool = False
    limit_bytes: int = 1 << 30


class _Worker(Struct):
    """One worker of a trace: what it said last, `heard` when, and its own server where that is asked."""

    target: HostTarget
    begin: float
    """By the clock of its host."""
    heard: float
    told: TraceReply | None = None
    trouble: str = ""
    server: Forwarding | None = None
    profile: ProfilerCall | None = None

    @property
    def under_way(self) -> bool:
        if self.trouble or self.told is None:
            return False
        if self.server is not None:
            return self.profile is None or not self.profile.done
        return any(process.state in UNDER_WAY for process in self.told.processes)


class Tracing:
    """A trace of one attempt, under the name of its session."""

    def __init__(self, services: Services, hosts: AttemptHosts, request: TraceRequest) -> None:
        self._services = services
        self._hosts = hosts
        self._request = request
        wanted = [t for t in hosts.targets if request.workers is None or t.worker in request.workers]
        if not wanted:
            raise NotFoundError(
                f"run {hosts.run.id} is not on worker {fold_workers(request.workers or ())}",
                hint=f"tpuctl status {hosts.run.id}",
            )
        readings = self._read_clocks(wanted)
        offsets = plan_offsets(readings)
        now = services.clock.now()
        self._begin = now + lead_of(readings)
        self._workers = {
            target.worker: _Worker(target, self._begin + offsets.get(target.worker, 0.0), now)
            for target in wanted
        }
        began = datetime.fromtimestamp(now, UTC)
        self.session = (
            f"{began:%Y_%m_%d_%H_%M_%S}_{services.ids.new_id()[-4:]}"  # others may ask in this second
        )
        self._kept = now

    @property
    def path(self) -> str:
        """Where hosts have what was traced, in their home directories."""
        run, attempt = self._hosts.run.id, self._hosts.attempt.attempt_id
        return f".tpuctl/runs/{run}/{attempt}/traces/{self.session}/{OUT}"

    @property
    def slice_name(self) -> str:
        return self._hosts.run.slice_name

    def targets(self, rows: Sequence[WorkerTrace]) -> list[HostTarget]:
        """Those of which something is to be fetched."""
        return [self._workers[row.worker].target for row in rows if row.size_bytes]

    def rows(self) -> list[WorkerTrace]:
        """What it came to, by worker."""
        return [self._row(worker) for worker in self._workers.values()]

    def _read_clocks(self, targets: Sequence[HostTarget]) -> list[ClockReading]:
        asked = self._services.clock.now()
        replies = self._hosts.agent.ask(
            targets, StatusRequest(self._hosts.run.id, self._hosts.attempt.attempt_id)
        )
        answered = self._services.clock.now()
        return [ClockReading(r.worker, r.value.time, asked, answered) for r in replies if r.value is not None]

    def _ask(self, does: str, workers: Sequence[_Worker], **more: Any) -> list[Reply[TraceReply]]:
        run, attempt = self._hosts.run.id, self._hosts.attempt.attempt_id

        def request(target: HostTarget) -> TraceStepRequest:
            at = self._workers[target.worker].begin
            return TraceStepRequest(run, attempt, self.session, does, at, **more)

        return self._hosts.agent.ask([worker.target for worker in workers], request, timeout_s=CALL_S)

    def begin(self) -> None:
        """Asks all; raises ConflictError while another trace of them is under way."""
        asked, workers = self._request, list(self._workers.values())
        more = {"seconds": asked.seconds, "python": int(asked.python), "room": asked.limit_bytes}
        replies = self._ask("begin", workers, port=asked.port, **more)
        busy = [reply for reply in replies if reply.error == "busy"]
        if busy:
            where = fold_workers([reply.worker for reply in busy])
            run = self._hosts.run.id
            hint = f"`tpuctl trace {run}` again when it is over, or other workers with --worker"
            raise ConflictError(f"worker {where}: {busy[0].message}", hint=hint)
        ended = [r.worker for r in replies if r.value is not None and r.value.state is WorkerState.EXITED]
        if len(ended) == len(replies):
            run = self._hosts.run.id
            raise NotFoundError(
                f"run {run}: its program has ended on worker {fold_workers(ended)}", hint=f"tpuctl attach {run}"
            )
        for worker, reply in zip(workers, replies, strict=True):
            worker.told, worker.heard = reply.value, self._services.clock.now()
            if reply.value is None:
                worker.trouble = common_cause(worker.target.label, reply.message)
            elif reply.value.state is not WorkerState.RUNNING:
                does = f"does not run: it is {reply.value.state}"
                worker.trouble = f"its program {'has ended' if worker.target.worker in ended else does}"
            elif reply.value.port is not None:
                worker.server = self._open(worker.target, reply.value.port)
            elif not reply.value.processes:
                ports = f"; it listens on {', '.join(map(str, reply.value.ports))}" if reply.value.ports else ""
                worker.trouble = f"{UNSEEN}{ports}"

    def _open(self, target: HostTarget, port: int) -> Forwarding:
        def report(text: str) -> None:
            self._services.emit(Warn(target.label, f"its profiler: {text}"))

        return self._services.remote.forward(lambda: target, port, report=report)

    def wait(self) -> None:
        """Until every worker has written its trace, or will not any more."""
        clock, seconds = self._services.clock, self._request.seconds
        servers = [worker for worker in self._workers.values() if worker.server is not None]
        if servers:
            clock.sleep(max(0.0, self._begin - clock.now()))
            for worker in servers:
                if worker.server is not None and worker.told is not None:
                    port, folder = worker.server.local_port, worker.told.folder
                    worker.profile = begin_profile(port, folder, seconds, python=self._request.python)
        until = self._begin + seconds + WRITE_MAX_S
        while waited := [worker for worker in self._workers.values() if worker.under_way]:
            if clock.now() > until:
                for worker in waited:
                    worker.trouble = f"it did not write its trace within {WRITE_MAX_S:.0f} s"
                break
            told = describe_progress([worker.told for worker in waited if worker.told is not None])
            why = f"trace: {told}" if told else "trace: the program's own server"
            self._services.emit(Waiting(self._hosts.run.id, why, self._begin, self._begin + seconds))
            clock.sleep(LOOK_S)
            self._look(waited)
            self._keep()
        self._look([worker for worker in servers if not worker.trouble])

    def _look(self, workers: Sequence[_Worker]) -> None:
        for worker, reply in zip(workers, self._ask("look", workers), strict=True):
            if reply.value is not None:
                worker.told, worker.heard = reply.value, self._services.clock.now()
            elif self._services.clock.now() - worker.heard > SILENT_S:
                why = common_cause(worker.target.label, reply.message)
                worker.trouble = f"it does not answer: {why}"

    def keeping(self, emit: EventSink) -> EventSink:
        """`emit`, that also has hosts keep what they have while events tell that it is being fetched."""

        def emit_and_keep(event: object) -> None:
            emit(event)
            self._keep()

        return emit_and_keep

    def _keep(self) -> None:
        """Has all hosts know that their traces are still wanted, also those that are done before others."""
        if self._services.clock.now() - self._kept >= KEEP_EVERY_S:
            self._kept = self._services.clock.now()
            self._ask("look", list(self._workers.values()))

    def _row(self, worker: _Worker) -> WorkerTrace:
        trouble = worker.trouble or (worker.profile.trouble if worker.profile is not None else "")
        if trouble or worker.told is None:
            return WorkerTrace(worker.target.worker, trouble=trouble)
        asked = self._request
        return judge_trace(worker.target.worker, worker.told, worker.begin, asked.seconds, asked.limit_bytes)

    def end(self) -> None:
        """Has hosts stop, and remove what they have."""
        for worker in self._workers.values():
            if worker.profile is not None:
                worker.profile.close()
            if worker.server is not None:
                worker.server.close()
        self._ask("end", list(self._workers.values()))


@contextmanager
def trace_run(services: Services, run_id: str, request: TraceRequest) -> Iterator[Tracing]:
    """Traces a run. What hosts have is there as long as this is open.

    Raises NotFoundError where nothing of the run runs, and ConflictError while another trace of it is under
    way.
    """
    tracing = Tracing(services, running_hosts(services, run_id), request)
    try:
        tracing.begin()
        tracing.wait()
        yield tracing
    finally:
        tracing.end()
