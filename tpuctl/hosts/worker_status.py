"""How an attempt stands on a worker, as its host says, down to what its programs wait for and compile."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Any, Self, TypeVar

from msgspec import Struct, field

from tpuctl.hosts.protocol import HostReply, MalformedReplyError, Number, Whole, WorkerState, parse_as
from tpuctl.lib.codec import from_data
from tpuctl.lib.text import Place
from tpuctl.model.attempts import MountState
from tpuctl.model.processes import place_of

T = TypeVar("T")


class Recompiles(Struct, frozen=True):
    """Programs of a function that were compiled after the first step, `step`, though it had been compiled
    before. `shapes` are of those arguments in which its programs differ."""

    times: int = 0
    seconds: float = 0.0
    step: float | None = None
    shapes: tuple[str, ...] = ()


class CompiledFunction(Struct, frozen=True):
    """What one process compiled of a function; times by its host's clock. `place` is file and line, empty where
    that is not known; the shapes of `more` programs were not kept."""

    name: str
    place: str = ""
    times: int = 0
    seconds: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0
    shapes: tuple[str, ...] = ()
    more: int = 0
    again: Recompiles = Recompiles()


class Compiling(Struct, frozen=True):
    """What a process compiles just now, since a time by its host's clock."""

    name: str
    since: float


class CompileReport(Struct, frozen=True):
    """What one process of an attempt compiled. Of `asked` programs `loaded` were in the compile cache; single
    `operations` of JAX are counted, not named, as are the `left_out` of too many functions."""

    pid: int
    process: int | None = None
    """Which of several processes of its worker it is, or descends from."""
    asked: int = 0
    loaded: int = 0
    operations: int = 0
    operations_s: float = 0.0
    left_out: int = 0
    on_cpu: Mapping[str, int] = {}
    """Operations of PyTorch/XLA that it has no compiled form of, with how often they ran on the CPU."""
    functions: tuple[CompiledFunction, ...] = ()
    now: Compiling | None = None


class HostEvent(StrEnum):
    """What happened to a worker's host, as the host itself tells it."""

    NONE = ""
    SHUT_DOWN = "shut-down"
    """Its supervisor was told to end, and not by us: maintenance, a reboot or a preemption begins like that."""
    REBOOTED = "rebooted"
    """It has another boot id than when the attempt began."""
    MAINTENANCE = "maintenance"
    """The metadata server announces that it is terminated for maintenance, and its program has ended."""
    PREEMPTED = "preempted"
    """The metadata server says that it is preempted."""


TERMINATED = "TERMINATE_ON_HOST_MAINTENANCE"
"""The value of `maintenance-event` for hosts that are not moved (Compute Engine, "Host maintenance events")."""


DISK_FULL_BYTES = 1 << 20


class JoinReport(Struct, frozen=True):
    """What one process of an attempt says of its devices. It `waits` for them, or for other processes, `since`
    a time by its host's clock; or it has them: `devices` in all processes together."""

    pid: int
    waits: bool = False
    since: float = 0.0
    backend: str = ""
    devices: int = 0
    chosen: bool = False
    """The program itself wants no chips in this process."""
    bounded: bool = False
    """Variables give it only some of the chips."""
    process: int | None = None
    """Which of several processes of its worker it is, or descends from."""
    weights: str = ""
    """What was found in its parameters, where `run --check` asked for that."""


class ProcessStatus(Struct, frozen=True):
    """One of several processes of a worker. Without `ended_at` its end was not seen."""

    process: Whole
    pid: Whole = 0
    exit_status: Whole | None = None
    signal: Whole | None = None
    ended_at: Number | None = None


class NotFinite(Struct, frozen=True):
    """A number of a program that is infinite or none: the first that was seen, at this step if any is known."""

    name: str
    value: str
    step: Number | None = None
    at: Number = 0.0

    @property
    def said(self) -> str:
        """`loss is nan at step 120`."""
        return f"{self.name} is {self.value}" + (f" at step {self.step:.12g}" if self.step is not None else "")


