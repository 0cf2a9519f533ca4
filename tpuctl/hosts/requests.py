"""What the verbs of the agent are asked, and the type of what they answer.

Hosts check a request by `tpuctl/agent/schema.py`, which is made from these Structs: a verb finds every field
that is named here, of the kind that is named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar, cast, get_args

from msgspec import Struct

from tpuctl.hosts.commands import SILENCE_S
from tpuctl.hosts.facts import BegunJob, FactsReply, Hello, Section
from tpuctl.hosts.log_news import LogNews
from tpuctl.hosts.protocol import (
    AccessReply,
    CopyStatus,
    FreeReply,
    HostReply,
    HostUsage,
    LacksReply,
    PlaceReply,
    PrepareReply,
    ReachReply,
    StartReply,
    TextReply,
    TraceReply,
    TreeReply,
    WorkerStacks,
)
from tpuctl.hosts.worker_status import AttemptsReply, WorkerStatus

R = TypeVar("R")


class AgentRequest(Struct, Generic[R], frozen=True):
    """What one verb is asked; `R` is what it answers: a `HostReply`, or a mapping that its caller reads."""

    verb: ClassVar[str]

    def read(self, data: Mapping[str, Any], worker: int) -> R:
        """The answer. Raises MalformedReplyError, which names what is wrong with it."""
        [reply] = get_args(type(self).__orig_bases__[0])  # type: ignore[attr-defined]
        typed = isinstance(reply, type) and issubclass(reply, HostReply)
        return cast("R", reply.parse(data, worker) if typed else data)


class HelloRequest(AgentRequest[Hello], frozen=True):
    """What a host says of itself, and those `sections` of its facts. With `chips` also who has those; `claim`:
    the chips that are to be used, empty for all. With `number` what the metadata server calls the worker.
    `envs`: see `FactsRequest`."""

    verb = "hello"
    chips: bool = False
    claim: tuple[int, ...] | None = None
    sections: tuple[Section, ...] = ()
    number: bool = False
    envs: tuple[str, ...] = ()


class FactsRequest(AgentRequest[FactsReply], frozen=True):
    """What a host is and has: these `sections`, or all. It waits up to `patience_s` for the end of jobs.
    `points` are paths at which something is to be mounted, `paths` those whose space is looked at, too. `envs`
    are the keys of the environments that are told of: all files of each are looked at; without keys, of all."""

    verb = "facts"
    sections: tuple[Section, ...] = ()
    patience_s: float = 0.0
    points: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    envs: tuple[str, ...] = ()


class ProvisionRequest(AgentRequest[BegunJob], frozen=True):
    """Begins a job, or finds it begun; with `anew` also one that has ended. `bundle` is the sha256 of the tree
    of its files. Where it ends within `patience_s` those `sections` of the facts are told, too."""

    verb = "provision"
    run: str
    attempt: str
    fence: int
    operations: tuple[Mapping[str, Any], ...]
    deadline_s: int
    bundle: str | None = None
    anew: bool = False
    sections: tuple[Section, ...] = ()
    patience_s: float = 0.0


class AttemptsRequest(AgentRequest[AttemptsReply], frozen=True):
    """All attempts that a host knows."""

    verb = "attempts"


class StatusRequest(AgentRequest[WorkerStatus], frozen=True):
    """How an attempt stands; with `host` also what the metadata server says of the host."""

    verb = "status"
    run: str
    attempt: str
    host: bool = False


class StopRequest(AgentRequest[WorkerStatus], frozen=True):
    """Asks for the end of an attempt; the answer, at once, is how it stood before."""

    verb = "stop"
    run: str
    attempt: str
    grace_s: float = 30.0


class StacksRequest(AgentRequest[WorkerStacks], frozen=True):
    """What each process of an attempt does."""

    verb = "stacks"
    run: str
    attempt: str


class PrepareRequest(AgentRequest[PrepareReply], frozen=True):
    """Makes the work directory of an attempt from the tree `bundle`, all of which is there, or none. It is
    refused where what is `promised` is not there. `want_port`: looks for a free port, this one or, for 0, the
    usual one. `kept`: how many ended attempts keep which large folders."""

    verb = "prepare"
    run: str
    attempt: str
    fence: int
    bundle: str | None = None
    want_port: int | None = None
    promised: tuple[Mapping[str, Any], ...] = ()
    kept: Mapping[str, int] = {}


class StartRequest(AgentRequest[StartReply], frozen=True):
    """Starts a prepared attempt under its supervisor. `env`, which may hold secrets, wins over what the login
    of the host has, `env_defaults` does not, and `env_dirs` are folders below ~/.tpuctl that are made.
    `secrets` names variables that are masked in what is written down, `tell` begins the names of those that are
    answered."""

    verb = "start"
    run: str
    attempt: str
    fence: int
    argv: tuple[str, ...]
    cwd: str = ""
    env: Mapping[str, str] = {}
    env_defaults: Mapping[str, str] = {}
    env_dirs: Mapping[str, str] = {}
    secrets: tuple[str, ...] = ()
    path_prepend: tuple[str, ...] = ()
    chips: tuple[int, ...] = ()
    container: Mapping[str, Any] | None = None
    """See `tpuctl/agent/containers.py`."""
    launch: Mapping[str, Any] | None = None
    """See `tpuctl/agent/programs.py`."""
    debug: Mapping[str, Any] | None = None
    """See `tpuctl/agent/dumps.py`."""
    promised: tuple[Mapping[str, Any], ...] = ()
    grace_s: float = 30.0
    beat_s: float = 0.0
    progress: str = ""
    tell: tuple[str, ...] = ()
    check_weights: str = ""
    watch_join: bool = False

    def __repr__(self) -> str:
        """Without variables: errors and logs show values like this."""
        return f"StartRequest(run={self.run!r}, attempt={self.attempt!r}, argv={self.argv!r})"


class NewsRequest(AgentRequest[LogNews], frozen=True):
    """What logs have behind `offsets`, by stream (and `STREAM_times`, of their indexes), at most `limit` bytes.
    With `times_only` only what is behind those of indexes."""

    verb = "news"
    run: str
    attempt: str
    offsets: Mapping[str, int] = {}
    limit: int = 1 << 20
    times_only: bool = False


class FollowRequest(AgentRequest[LogNews], frozen=True):
    """The logs of an attempt from `offsets` to its end, as they come. It ends with a client that is silent for
    `silence_s`, if that is not 0."""

    verb = "follow"
    run: str
    attempt: str
    offsets: Mapping[str, int] = {}
    silence_s: float = SILENCE_S


class FreeChipsRequest(AgentRequest[FreeReply], frozen=True):
    """Ends those of the processes `pids` that dead supervisors left behind; with `lock` removes the file of the
    lock that nobody holds."""

    verb = "free_chips"
    pids: tuple[int, ...] = ()
    lock: bool = False


class ReachRequest(AgentRequest[ReachReply], frozen=True):
    """Whether what a host sends to `port` of `address` gets there in `seconds`."""

    verb = "reach"
    address: str
    port: int
    seconds: int


class BucketUse(Struct, frozen=True):
    """A place in a bucket that the program of a run uses by its host's account."""

    bucket: str
    prefix: str
    write: bool


