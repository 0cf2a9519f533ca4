"""What lists tell of runs that are not over, apart from what steps them: that imports all ways to hosts, which
took a third of the CPU of `tpuctl runs`."""

from __future__ import annotations

from tpuctl.engine.services import Services
from tpuctl.model import timeouts
from tpuctl.model.attempts import WorkerEnd
from tpuctl.model.records import Desired, RunRecord, RunState, SliceRecord
from tpuctl.state.repository import RUNS


def never_began(services: Services, record: SliceRecord) -> str:
    """Why nobody uses a slice that was made for a run, or an empty string: the command that wanted both ended
    before it wrote the run down. The same command again makes use of the slice."""
    incarnation = record.incarnation
    if record.run_id is None or record.desired is not Desired.UP or incarnation is None:
        return ""
    if services.store.now() < incarnation.requested_at + timeouts.RUN_BEGINS_S:
        return ""
    if RUNS.generation(services, record.run_id):
        return ""
    return (
        f"made for run {record.run_id}, which never began: `tpuctl down {record.name}`, or the same run again"
    )


def is_stop_confirmed(run: RunRecord) -> bool:
    """Whether its end was seen on every worker, as far as its record says."""
    return not unproven_ends(run)


def unproven_ends(run: RunRecord) -> list[WorkerEnd]:
    """Workers on which something of a stopped run lives, or may."""
    if run.state is not RunState.STOPPED or run.attempt is None:
        return []
    from tpuctl.hosts.protocol import ALIVE, SILENT

    return [end for end in run.attempt.ends if end.survivors or end.note in ALIVE | SILENT]
