"""Whether a run gets anywhere: its checkpoints in the bucket against its attempts."""

from __future__ import annotations

from msgspec.structs import replace

from tpuctl.engine.events import Warn
from tpuctl.engine.services import Services
from tpuctl.errors import TpuctlError
from tpuctl.model.attempts import Attempt, Cause
from tpuctl.model.records import RunRecord
from tpuctl.runs.checkpoints import FRUITLESS_MAX, checkpoint_times, describe_fruitless
from tpuctl.state.journal import record_decision
from tpuctl.state.repository import get_run, list_attempts, save

_CLOUDS_DOING = {Cause.PREEMPTED, Cause.HOST_LOST}
_LOSES_WORK = _CLOUDS_DOING | {Cause.FAILED, Cause.RESTART_ASKED, Cause.STALLED, Cause.NOT_FINITE}
"""Ends of which it is told how much was done since the newest checkpoint."""


def weigh_progress(services: Services, run: RunRecord, attempt: Attempt) -> RunRecord:
    """The run with its newest checkpoint and its count of fruitless attempts after `attempt` ended, and with a
    question to a person when there were too many. Only runs whose checkpoints can be read are judged."""
    judged = attempt.cause in _CLOUDS_DOING and not run.state.final
    if run.checkpoint_place is None or not (judged or (attempt.started_at and attempt.cause in _LOSES_WORK)):
        return run
    # With its slash: `run10` has nothing to do with `run1`.
    place = f"{run.checkpoint_place.rstrip('/')}/"
    try:
        times = checkpoint_times(services.objects.list(place), place.removeprefix("gs://").partition("/")[2])
    except TpuctlError as error:
        services.emit(Warn(run.id, f"its checkpoints cannot be read: {error.message}"))
        return run
    newest = max(times, default=0.0)
    if newest > run.newest_checkpoint:
        return replace(run, fruitless=0, newest_checkpoint=newest)
    if not judged:
        return run
    fruitless = run.fruitless + 1
    if fruitless < FRUITLESS_MAX:
        return replace(run, fruitless=fruitless)
    attempts = [*list_attempts(services, run.id)[-FRUITLESS_MAX + 1 :], attempt]
    question = describe_fruitless(attempts, times)
    record_decision(services, run.key, "needs-a-human", question)
    return replace(run, fruitless=fruitless, question=question)


def go_on(services: Services, run_id: str) -> RunRecord:
    """A person has seen the question of a run and wants it to go on."""
    stored = get_run(services, run_id)
    if not stored.record.question:
        return stored.record
    record_decision(services, stored.record.key, "go-on", f"asked for by {services.user}")
    return save(services, stored, replace(stored.record, question="", fruitless=0)).record
