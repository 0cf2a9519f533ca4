"""What the agent on the hosts (`tpuctl/agent/`, started by `hosts/commands.py`) answers.

Answers may hold fields that we do not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Self, TypeVar

from msgspec import Meta, Struct, field

from tpuctl.lib.codec import from_data, parse_json
from tpuctl.lib.time import render_moment


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


def parse_as(cls: type[T], data: Mapping[str, Any], **ours: Any) -> T:
    """The answer of a verb as `cls`, with `ours` for what hosts do not say, or say otherwise.

    Raises MalformedReplyError, which names the field that is of another kind.
    """
    try:
        return from_data(cls, {**data, "state": WorkerState.parse(data.get("state")), **ours})
    except ValueError as error:
        raise MalformedReplyError(str(error)) from error


class HostReply(Struct, frozen=True):
    """What a verb answers."""

    @classmethod
    def parse(cls, data: Mapping[str, Any], worker: int) -> Self:
        """Raises MalformedReplyError."""
        return parse_as(cls, data, **({"worker": worker} if "worker" in cls.__struct_fields__ else {}))


class TextReply(HostReply, frozen=True):
    """What a host says to people."""

    text: str = ""


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


class FreeReply(HostReply, frozen=True):
    """Processes that were ended, whether the file of the lock was removed, and why it was not."""

    ended: tuple[int, ...] = ()
    removed: bool = False
    why: str = ""


class TreeSample(Struct, frozen=True):
    """The beginning of one file of a tree; `size` is that of all of it, `head` is in base64."""

    name: str
    size: int
    head: bytes


class TreeReply(HostReply, frozen=True):
    """The files below a path: their digest, how many there are, and the beginning of one."""

    sha256: str
    files: int
    bytes: int
    sample: TreeSample | None = None


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


class WorkerStacks(HostReply, frozen=True):
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


class TraceReply(HostReply, frozen=True):
    """How the trace of one worker stands, and the `bytes` that there are to fetch. `port` is that of a profiler
    server which the program has, where none of its `processes` can be asked otherwise: it may write below
    `folder`. Without one, `ports` are those on which the program listens."""

    state: WorkerState
    processes: tuple[TraceProcess, ...] = ()
    bytes: Whole = 0
    folder: str = ""
    port: Whole | None = None
    ports: tuple[Whole, ...] = ()


class HostUsage(HostReply, frozen=True):
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


class PrepareReply(HostReply, frozen=True):
    """Not `prepared` where the host lacks contents. `taken_port` was wanted, and another program has it."""

    prepared: bool
    free_port: Whole | None = None
    taken_port: Whole | None = None


class ReachReply(HostReply, frozen=True):
    """Whether packets of a host get to a port of another, and why not."""

    reached: bool
    why: str = ""


class BucketAccess(Struct, frozen=True):
    """What a host's own account lacks of the permissions that were asked for on a bucket."""

    bucket: str
    absent: bool = False
    lacks: tuple[str, ...] = ()


class AccessReply(HostReply, frozen=True):
    """`account` is the host's service account. Buckets of which nothing is known are left out."""

    account: str = ""
    buckets: tuple[BucketAccess, ...] = ()


class CopyStatus(HostReply, frozen=True):
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


class LacksReply(HostReply, frozen=True):
    """What a host lacks of a tree: nothing is known while it lacks the tree itself. `bits` is hexadecimal;
    `begun` says of which contents, by their number, it has how many bytes; `copy` is the one asked about.
    Without `bits` that copy is still going, and the host has not looked what it lacks."""

    bits: Annotated[str, Meta(pattern="^[0-9a-fA-F]*$")] | None = field(name="lacking", default=None)
    has_tree: bool = field(default=False, name="tree")
    begun: tuple[tuple[Whole, Whole], ...] = ()
    copy: CopyStatus | None = None

    @classmethod
    def parse(cls, data: Mapping[str, Any], worker: int) -> LacksReply:
        told = data.get("copy")
        copy = CopyStatus.parse(told, worker) if isinstance(told, dict) else None
        if data.get("lacking") is None and (copy is None or not copy.going):
            raise MalformedReplyError("it does not say what is lacking")
        return parse_as(cls, data, copy=copy)


class PlaceReply(HostReply, frozen=True):
    """`kept`: what a mirror found changed on the host, each path with the name under which it lies there now;
    no name where it lies where it was."""

    kept: tuple[tuple[str, str], ...] = ()


class StartReply(HostReply, frozen=True):
    """`already` means that this attempt was started here before and nothing was done now."""

    state: WorkerState
    pid: Whole | None = None
    already: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of those that were asked for, what the program was started with."""


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