class WorkerStatus(HostReply, frozen=True):
    """One attempt on one worker, as its host says; times by the host's clock. What a worker that does not
    answer is, the caller says: then only `worker`, `state` and `detail` mean something."""

    worker: int
    state: WorkerState
    run: str = ""
    attempt: str = ""
    exit_status: Whole | None = None
    signal: Whole | None = None
    pid: Whole | None = None
    process: Whole | None = None
    """Of several processes the one that ended wrongly first: `exit_status` and `signal` are of that."""
    processes: tuple[ProcessStatus, ...] = ()
    """Where there are several."""
    started_at: Number | None = None
    ended_at: Number | None = None
    stopped: bool = False
    """It was told to end, from outside."""
    stop_asked: bool = False
    """That was asked for; without it the host itself went down."""
    rebooted: bool = False
    """The host has booted since the attempt began."""
    stdout_bytes: Whole = 0
    stderr_bytes: Whole = 0
    stdout_cut: Whole = 0
    """Up to this offset its host has taken the log away, which was long."""
    stderr_cut: Whole = 0
    boot_id: str = ""
    time: Number = 0.0
    detail: str = ""
    survivors: tuple[int, ...] = ()
    """Processes of the attempt that live although its supervisor is gone or could not end them."""
    oom_kills: Whole = 0
    """So many processes the kernel of its host killed for want of memory while it ran."""
    survivors_said: str = ""
    disk_free_bytes: Whole | None = None
    preempted: bool = False
    """With `maintenance`: what the metadata server says of the host, where that was asked."""
    maintenance: str = ""
    join: tuple[JoinReport, ...] = ()
    compiles: tuple[CompileReport, ...] = ()
    mounts: tuple[MountState, ...] = ()
    """Those of its host that are not well, or were not at some time since the attempt began."""
    output_at: Number | None = None
    """When its program wrote last."""
    held: bool = False
    """Its program is stopped by a signal."""
    load: Number = 0.0
    """Of its host, over a minute."""
    step: Number | None = None
    """What the expression of its run found last, since `step_at`; `steps` is how many there are."""
    step_at: Number | None = None
    steps: Number | None = None
    first_step: Number | None = None
    first_at: Number | None = None
    recent_rate: Number | None = None
    """Steps per second in the last five minutes; `usual_rate` is the median of the minutes before."""
    usual_rate: Number | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    """The last finite ones of the other groups of that expression."""
    not_finite: NotFinite | None = None
    progress_error: str = ""
    """Why that expression is no longer searched."""

    @classmethod
    def parse(cls, data: Mapping[str, Any], worker: int) -> Self:
        said = data.get("progress")
        said = said if isinstance(said, dict) else {}
        came = {ours: said.get(name) for name, ours in _PROGRESS.items()}
        came |= {ours: said[name] for name, ours in _NUMBERS.items() if name in said}
        mounts = [{**row, "worker": worker} for row in data.get("mounts") or ()]
        several = [row for row in data.get("processes") or () if row.get("process") is not None]
        more = {"worker": worker, "mounts": mounts, "processes": several}
        more["join"] = _parse_reports(JoinReport, data.get("join"))
        more["compiles"] = _parse_reports(CompileReport, data.get("compiles"))
        return parse_as(cls, data, **more, **came)

    @property
    def place(self) -> Place:
        """Of whose end it tells: the worker, or one of its processes."""
        return place_of(self.worker, self.process)

    @property
    def failed_at(self) -> float | None:
        """When what it tells of ended; the others of its processes are stopped after that."""
        own = (each.ended_at for each in self.processes if each.process == self.process)
        return next(own, None) or self.ended_at

    @property
    def over(self) -> bool:
        return self.state in {WorkerState.EXITED, WorkerState.LOST, WorkerState.ABSENT}

    @property
    def succeeded(self) -> bool:
        return self.state is WorkerState.EXITED and self.exit_status == 0 and not self.interrupted

    @property
    def healthy(self) -> bool:
        going_down = self.event in {HostEvent.SHUT_DOWN, HostEvent.PREEMPTED}
        return self.state in {WorkerState.RUNNING, WorkerState.STARTING} and not going_down

    @property
    def interrupted(self) -> bool:
        """It was told to end, and not by us: whatever its exit status, it did not come to its own end."""
        return self.stopped and not self.stop_asked

    @property
    def event(self) -> HostEvent:
        if self.preempted:
            return HostEvent.PREEMPTED
        if self.rebooted:
            return HostEvent.REBOOTED
        if self.interrupted:
            return HostEvent.SHUT_DOWN
        # It is announced up to an hour before: a program that goes on has not been hit yet.
        ended = self.state.final and self.exit_status != 0
        return HostEvent.MAINTENANCE if ended and self.maintenance == TERMINATED else HostEvent.NONE

    @property
    def ran_s(self) -> float | None:
        """How long its program ran."""
        if self.started_at is None or self.ended_at is None:
            return None
        return max(0.0, self.ended_at - self.started_at)

    @property
    def why(self) -> str:
        """What its host adds to how it ended."""
        full = self.disk_free_bytes is not None and self.disk_free_bytes < DISK_FULL_BYTES
        if not full and self.oom_kills and self.exit_status != 0:
            return "its host ran out of memory"
        return "its disk is full" if full else self.detail


_PROGRESS = {"step": "step", "at": "step_at", "total": "steps"} | {
    name: name for name in ("first_step", "first_at", "recent_rate", "usual_rate")
}
_NUMBERS = {"values": "values", "not_finite": "not_finite", "error": "progress_error"}
"""What the agent calls it, and what `WorkerStatus` does."""


class AttemptsReply(HostReply, frozen=True):
    """All attempts that a host knows."""

    attempts: tuple[WorkerStatus, ...]

    @classmethod
    def parse(cls, data: Mapping[str, Any], worker: int) -> Self:
        found = data.get("attempts")
        if not isinstance(found, list):
            raise MalformedReplyError(f"'attempts' is {found!r}, not a list")
        return cls(tuple(WorkerStatus.parse(entry, worker) for entry in found))


def _parse_reports(cls: type[T], data: object) -> tuple[T, ...]:
    """Those that can be read: programs may write what they like there."""
    found = []
    for said in data if isinstance(data, list) else ():
        with suppress(ValueError):  # msgspec's, too
            found.append(from_data(cls, said))
    return tuple(found)
