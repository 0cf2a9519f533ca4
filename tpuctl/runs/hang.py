"""Does a run go on? Signs of life of its workers to what stands still, in words.

Before its first step a program may compile for an hour: only `--first-step-limit` counts. After it, so long
without output or, with `--progress`, without another step is a stall.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.hosts.protocol import WorkerState
from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.lib.text import fold_workers
from tpuctl.lib.time import render_moment, render_seconds
from tpuctl.model.attempts import Attempt
from tpuctl.model.records import RunRecord
from tpuctl.model.run_spec import RunSpec
from tpuctl.runs.compiles import describe_compiling
from tpuctl.runs.metrics import watches_steps

BUSY_LOAD = 1.0
"""With so many processes at work on a host before the first step, that is called compiling."""


VALUES_SHOWN = 2
"""Numbers of the program beside its step."""
NEARLY_S = 5.0
"""What stands still so soon after others is told with them; at most a quarter of the limit."""
SLOW_BELOW = 0.5
"""A rate below this part of the usual one is told."""
WELL_FROM = 0.75
"""It is well again from this part of what was usual when that was told."""


class Slowdown(Struct, frozen=True):
    """A rate of steps per second that has fallen. `usual` is 0 while it has not."""

    usual: float = 0.0
    recent: float = 0.0

    @property
    def said(self) -> str:
        """`0.9 steps/s in the last 5 min, 2.1 before`; what it is again where it is well."""
        before = f", {self.usual:.2g} before" if self.usual else " again"
        return f"{self.recent:.2g} steps/s in the last 5 min{before}"


class Stall(Struct, frozen=True):
    """`why` is the same while the stall is; empty while the run goes on. `unanswered`: of workers that do not
    answer. `nearly`: within seconds it may be one of more workers."""

    why: str = ""
    workers: tuple[int, ...] = ()
    unanswered: bool = False
    nearly: bool = False


def judge_stall(run: RunRecord, workers: Sequence[WorkerStatus]) -> Stall:
    """Which workers of the run's attempt stand still beyond the limits of its spec. Those that do not answer
    are named where the others stand still: these wait for them. Who runs on although the others ended well is
    judged by itself."""
    running = [worker for worker in workers if worker.state is WorkerState.RUNNING]
    silent = [worker for worker in workers if worker.state is WorkerState.UNREACHABLE]
    done = [worker for worker in workers if worker.succeeded]
    if not running or len(running) + len(silent) + len(done) < len(workers):
        return Stall()
    found = _judge_running(run.spec, running, max((w.ended_at or 0.0 for w in done), default=0.0))
    if found.why and done:
        found = replace(found, why=f"{found.why}; the others have ended")
    if not (found.why and silent):
        return found
    numbers = _numbers(silent)
    return Stall(f"worker {fold_workers(numbers)}: no answer; {found.why}", numbers, unanswered=True)


def _judge_running(spec: RunSpec, running: Sequence[WorkerStatus], others_ended_at: float) -> Stall:
    """Where others have ended the program has begun, and ranks that never say anything may end, too."""
    begun = [worker for worker in running if others_ended_at or _begun(spec, worker)]
    silent_s = {w.worker: w.time - max(_sign_at(spec, w), _unsaid(spec, w, others_ended_at)) for w in running}
    held = [worker for worker in running if worker.held and silent_s[worker.worker] >= spec.stall_s]
    if held:
        return _stall(spec, held, "stopped by a signal")
    if not begun:
        late = [w for w in running if w.started_at and w.time - w.started_at >= spec.first_step_limit_s]
        what = "no step" if late and _by_step(spec, late[0]) else "no output"
        return (
            Stall(f"{what} in {render_seconds(spec.first_step_limit_s)}", _numbers(late)) if late else Stall()
        )
    still = [worker for worker in begun if silent_s[worker.worker] >= spec.stall_s]
    by_step = bool(still) and _steps(spec, still[0])
    # Often only one rank prints: the silence of the others is none, while that one goes on.
    if len(still) < len(begun):
        soon_s = spec.stall_s - min(NEARLY_S, spec.stall_s / 4)
        nearly = any(soon_s <= silent_s[worker.worker] < spec.stall_s for worker in begun)
        return replace(_stall(spec, still, "at the same step"), nearly=nearly) if by_step else Stall()
    return _stall(spec, still, "at the same step" if by_step else "no output")


def judge_pace(attempt: Attempt, workers: Sequence[WorkerStatus]) -> Slowdown:
    """Whether the run has become slow, by the worker ahead: below half of what was usual for five minutes,
    until it is near that again."""
    running = [w for w in workers if w.state is WorkerState.RUNNING and w.recent_rate is not None]
    ahead = max(running, key=lambda w: w.step or 0.0, default=None)
    if ahead is None or ahead.recent_rate is None:
        return Slowdown(attempt.usual_rate)
    recent, usual = ahead.recent_rate, ahead.usual_rate or 0.0
    if attempt.usual_rate:
        return Slowdown(attempt.usual_rate if recent < WELL_FROM * attempt.usual_rate else 0.0, recent)
    return Slowdown(usual if recent < SLOW_BELOW * usual else 0.0, recent)


def describe_progress(run: RunRecord, workers: Sequence[WorkerStatus]) -> str:
    """`compiling 23 min`, or `step 120 of 1000, loss 2.31, 2.1/s, 7 min left`; empty where nothing is known."""
    running = [worker for worker in workers if worker.state is WorkerState.RUNNING]
    ahead = furthest(running)
    unsearched = next((w.progress_error for w in running if w.progress_error), "")
    if unsearched:
        return f"--progress {unsearched}"
    if ahead is None or ahead.step is None:
        compiling = describe_compiling(running)
        if compiling:
            return compiling
        busy = [w for w in running if w.started_at and w.load >= BUSY_LOAD and not _begun(run.spec, w)]
        return f"compiling {render_seconds(max(w.time - (w.started_at or 0.0) for w in busy))}" if busy else ""
    of = f" of {ahead.steps:.12g}" if ahead.steps else ""
    of += "".join(f", {name} {value:.4g}" for name, value in [*ahead.values.items()][:VALUES_SHOWN])
    rate = step_rate(ahead)
    if rate is None:
        return f"step {ahead.step:.12g}{of}"
    left = f", {render_seconds((ahead.steps - ahead.step) / rate)} left" if ahead.steps else ""
    return f"step {ahead.step:.12g}{of}, {rate:.2g}/s{left}"


def furthest(workers: Sequence[WorkerStatus]) -> WorkerStatus | None:
    """The worker whose output tells the highest step; None where none does."""
    return max((w for w in workers if w.step is not None), key=lambda w: w.step or 0.0, default=None)


def step_rate(worker: WorkerStatus) -> float | None:
    """Steps per second since the first one that was seen."""
    if worker.step is None or worker.step_at is None or worker.first_step is None or worker.first_at is None:
        return None
    steps, seconds = worker.step - worker.first_step, worker.step_at - worker.first_at
    return steps / seconds if steps > 0 and seconds > 0 else None


def _by_step(spec: RunSpec, worker: WorkerStatus) -> bool:
    """Whether steps are its sign of life: not where the search for them was given up."""
    return watches_steps(spec) and not worker.progress_error


def _steps(spec: RunSpec, worker: WorkerStatus) -> bool:
    return worker.step is not None and _by_step(spec, worker)


def _unsaid(spec: RunSpec, worker: WorkerStatus, others_ended_at: float) -> float:
    """The end of the others is a sign of life of a worker that tells no steps."""
    return 0.0 if _steps(spec, worker) else others_ended_at


def _begun(spec: RunSpec, worker: WorkerStatus) -> bool:
    return worker.step is not None if _by_step(spec, worker) else worker.output_at is not None


def _sign_at(spec: RunSpec, worker: WorkerStatus) -> float:
    """When it last gave a sign of life, by its host's clock."""
    said = worker.step_at if _by_step(spec, worker) else worker.output_at
    return said if said is not None else worker.output_at or worker.started_at or worker.time


def _stall(spec: RunSpec, workers: Sequence[WorkerStatus], what: str) -> Stall:
    since = min(_sign_at(spec, worker) for worker in workers)
    return Stall(
        f"worker {fold_workers(_numbers(workers))}: {what} since {render_moment(since)}", _numbers(workers)
    )


def _numbers(workers: Sequence[WorkerStatus]) -> tuple[int, ...]:
    return tuple(worker.worker for worker in workers)
