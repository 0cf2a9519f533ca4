"""Whether a run gets anywhere, told from its checkpoints."""

from __future__ import annotations

import itertools

from tests.support.builders import a_run, a_slice, an_attempt
from tpuctl.model.attempts import AttemptPhase, Cause
from tpuctl.model.cloud import ObjectInfo
from tpuctl.model.records import RunState
from tpuctl.model.verdict import Blocked
from tpuctl.runs.checkpoints import checkpoint_times, describe_fruitless
from tpuctl.runs.plan import RunObservation, plan_run


def written(name: str, minute: int) -> ObjectInfo:
    return ObjectInfo(name, 1, 10, f"2026-11-21T10:{minute:02d}:00+00:00")


def test_a_checkpoint_is_complete_with_its_last_object_and_folder_markers_do_not_count():
    times = checkpoint_times(
        [
            written("runs/r1/", 1),
            written("runs/r1/step_100/a", 5),
            written("runs/r1/step_100/b", 7),
            written("runs/r1/step_200/a", 38),
            written("runs/r1/step_300/", 59),
            written("runs/r1/.tpuctl-access", 59),
            ObjectInfo("runs/r1/step_400/a", 1, 1),
        ],
        "runs/r1",
    )
    assert [later - earlier for earlier, later in itertools.pairwise(times)] == [31 * 60]


def test_the_question_says_how_long_attempts_live_and_how_long_a_checkpoint_takes():
    lives = [an_attempt(started_at=0.0, ended_at=60.0 * minutes) for minutes in (10, 22, 40)]
    assert describe_fruitless(lives, [0.0, 31 * 60.0]) == (
        "5 attempts ended without a newer checkpoint: median life 22 min, one checkpoint interval 31 min"
    )
    assert describe_fruitless(lives, []).endswith("no checkpoint was ever written")


def test_a_run_with_a_question_waits_for_an_answer():
    ended = an_attempt(state=AttemptPhase.ENDED, cause=Cause.PREEMPTED)
    run = a_run(state=RunState.WAITING, attempt=ended, question="no newer checkpoint")
    plan = plan_run(RunObservation(run, a_slice(), None, [], 5000.0))
    assert plan.effect is None
    assert plan.verdict == Blocked("no newer checkpoint", "tpuctl attach r1 --go-on")