class BucketAccessRequest(AgentRequest[AccessReply], frozen=True):
    """What a host's own account may do with buckets, as far as that is found out in `seconds`."""

    verb = "bucket_access"
    buckets: tuple[BucketUse, ...]
    seconds: int


class UsageRequest(AgentRequest[HostUsage], frozen=True):
    """How busy a host is."""

    verb = "usage"


class TraceStepRequest(AgentRequest[TraceReply], frozen=True):
    """Begins, looks at or ends a trace of an attempt's processes, as it `does`. `at` is by the host's clock,
    `room` the bytes that must be free, `port` that of the program's own profiler server."""

    verb = "trace"
    run: str
    attempt: str
    session: str
    does: str
    at: float
    seconds: float = 0.0
    python: int = 0
    room: int = 0
    port: int | None = None


class DiagnoseRequest(AgentRequest[TextReply], frozen=True):
    """How a host stands, as text: kernel messages, memory, disks, processes, and libtpu's logs, which a run may
    have in a folder of its own."""

    verb = "diagnose"
    driver_logs: str = ""


class TreeRequest(AgentRequest[TreeReply], frozen=True):
    """The files below a path as one digest; see `tpuctl/agent/sending.py`."""

    verb = "tree"
    path: str
    limit: int
    endings: tuple[str, ...]
    head: int


