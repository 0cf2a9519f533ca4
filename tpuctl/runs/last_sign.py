"""Until when the slice of an attempt is known to have existed: its hosts were paid for and worked until then.

The cloud does not say when it took a slice. Between the last sign of it and the moment at which it was seen
gone, nobody can tell whether it ran and was paid for.
"""

from __future__ import annotations

from collections.abc import Iterable

from tpuctl.engine.services import Services
from tpuctl.hosts.protocol import WorkerState
from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.model.attempts import Attempt
from tpuctl.model.processes import times_of
from tpuctl.model.records import RunRecord
from tpuctl.runs.log_lines import parse_times
from tpuctl.slices.observe import Observation
from tpuctl.slices.states import SliceEvent

_INDEX_TAIL = 256
"""Bytes of the index of a log: its last lines, of 30 bytes each."""


def alive_until(attempt: Attempt, moments: Iterable[float], gone_at: float) -> float:
    """The last sign of the slice before `gone_at`, when it was seen gone: one of `moments`, or what the
    timeline tells, for whoever wrote that had seen the hosts."""
    begun = min(attempt.started_at or attempt.created_at, gone_at)
    told = (entry.at for entry in attempt.timeline)
    return max([begun, *(at for at in (*told, *moments) if at < gone_at)])


def note_sign(
    services: Services, run: RunRecord, observation: Observation | None, workers: Iterable[WorkerStatus] = ()
) -> None:
    """Keeps in mind that the slice of the run's attempt is there, where this look at it shows that."""
    if run.attempt is None:
        return
    life = observation.record.incarnation if observation is not None else None
    ready = (
        observation is not None
        and observation.observed.event is SliceEvent.NODE_READY
        and life is not None
        and life.number == run.attempt.incarnation
    )
    if ready or any(worker.state is not WorkerState.UNREACHABLE for worker in workers):
        services.sightings.saw(run.slice_name, run.attempt.incarnation, services.store.now())


def find_alive_until(services: Services, run: RunRecord, attempt: Attempt, gone_at: float) -> float:
    """`alive_until` by what this process saw, and by when the program wrote what is here of its output."""
    seen = services.sightings.last(run.slice_name, attempt.incarnation)
    written: list[float] = []
    for worker in attempt.workers:
        for stream in attempt.streams:
            tail = services.logs.tail(run.id, attempt.number, worker, times_of(stream), _INDEX_TAIL)
            written += parse_times(tail).times[-1:]
    return alive_until(attempt, [*written, *([] if seen is None else [seen])], gone_at)
