"""When each host begins a trace by its own clock, and what a trace came to there; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.hosts.protocol import TraceProcess, TraceReply
from tpuctl.model.hosts import RemoteResult

LEAD_S = 2.0
"""At least so long after it was asked for a trace begins: all hosts have heard of it then."""
LEAD_MAX_S = 30.0
UNDER_WAY = ("asked", "waiting", "tracing", "writing")


class ClockReading(Struct, frozen=True):
    """The clock of a worker's host, read at some time between two of this machine's."""

    worker: int
    host_time: float
    asked_at: float
    answered_at: float

    @property
    def offsets(self) -> tuple[float, float]:
        """By how much its clock may be ahead of ours, at least and at most."""
        return self.host_time - self.answered_at, self.host_time - self.asked_at


def plan_offsets(readings: Sequence[ClockReading]) -> Mapping[int, float]:
    """By how much each host's clock is taken to be ahead of ours.

    What the readings allow to be one offset is one: the clocks of a cloud's hosts are much closer to each other
    than a call over the network can tell. Hosts that cannot have that one have their own.
    """
    spans = {reading.worker: reading.offsets for reading in readings}
    if not spans:
        return {}

    def within(offset: float) -> list[int]:
        return [worker for worker, (low, high) in spans.items() if low <= offset <= high]

    together = within(max((low for low, _ in spans.values()), key=lambda low: len(within(low))))
    shared = (max(spans[w][0] for w in together) + min(spans[w][1] for w in together)) / 2
    return {w: shared if w in together else sum(span) / 2 for w, span in spans.items()}


def lead_of(readings: Sequence[ClockReading]) -> float:
    """How long before its beginning a trace is asked for: as long as two calls take."""
    slowest = max((reading.answered_at - reading.asked_at for reading in readings), default=0.0)
    return min(LEAD_MAX_S, max(LEAD_S, 2 * slowest))


class WorkerTrace(Struct, frozen=True):
    """What a trace came to on one worker: `size_bytes` to fetch. `late` is by how many seconds after the agreed
    moment the last of its `processes` began, `seconds` how long the shortest traced; `trouble` is why there is
    nothing, or not all of it."""

    worker: int
    size_bytes: int = 0
    processes: int = 0
    late: float | None = None
    seconds: float | None = None
    trouble: str = ""


def judge_trace(worker: int, reply: TraceReply, begin: float, seconds: float, limit_bytes: int) -> WorkerTrace:
    """What one worker has in the end, of a trace that was to `begin` at that time by its host's clock."""
    done = [each for each in reply.processes if each.state == "done"]
    late = max((each.started - begin for each in done if each.started is not None), default=None)
    took = min((each.seconds for each in done), default=None)
    words = [_named(each) for each in reply.processes if each.state in ("failed", "busy")]
    # A process that loads data has no devices, beside one that trains.
    words += [each.error for each in reply.processes if each.state == "idle" and not done]
    words += [f"cut off after {each.seconds:.1f} s: {each.cut}" for each in done if each.cut]
    size = reply.bytes
    if size > limit_bytes:
        less = f"--max-size {(size >> 20) + 1}, or less than --seconds {seconds:g}"
        words, size = [f"a trace of {size >> 20} MiB is not fetched (limit {limit_bytes >> 20} MiB: {less})"], 0
    if not words and not size:
        words = ["no trace came of it"]
    return WorkerTrace(worker, size, len(done), late, took, "; ".join(dict.fromkeys(words)))


def _named(process: TraceProcess) -> str:
    return "its program traces itself just now" if process.state == "busy" else process.error


def spread_of(rows: Iterable[WorkerTrace]) -> float | None:
    """Seconds between the first worker and the last to begin."""
    late = [row.late for row in rows if row.late is not None]
    return max(late) - min(late) if len(late) > 1 else None


def describe_progress(replies: Iterable[TraceReply]) -> str:
    """`3 tracing, 1 writing`: how far processes are."""
    states = [process.state for reply in replies for process in reply.processes]
    return ", ".join(f"{states.count(state)} {state}" for state in (*UNDER_WAY, "done") if state in states)


def with_unfetched(rows: Sequence[WorkerTrace], results: Iterable[RemoteResult]) -> list[WorkerTrace]:
    """The rows, without those that did not arrive."""
    failed = {each.worker: each.detail or str(each.failure or "failed") for each in results if not each.ok}
    return [
        replace(row, size_bytes=0, trouble=f"not fetched: {failed[row.worker]}")
        if row.worker in failed
        else row
        for row in rows
    ]


def group_troubles(rows: Iterable[WorkerTrace]) -> Mapping[str, list[int]]:
    """The workers that have each trouble."""
    found: dict[str, list[int]] = {}
    for row in rows:
        if row.trouble:
            found.setdefault(row.trouble, []).append(row.worker)
    return found
