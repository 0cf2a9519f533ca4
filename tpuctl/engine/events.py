"""What workflows tell the user while they work; `cli/live.py` draws these."""

from __future__ import annotations

from msgspec import Struct

from tpuctl.lib.text import Place


class StepStarted(Struct, frozen=True):
    """A step that changes something is about to begin."""

    subject: str
    action: str
    reason: str


class StepDone(Struct, frozen=True):
    """That step has ended well. `seconds` is how long it took."""

    subject: str
    action: str
    detail: str
    seconds: float


class Pace(Struct, frozen=True):
    """How long something has been on its way (since `begun`, epoch seconds), and how long it took before."""

    begun: float
    usual_s: float | None = None


class Waiting(Struct, frozen=True):
    """Nothing to do but wait for `why`. Times are epoch seconds; `until` is None when nobody knows."""

    subject: str
    why: str
    since: float
    until: float | None = None
    pace: Pace | None = None
    coming: bool = False
    """As in `Wait`, and so is `progress`."""
    progress: str = ""


class Note(Struct, frozen=True):
    """Worth knowing; the subject is empty where the text begins with it."""

    subject: str
    text: str


class Warn(Struct, frozen=True):
    """Worth acting on; the subject is empty where the text begins with it."""

    subject: str
    text: str


class WorkerOutput(Struct, frozen=True):
    """A chunk of what a worker's program wrote, or one of its processes; `stream` is "stdout" or "stderr"."""

    subject: str
    worker: Place
    stream: str
    data: bytes
    workers: int = 1
    """How many of them take part, for folding identical lines."""


class Transfer(Struct, frozen=True):
    """Contents on their way to workers: bytes that left this machine, bytes fetched from neighbours, workers
    that have everything. `back`: on their way from workers, which are done when we have everything of theirs.
    `seconds` since it began."""

    subject: str
    sent_bytes: int
    total_bytes: int
    relayed_bytes: int
    hosts_done: int
    hosts: int
    seconds: float
    back: bool = False

    @property
    def bytes_per_s(self) -> float:
        return (self.sent_bytes + self.relayed_bytes) / max(self.seconds, 0.001)


class DataProgress(Struct, frozen=True):
    """Files on their way to or from shards in a bucket; `action` is what happens to them, as `packed`.
    `seconds` since it began."""

    subject: str
    action: str
    done_bytes: int
    total_bytes: int
    done_files: int
    files: int
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        return self.done_bytes / max(self.seconds, 0.001)


Event = StepStarted | StepDone | Waiting | Note | Warn | WorkerOutput | Transfer | DataProgress
