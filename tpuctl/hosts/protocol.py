"""What the agent on the hosts (`tpuctl/agent/`, started by `hosts/commands.py`) answers.

Answers may hold fields that we do not know.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, field

from tpuctl.hosts.compile_report import CompileReport
from tpuctl.lib.codec import from_data, parse_json
from tpuctl.lib.text import Place
from tpuctl.lib.time import render_moment
from tpuctl.model.processes import LOG_STREAMS, place_of
from tpuctl.model.records import MountState


class WorkerState(StrEnum):
    """How far an attempt has got on one worker. The last three are said of a worker, never by its host."""

    ABSENT = "absent"
    PREPARED = "prepared"
    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"
    LOST = "lost"
    UNREACHABLE = "unreachable"
    CLOSED = "closed"
    """It answers, but refuses this machine or shows a key that is not its own: no sign that it is dead."""
    UNKNOWN = "unknown"
    """It says what this tpuctl does not know."""

    @classmethod
    def parse(cls, value: object) -> WorkerState:
        """What a host said."""
        ours = {cls.UNREACHABLE, cls.CLOSED}
        return cls(value) if isinstance(value, str) and value in set(cls) - ours else cls.UNKNOWN

    @property
    def final(self) -> bool:
        return self in {WorkerState.EXITED, WorkerState.LOST}


ALIVE = frozenset({WorkerState.STARTING, WorkerState.RUNNING})
SILENT = frozenset({WorkerState.UNREACHABLE, WorkerState.CLOSED})
"""Nothing is known of what runs there."""

Whole = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Number = Annotated[float, Meta(ge=-(2.0**63), le=2.0**63)]
"""No size, time or id of a host is greater."""
T = TypeVar("T")
NO_ANSWER = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading an answer raises that is none: JSON has numbers without an end and lists without a bottom."""


class MalformedReplyError(ValueError):
    """An answer of a host is not what the agent sends; the text says what is wrong with it."""


class ChipHolder(Struct, frozen=True):
    """A process that has a chip open, `since` a time by its host's clock. `run` is that which it is of, if any;
    `left_by` the same, where the supervisor of that is gone; `devices` are those that it has open."""

    pid: int
    user: str
    command: str
    since: float
    left_by: str = ""
    run: str = ""
    devices: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        """`pid 12 of ada (python train.py) since 2026-12-24T18:00:00Z`."""
        return f"pid {self.pid} of {self.user} ({self.command[:60]}) since {render_moment(self.since)}"


class ChipLock(Struct, frozen=True):
    """The file with which libtpu guards a host's chips. `foreign`: it is another user's, so that ours cannot
    open it. `holders` are living processes with a lock on it."""

    path: str
    owner: str
    foreign: bool
    holders: tuple[ChipHolder, ...] = ()


class Chips(Struct, frozen=True):
    """`devices` are in the order of their chips. `unknown`: there may be holders that this user cannot see.
    `busy` are devices that cannot be opened yet."""

    devices: tuple[str, ...]
    holders: tuple[ChipHolder, ...]
    unknown: bool
    lockfile: ChipLock | None = None
    busy: tuple[str, ...] = ()

    @property
    def taken_by(self) -> tuple[ChipHolder, ...]:
        """Who is in the way of a program that wants the chips: it has them open, or the lock on them."""
        locks = self.lockfile.holders if self.lockfile is not None else ()
        return tuple({holder.pid: holder for holder in (*self.holders, *locks)}.values())


class HostFacts(Struct, frozen=True):
    """What a host says of itself."""

    boot_id: str
    hostname: str
    user: str
    home: str
    python_version: str
    kernel: str
    time: Number
    disk_free_bytes: Whole
    cpu_count: Whole
    worker_id: str | None
    chips: Chips | None = None
    machine: str = ""
    numa_nodes: Whole = 0
    nics: Whole = 0
    number: str | None = None
    """What the metadata server calls the worker, where that was asked for."""


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


