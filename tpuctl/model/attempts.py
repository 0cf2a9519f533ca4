"""What the store keeps of the attempts of a run: their code, how far they got, how they ended and why."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from tpuctl.model.processes import METRICS, log_streams, times_of


class CodeState(Struct, frozen=True):
    """Where the frozen bundle came from; `diff` is the blob of the uncommitted changes."""

    bundle: str
    commit: str | None = None
    branch: str | None = None
    dirty: bool = False
    remote_url: str | None = None
    diff: str | None = None


class AttemptPhase(StrEnum):
    """How far an attempt has got; every step is written before the next begins."""

    PREPARING = "preparing"
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"


class Cause(StrEnum):
    """Why an attempt ended, and so which budget it is charged to."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RESTART_ASKED = "restart-asked"
    NOT_JOINED = "not-joined"
    BAD_DATA = "bad-data"
    DRIFTED = "drifted"
    NOT_SET_UP = "not-set-up"
    STALLED = "stalled"
    NOT_FINITE = "not-finite"
    PREEMPTED = "preempted"
    HOST_LOST = "host-lost"
    STOPPED = "stopped"


CAUSE_NOTES: Mapping[Cause, tuple[str, str]] = {
    Cause.SUCCEEDED: ("–", "every worker exited with 0"),
    Cause.FAILED: ("failures", "a worker failed while the cloud showed the slice alive, twice"),
    Cause.RESTART_ASKED: ("restarts", "every worker that failed exited with 75"),
    Cause.NOT_JOINED: (
        "failures",
        "a worker came up on the CPU, with fewer devices than there are chips, or not at all",
    ),
    Cause.BAD_DATA: ("failures", "a probe found that first batches are not as the contract of the data says"),
    Cause.DRIFTED: ("–", "a host differed from its environment or from its peers: the run ends at once"),
    Cause.NOT_SET_UP: (
        "–",
        "the project is not set up: hosts do not reach each other, or may not use a bucket: the run ends",
    ),
    Cause.STALLED: ("failures", "it stood still for `--stall`, with `--on-stall restart`"),
    Cause.NOT_FINITE: (
        "failures",
        "a number that `--progress` names was infinite or none, with `--on-nan stop`: the run ends",
    ),
    Cause.PREEMPTED: ("preemptions", "the cloud took the slice away"),
    Cause.HOST_LOST: ("preemptions", "a host was shut down, rebooted or stopped answering"),
    Cause.STOPPED: ("–", "a stop was asked for"),
}
"""Budget and meaning of each cause, for the documents."""


class Fault(StrEnum):
    """Whose fault a failure was."""

    CODE = "code"
    ENVIRONMENT = "environment"
    CLOUD = "cloud"
    DATA = "data"
    UNKNOWN = "unknown"


class Failure(Struct, frozen=True):
    """Why an attempt failed: the row of `manifests/tables/failures.yaml` that fits the worker that ended first.
    `retry`: it may go well another time."""

    signature: str
    whose: Fault
    worker: int | None
    evidence: str
    """The line that shows it, of the worker's log or of its host."""
    meaning: str
    remedy: str
    retry: bool
    process: int | None = None
    """Which of several processes of that worker."""


class ProcessEnd(Struct, frozen=True):
    """How one of several processes of a worker ended; both None when its end was never seen."""

    process: int
    exit_status: int | None = None
    signal: int | None = None


class WorkerEnd(Struct, frozen=True):
    """How one worker of an attempt ended; both None when its end was never seen. Of several processes these are
    of the one that ended wrongly first, which `process` names."""

    worker: int
    exit_status: int | None = None
    signal: int | None = None
    note: str = ""
    ran_s: float | None = None
    survivors: tuple[int, ...] = ()
    """Processes of it that its host still has: what a stop cannot reach, such as root's."""
    process: int | None = None
    processes: tuple[ProcessEnd, ...] = ()
    stopped: bool = False
    """It did not end by itself: we stopped it, because another worker failed or somebody asked."""


GIVEN_UP = "gave-up"
"""The id of the event that a run is over without success. It sorts after those of attempts."""


def event_id(attempt: int, position: int) -> str:
    """The id of the event at a position in the timeline of an attempt."""
    return f"{attempt:05d}-{position:05d}"


class TimelineEntry(Struct, frozen=True):
    """One event of a run. `at` is seconds since the epoch."""

    at: float
    event: str
    detail: str = ""


