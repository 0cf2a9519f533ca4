"""Reconcile context of one run: what was seen of it, the lease of its slice, and its record as last written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from tpuctl.engine.services import Services
from tpuctl.errors import StaleRecordError
from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.model.attempts import GIVEN_UP, MOUNT_BACK, MOUNT_LOST, Attempt, TimelineEntry, event_id
from tpuctl.model.records import RunRecord, RunState, SliceRecord
from tpuctl.runs.attempt import AttemptHosts, attempt_hosts
from tpuctl.state.journal import decided_at, read_events, record_decision
from tpuctl.state.repository import Versioned, save


class RunContext:
    """What every effect on a run is given, and the only way to write its record and its journal. Calls to hosts
    end at `until`."""

    def __init__(
        self,
        services: Services,
        stored: Versioned[RunRecord],
        slice_: SliceRecord | None,
        workers: Sequence[WorkerStatus],
        fence: int,
        until: float,
    ) -> None:
        self.services = services
        self.slice = slice_
        self.workers = workers
        self.fence = fence
        self.until = until
        self._stored = stored

    @property
    def run(self) -> RunRecord:
        """As the effects so far have left it."""
        return self._stored.record

    @property
    def attempt(self) -> Attempt:
        """Raises StaleRecordError for a run without one."""
        attempt = self.run.attempt
        if attempt is None:
            raise StaleRecordError(f"run {self.run.id} has no attempt")
        return attempt

    def save(self, run: RunRecord) -> None:
        """Raises StaleRecordError when somebody else wrote since it was read."""
        self._stored = save(self.services, self._stored, run)

    def save_attempt(self, attempt: Attempt, **run_changes: object) -> None:
        """The same, for the current attempt."""
        self.save(replace(self.run, attempt=attempt, **run_changes))

    def journal(self, action: str, reason: str, *, event: str = "") -> float:
        """Writes into the run's journal what is about to be done, and why; returns the time. `event` is the id
        under which hooks are told."""
        incarnation = self.slice.incarnation if self.slice else None
        name, fence = incarnation.cloud_name if incarnation else "", self.fence
        return record_decision(
            self.services, self.run.key, action, reason, incarnation=name, fence=fence, event=event
        )

    def journal_end(self, run: RunRecord) -> None:
        """The same, of a run that is to be final."""
        lost = run.state in {RunState.FAILED, RunState.GAVE_UP}
        self.journal(run.state, run.reason, event=GIVEN_UP if lost else "")

    def tell(self, *told: tuple[str, str]) -> tuple[TimelineEntry, ...]:
        """The timeline of the attempt with these events and details, for its record. The journal has each of
        them first, under its position. What a crash left in the journal alone comes into the timeline now, and
        is not written again."""
        attempt, timeline = self.attempt, [*self.attempt.timeline]
        known = read_events(self.services, self.run.key, self.run.created_at) if told else {}
        while (left := known.get(event_id(attempt.number, len(timeline)))) is not None:
            timeline.append(TimelineEntry(decided_at(left), str(left["action"]), str(left["reason"])))
        again = Counter(_same(each.event, each.detail) for each in timeline[len(attempt.timeline) :])
        for event, detail in told:
            again[_same(event, detail)] -= 1
            if again[_same(event, detail)] < 0:
                at = self.journal(event, detail, event=event_id(attempt.number, len(timeline)))
                timeline.append(TimelineEntry(at, event, detail))
        return tuple(timeline)

    def entry(self, event: str, detail: str = "") -> TimelineEntry:
        """For the timeline of the attempt, of what the journal has in other words."""
        return TimelineEntry(self.services.store.now(), event, detail)

    def hosts(self) -> AttemptHosts | None:
        """Those of the current attempt, as its record is now; None where they are gone."""
        return attempt_hosts(self.services, self.run, self.slice, self.until)


def _same(event: str, detail: str) -> tuple[str, str]:
    """By what an event is known again after a crash: details may tell how long something takes, but those of
    mounts say which."""
    return event, detail if event in {MOUNT_LOST, MOUNT_BACK} else ""