class FreeReply(Struct, frozen=True):
    """Processes that were ended, whether the file of the lock was removed, and why it was not."""

    ended: tuple[int, ...] = ()
    removed: bool = False
    why: str = ""


class TreeSample(Struct, frozen=True):
    """The beginning of one file of a tree; `size` is that of all of it, `head` is in base64."""

    name: str
    size: int
    head: bytes


class TreeReply(Struct, frozen=True):
    """The files below a path: their digest, how many there are, and the beginning of one."""

    sha256: str
    files: int
    bytes: int
    sample: TreeSample | None = None


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


class WorkerStatus(Struct, frozen=True):
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


class ProcessStack(Struct, frozen=True):
    """What one process does. `by`: py-spy, faulthandler or /proc; `text` is empty where none could tell."""

    pid: int
    command: str = ""
    state: str = ""
    waits_in: str = ""
    by: str = ""
    text: str = ""
    process: int | None = None
    """Which of several processes of its worker it is, or descends from."""
    ports: tuple[Whole, ...] = ()
    """Where its chips tell how they are, as far as its variables say."""


class WorkerStacks(Struct, frozen=True):
    """What the processes of one worker do, or why that is not known."""

    worker: int
    processes: tuple[ProcessStack, ...] = ()
    error: str = ""
    state: WorkerState = WorkerState.UNKNOWN
    exit_status: Whole | None = None

    @property
    def ended(self) -> bool:
        """Its program has, whatever the record says by now."""
        return self.state is WorkerState.EXITED


class TraceProcess(Struct, frozen=True):
    """How far the trace of one process is: asked, waiting, tracing, writing, done; or failed, busy with a trace
    of its own, idle because it has no devices. Times are by its host's clock."""

    pid: int
    state: str = ""
    started: Number | None = None
    ended: Number | None = None
    cut: str = ""
    """Why it ended before its time."""
    error: str = ""

    @property
    def seconds(self) -> float:
        """How long it traced."""
        return 0.0 if self.started is None or self.ended is None else self.ended - self.started


class TraceReply(Struct, frozen=True):
    """How the trace of one worker stands, and the `bytes` that there are to fetch. `port` is that of a profiler
    server which the program has, where none of its `processes` can be asked otherwise: it may write below
    `folder`. Without one, `ports` are those on which the program listens."""

    state: WorkerState
    processes: tuple[TraceProcess, ...] = ()
    bytes: Whole = 0
    folder: str = ""
    port: Whole | None = None
    ports: tuple[Whole, ...] = ()


class HostUsage(Struct, frozen=True):
    """How busy one host is; what it could not find out is None. Rates are bytes per second, of all disks and of
    all ways to the network. `ports` and `prometheus` are those that variables of its programs name, on which
    they tell what they do."""

    worker: int
    cpus: Whole = 0
    cpu_percent: Number | None = None
    memory_used: Whole | None = None
    memory_total: Whole | None = None
    disk_read_s: Number | None = None
    disk_written_s: Number | None = None
    net_in_s: Number | None = None
    net_out_s: Number | None = None
    ports: tuple[Whole, ...] = ()
    prometheus: tuple[Whole, ...] = ()


class PrepareReply(Struct, frozen=True):
    """Prepared, or the blobs that the host lacks. `taken_port` was wanted, and another program has it."""

    prepared: bool = False
    free_port: Whole | None = None
    missing: tuple[str, ...] = ()
    taken_port: Whole | None = None


class ReachReply(Struct, frozen=True):
    """Whether packets of a host get to a port of another, and why not."""

    reached: bool
    why: str = ""


class BucketAccess(Struct, frozen=True):
    """What a host's own account lacks of the permissions that were asked for on a bucket."""

    bucket: str
    absent: bool = False
    lacks: tuple[str, ...] = ()


class AccessReply(Struct, frozen=True):
    """`account` is the host's service account. Buckets of which nothing is known are left out."""

    account: str = ""
    buckets: tuple[BucketAccess, ...] = ()