MOUNT_LOST, MOUNT_BACK = "mount-lost", "mount-back"
"""Events of a timeline: a mount of a worker is not well, or is again."""
STALLED, GOES_ON = "stalled", "goes-on"
SLOW, FAST_AGAIN = "slow", "fast-again"
"""The program stands still or is slower than before, or goes on as before."""
NOT_FINITE, UNSEARCHED = "not-finite", "unsearched"
"""A number of the program is infinite or none; its output is no longer searched for numbers."""
COMPILED, RECOMPILED, ON_CPU = "compiled", "recompiled", "on-cpu"
"""What came to the compiler until the first step; a function that came there again; an operation that runs on
the CPU of a host."""


class ProgramTrouble(Struct, frozen=True):
    """What slows a program down from inside: of `kind` RECOMPILED of the function `subject`, of ON_CPU of that
    operation. `times` is how often it had happened when that was said."""

    kind: str
    subject: str
    times: int
    said: str


class MountState(Struct, frozen=True):
    """A mount of a worker that is or was not healthy; `why` is what its host reported. `restarts` counts how
    often it was mounted again; `kept`: a process on the host still mounts it again."""

    worker: int
    path: str
    well: bool
    why: str
    restarts: int = 0
    kept: bool = True


class Attempt(Struct, frozen=True):
    """One try of a run on one incarnation of its slice. `fence` is the lease counter under which it began."""

    number: int
    incarnation: int
    fence: int
    state: AttemptPhase
    created_at: float
    workers: tuple[int, ...]
    coordinator: str = ""
    slices: int = 1
    """Of how many slices its workers are, in equal shares; 1 also where only some workers take part."""
    processes: int = 1
    """How many each worker has."""
    started_at: float | None = None
    suspect_since: float | None = None
    suspect_reads: int = 0
    suspect_why: str = ""
    cause: Cause | None = None
    mend: str = ""
    """The command that mends what the project lacks for it; while it is prepared: what its suspicion is of."""
    ending_since: float | None = None
    ends: tuple[WorkerEnd, ...] = ()
    failure: Failure | None = None
    stalled: str = ""
    """What of it stands still, and since when; empty while it goes on."""
    stalled_by: str = ""
    """What keeps it then, by what its workers do; empty where that does not say."""
    usual_rate: float = 0.0
    """Steps per second before they became slow; 0 while they are not."""
    not_finite: str = ""
    """The first number of its program that was infinite or none, and where."""
    unsearched: str = ""
    """Why steps are no longer looked for in its output."""
    compiled: str = ""
    """What was compiled until its first step."""
    troubles: tuple[ProgramTrouble, ...] = ()
    ended_at: float | None = None
    timeline: tuple[TimelineEntry, ...] = ()
    joined: str = ""
    """What devices the program has, once all its workers said so."""
    hosts: tuple[Mapping[str, str], ...] = ()
    """What each worker said of itself when it acknowledged, by worker."""
    mounts: tuple[MountState, ...] = ()
    """What it was told of its mounts."""
    step: float | None = None
    """The last step that was seen in its output, of `steps`; None where none was looked for."""
    steps: float | None = None
    steps_per_s: float | None = None
    checks: tuple[Mapping[str, str], ...] = ()
    """What was checked before its program started."""
    variables: tuple[Mapping[str, str], ...] = ()
    """Variables with which programs were started, by name, value and workers."""
    node_uid: str | None = None
    """Of its incarnation, as are `zone` and when it was requested, ready in the cloud, and had all
    hosts answer: the record of the slice may tell of the next one when this attempt ends."""
    zone: str | None = None
    requested_at: float | None = None
    provisioned_at: float | None = None
    ready_at: float | None = None
    alive_at: float | None = None
    """The last sign of its slice before that was seen gone; None where it was there when the attempt ended."""

    @property
    def attempt_id(self) -> str:
        return str(self.number)

    @property
    def stall_said(self) -> str:
        """What stands still, and what keeps it."""
        return "; ".join(filter(None, (self.stalled, self.stalled_by)))

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of the logs of each worker."""
        return log_streams(self.processes)

    @property
    def beside_streams(self) -> tuple[str, ...]:
        """The names of what is kept of each worker beside its logs."""
        return (*map(times_of, self.streams), METRICS)


class RunTotals(Struct, frozen=True):
    """What went into a run, as the end of its manifest has it. `usd` is by list prices; None where a value is
    not known."""

    goodput: float | None = None
    """The share of its time in which the program ran and its work was not lost."""
    chip_hours: float | None = None
    usd: float | None = None
    unseen_usd: float | None = None
    """What may come on top of `usd`: for time in which nobody saw whether its slice was still there."""
