"""Reconcile context of one run: what was seen of it, the lease of its slice, and its record as last written."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tpuctl.engine.services import Services
from tpuctl.errors import StaleRecordError
from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.model.attempts import Attempt, TimelineEntry
from tpuctl.model.records import RunRecord, SliceRecord
from tpuctl.runs.attempt import AttemptHosts, attempt_hosts
from tpuctl.state.journal import record_decision
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

    def journal(self, action: str, reason: str) -> None:
        """Writes into the run's journal what is about to be done, and why."""
        incarnation = self.slice.incarnation if self.slice else None
        name = incarnation.cloud_name if incarnation else ""
        record_decision(self.services, self.run.key, action, reason, incarnation=name, fence=self.fence)

    def entry(self, event: str, detail: str = "") -> TimelineEntry:
        """For the timeline of the attempt."""
        return TimelineEntry(self.services.store.now(), event, detail)

    def hosts(self) -> AttemptHosts | None:
        """Those of the current attempt, as its record is now; None where they are gone."""
        return attempt_hosts(self.services, self.run, self.slice, self.until)