class CopyStatus(Struct, frozen=True):
    """A copy from host to host under the supervisor of one of them. `bytes` came so far to one that fetches;
    one that serves has a port, and a secret for those who may ask."""

    state: WorkerState
    bytes: Whole = 0
    port: Whole | None = None
    token: str = ""
    error: str = field(default="", name="message")

    def __repr__(self) -> str:
        """Without the secret: errors and logs show values like this."""
        return f"CopyStatus(state={self.state!r}, bytes={self.bytes}, port={self.port}, error={self.error!r})"

    @property
    def going(self) -> bool:
        return self.state in {WorkerState.STARTING, WorkerState.RUNNING}


class LacksReply(Struct, frozen=True):
    """What a host lacks of a tree: nothing is known while it lacks the tree itself. `bits` is hexadecimal;
    `begun` says of which contents, by their number, it has how many bytes; `copy` is the one asked about."""

    bits: Annotated[str, Meta(pattern="^[0-9a-fA-F]*$")] = field(name="lacking")
    has_tree: bool = field(default=False, name="tree")
    begun: tuple[tuple[Whole, Whole], ...] = ()
    copy: CopyStatus | None = None


class StartReply(Struct, frozen=True):
    """`already` means that this attempt was started here before and nothing was done now."""

    state: WorkerState
    pid: Whole | None = None
    already: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of those that were asked for, what the program was started with."""


class LogNews(Struct, frozen=True):
    """What the logs of an attempt have behind what is known, and whether there is more to ask for.

    `processes` is of those that several processes have of their own, by stream. `times` is of their indexes;
    `skipped` bytes before what came are no longer on the host."""

    stdout: bytes = b""
    stderr: bytes = b""
    more: bool = False
    times: Mapping[str, bytes] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    processes: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def output(self) -> Mapping[str, bytes]:
        return {"stdout": self.stdout, "stderr": self.stderr, **self.processes}


def parse_log_news(stdout: bytes) -> LogNews:
    """The part that came, where the answer broke off; a login script may print before it. MalformedReplyError
    where nothing came."""
    head = stdout.find(b'{"news": ')
    begin = stdout.find(b"\n", head) + 1
    if head < 0 or not begin:
        raise MalformedReplyError("the host answered no logs")
    line = stdout[head : begin - 1]
    try:
        announced = parse_json(line)
        news = announced["news"]
        counts = {stream: _count(news[stream]) for stream in dict.fromkeys((*LOG_STREAMS, *news))}
        timed = {stream: _count(count) for stream, count in (announced.get("times") or {}).items()}
        skipped = {stream: _count(count) for stream, count in (announced.get("skipped") or {}).items()}
        size, packed = sum(counts.values()) + sum(timed.values()), bool(announced.get("packed"))
    except NO_ANSWER as error:
        raise MalformedReplyError(f"the host announced its logs as {line[:80]!r}") from error
    split = _unpack if packed else _cut
    parts = split(memoryview(stdout)[begin:], [*counts.values(), *timed.values()])
    more = bool(announced.get("more")) or sum(map(len, parts)) < size
    times = dict(zip(timed, parts[len(counts) :], strict=True))
    own = dict(zip([*counts][2:], parts[2 : len(counts)], strict=True))
    return LogNews(parts[0], parts[1], more, times, skipped, own)


def _cut(data: memoryview, counts: Iterable[int]) -> list[bytes]:
    """At most that many bytes of each part, as far as they came."""
    parts = []
    for count in counts:
        parts.append(bytes(data[:count]))
        data = data[count:]
    return parts


def _unpack(packed: memoryview | bytes, counts: Iterable[int]) -> list[bytes]:
    """`_cut` of a deflate stream, each part straight to where it stays."""
    stream, parts = zlib.decompressobj(-zlib.MAX_WBITS), []
    try:
        for count in counts:
            parts.append(stream.decompress(packed, count) if count else b"")
            packed = stream.unconsumed_tail if count else packed
    except zlib.error as error:
        raise MalformedReplyError(f"the host's logs cannot be unpacked: {error}") from error
    return parts


def parse_reply(stdout: bytes) -> Mapping[str, Any]:
    """The agent's answer: the last line, because a login script may print before it. MalformedReplyError."""
    lines = stdout.strip().splitlines()
    if not lines:
        raise MalformedReplyError("the host answered nothing")
    try:
        data = parse_json(lines[-1])
    except (ValueError, RecursionError) as error:
        raise MalformedReplyError(f"the host answered {lines[-1][:80]!r} instead of JSON") from error
    if not isinstance(data, dict):
        raise MalformedReplyError(f"the host answered {lines[-1][:80]!r} instead of an object")
    return data


