"""Runs as lists tell of them. Nearly all of thousands are over, and of each of those a list tells a few values:
records of all that their attempts and hosts said took four times as long."""

from __future__ import annotations

from msgspec import Struct

from tpuctl.engine.ports import Document
from tpuctl.engine.services import Services
from tpuctl.errors import DamagedRecordError
from tpuctl.model.attempts import Failure, RunTotals
from tpuctl.model.records import RunRecord, RunState
from tpuctl.state.repository import RUNS, decode


class ListedReceipt(Struct, frozen=True):
    """A part of `model.receipt.Receipt`."""

    uri: str


class ListedSpec(Struct, frozen=True):
    """A part of `RunSpec`."""

    slice_name: str
    argv: tuple[str, ...]
    group: str = ""
    tags: tuple[str, ...] = ()
    data: tuple[ListedReceipt, ...] = ()
    synthetic: bool = False


class ListedAttempt(Struct, frozen=True):
    """A part of `Attempt`."""

    number: int
    failure: Failure | None = None
    step: float | None = None
    steps: float | None = None
    steps_per_s: float | None = None


class EndedRun(Struct, frozen=True):
    """The part of the `RunRecord` of a run that is over which lists tell."""

    id: str
    spec: ListedSpec
    owner: str
    created_at: float
    state: RunState
    attempt: ListedAttempt | None = None
    failures: int = 0
    preemptions: int = 0
    ended_at: float | None = None
    reason: str = ""
    chips: tuple[int, ...] = ()
    totals: RunTotals | None = None

    @property
    def slice_name(self) -> str:
        return self.spec.slice_name


def listed_runs(services: Services) -> tuple[list[RunRecord | EndedRun], list[DamagedRecordError]]:
    """As `readable_runs`, but that nothing is known of what no list tells of a run that is over."""
    found = services.store.read_all(f"{RUNS.kind}/", _listed)
    damaged = [each for each in found if isinstance(each, DamagedRecordError)]
    return [each for each in found if not isinstance(each, DamagedRecordError)], damaged


def _listed(document: Document) -> RunRecord | EndedRun | DamagedRecordError:
    try:
        ended = decode(EndedRun, document)
        # What has no reason of its own is told by the troubles of its attempt.
        return ended if ended.state.final and ended.reason else decode(RunRecord, document)
    except DamagedRecordError as error:
        return error