class CopyName(Struct, frozen=True):
    """What hosts call a copy from host to host: an attempt of a run of its own."""

    run: str
    attempt: str


class LacksRequest(AgentRequest[LacksReply], frozen=True):
    """What a host lacks of a tree, which comes behind the request where it `follows`. With `destination` a file
    that lies there already counts; `names` are those at the top of the tree. `copy` is one to tell of, for
    whose end the host waits up to `patience_s`."""

    verb = "lacks"
    area: str
    tree: str
    destination: str | None = None
    names: tuple[str, ...] = ()
    follows: bool = False
    copy: CopyName | None = None
    patience_s: float = 0.0


class ReceiveRequest(AgentRequest[Mapping[str, Any]], frozen=True):
    """Takes the contents that follow."""

    verb = "receive"
    area: str


class PlaceRequest(AgentRequest[PlaceReply], frozen=True):
    """Puts a tree into its place, all of whose contents are there. With `mirror` its one directory is kept
    equal to it."""

    verb = "place"
    area: str
    tree: str
    destination: str
    names: tuple[str, ...]
    mirror: bool = False


class CopyRequest(AgentRequest[CopyStatus], frozen=True):
    """Has a tree served or fetched, as it `does`, by a supervisor that goes on without us. Who serves listens
    at `address` until nobody has asked for `idle_s`; who fetches finds it there, at `port` and by `token`.
    `anew`: also where it was done and has ended."""

    verb = "copy"
    run: str
    attempt: str
    fence: int
    does: str
    area: str
    tree: str
    deadline_s: int
    address: str
    port: int | None = None
    token: str = ""
    destination: str | None = None
    names: tuple[str, ...] = ()
    idle_s: float = 60.0
    anew: bool = False

    def __repr__(self) -> str:
        """Without the secret: errors and logs show values like this."""
        return f"CopyRequest(run={self.run!r}, attempt={self.attempt!r}, does={self.does!r})"


class Masks(Struct, frozen=True):
    """The attempt whose secrets are masked in what comes back, and those `values` of them that are known."""

    run: str
    attempt: str
    values: Mapping[str, str] = {}

    def __repr__(self) -> str:
        """Without the values."""
        return f"Masks(run={self.run!r}, attempt={self.attempt!r})"


class SurveyRequest(AgentRequest[Mapping[str, Any]], frozen=True):
    """The list of what lies at a path, where there `may` be nothing; see `tpuctl/agent/sending.py`."""

    verb = "survey"
    path: str
    limit: int
    may_lack: bool = False
    masks: Masks | None = None
    silence_s: float = SILENCE_S


class SendRequest(AgentRequest[Mapping[str, Any]], frozen=True):
    """Frames of files below a path. Which, follows in `size` bytes; see `tpuctl/agent/sending.py`."""

    verb = "send"
    path: str
    size: int
    masks: Masks | None = None
    silence_s: float = SILENCE_S


class ActivityRequest(AgentRequest[Mapping[str, Any]], frozen=True):
    """Who uses a host."""

    verb = "activity"


class WarnRequest(AgentRequest[Mapping[str, Any]], frozen=True):
    """Writes a text to the terminals of a host."""

    verb = "warn"
    text: str


class VacateRequest(AgentRequest[Mapping[str, Any]], frozen=True):
    """Proves that nothing of a host is on its way to a disk; see `tpuctl/agent/vacate.py`."""

    verb = "vacate"
    purpose: str
    patience_s: float
    grace_s: float
    disks: tuple[Mapping[str, str], ...]
    only: tuple[str, ...]