def parse_taken(stdout: bytes) -> int:
    """How many bytes of its input a command read. MalformedReplyError."""
    return parse_as(_Taken, parse_reply(stdout)).taken


class _Taken(Struct, frozen=True):
    taken: Whole


def parse_as(cls: type[T], data: Mapping[str, Any], **ours: Any) -> T:
    """The answer of a verb as `cls`, with `ours` for what hosts do not say, or say otherwise.

    Raises MalformedReplyError, which names the field that is of another kind.
    """
    try:
        return from_data(cls, {**data, "state": WorkerState.parse(data.get("state")), **ours})
    except ValueError as error:
        raise MalformedReplyError(str(error)) from error


def parse_stacks(data: Mapping[str, Any], worker: int) -> WorkerStacks:
    return from_data(WorkerStacks, {**data, "worker": worker})


_PROGRESS = {"step": "step", "at": "step_at", "total": "steps"} | {
    name: name for name in ("first_step", "first_at", "recent_rate", "usual_rate")
}
_NUMBERS = {"values": "values", "not_finite": "not_finite", "error": "progress_error"}
"""What the agent calls it, and what `WorkerStatus` does."""


def parse_worker_status(data: Mapping[str, Any], worker: int) -> WorkerStatus:
    said = data.get("progress")
    said = said if isinstance(said, dict) else {}
    came = {ours: said.get(name) for name, ours in _PROGRESS.items()}
    came |= {ours: said[name] for name, ours in _NUMBERS.items() if name in said}
    mounts = [{**row, "worker": worker} for row in data.get("mounts") or ()]
    several = [row for row in data.get("processes") or () if row.get("process") is not None]
    more = {"worker": worker, "mounts": mounts, "processes": several}
    more["join"] = _parse_reports(JoinReport, data.get("join"))
    more["compiles"] = _parse_reports(CompileReport, data.get("compiles"))
    return parse_as(WorkerStatus, data, **more, **came)


def parse_usage(data: Mapping[str, Any], worker: int) -> HostUsage:
    return parse_as(HostUsage, data, worker=worker)


def parse_attempts(data: Mapping[str, Any], worker: int) -> tuple[WorkerStatus, ...]:
    found = data.get("attempts")
    if not isinstance(found, list):
        raise MalformedReplyError(f"'attempts' is {found!r}, not a list")
    return tuple(parse_worker_status(entry, worker) for entry in found)


def _parse_reports(cls: type[T], data: object) -> tuple[T, ...]:
    """Those that can be read: programs may write what they like there."""
    found = []
    for said in data if isinstance(data, list) else ():
        with suppress(ValueError):  # msgspec's, too
            found.append(from_data(cls, said))
    return tuple(found)


def parse_lacks_reply(data: Mapping[str, Any]) -> LacksReply:
    copy = data.get("copy")
    return parse_as(LacksReply, data, copy=parse_as(CopyStatus, copy) if isinstance(copy, dict) else None)


def _count(value: Any) -> int:
    """ValueError for less than none."""
    count = int(value)
    if count < 0:
        raise ValueError(f"{count} is no count")
    return count
