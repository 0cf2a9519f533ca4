"""The table of a run: complete, with an effect for each row, and an event for whatever a pass may see."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from tests.support.builders import a_run, a_slice, an_attempt
from tpuctl.hosts.protocol import WorkerState, WorkerStatus
from tpuctl.model.records import AttemptPhase, Cause, Desired, RunState, SliceState
from tpuctl.model.verdict import Blind
from tpuctl.runs.effects import EFFECTS
from tpuctl.runs.plan import SEEN, RunObservation, classify_run, plan_run
from tpuctl.runs.states import IGNORED, REASONS, TRANSITIONS, RunEffect, RunEvent, RunPhase, phase_of
from tpuctl.slices.states import ObservedEvent, SliceEvent

NOW = 5000.0
PAIRS = list(itertools.product(RunPhase, RunEvent))


@pytest.mark.parametrize(("phase", "event"), PAIRS)
def test_every_pair_is_either_a_transition_or_ignored_with_a_reason(phase: RunPhase, event: RunEvent) -> None:
    assert ((phase, event) in TRANSITIONS) != ((phase, event) in IGNORED)
    assert TRANSITIONS.get((phase, event)) or IGNORED[phase, event]


def test_a_pair_is_ignored_for_one_reason() -> None:
    named = Counter(pair for phases, events, _ in REASONS for pair in itertools.product(phases, events))
    assert set(named.values()) == {1}


def test_every_effect_is_asked_for_and_done() -> None:
    assert set(EFFECTS) == set(RunEffect) == {to.effect for to in TRANSITIONS.values()} - {None}


def test_an_end_has_a_cause_and_nothing_else_has_one() -> None:
    for to in TRANSITIONS.values():
        assert (to.cause is not None) == (to.effect is RunEffect.BEGIN_END) == (to.cause in set(Cause))
        assert to.cause is None or to.phase is RunPhase.ENDING


def test_what_proves_nothing_changes_nothing() -> None:
    for phase in RunPhase:
        to = TRANSITIONS.get((phase, RunEvent.BLIND))
        assert to is None or (to.phase, to.effect) == (phase, None)


def test_an_attempt_ends_only_by_way_of_a_cause_that_was_written_down() -> None:
    over = {phase for (phase, _), to in TRANSITIONS.items() if to.effect is RunEffect.END_ATTEMPT}
    assert over == {RunPhase.ENDING}


def test_what_is_looked_for_is_a_row_of_some_phase() -> None:
    rows = {event for _, event in TRANSITIONS}
    assert {event for events, _ in SEEN for event in events} <= rows == set(RunEvent)


STATES = [(*pair, RunState.RUNNING) for pair in itertools.product([None, *AttemptPhase], [False, True])]
STATES += [(AttemptPhase.ENDED, False, RunState.FAILED)]
WORKERS = [[], *([WorkerStatus(n, state) for n, state in enumerate(each)]
    for each in itertools.combinations_with_replacement(WorkerState, 2))]  # fmt: skip
CLOUD = [None, *(ObservedEvent(event, event) for event in SliceEvent)]


@pytest.mark.parametrize(("phase", "stop_asked", "state"), STATES)
def test_whatever_is_seen_of_a_run_is_an_event_of_the_table(
    phase: AttemptPhase | None, stop_asked: bool, state: RunState
) -> None:
    """Each state of a slice, with each event of the cloud, with all states of two workers, before and after a
    doubt."""
    slices = [None, *(a_slice(state=s, desired=d) for s, d in itertools.product(SliceState, Desired))]
    for suspect, unclear in itertools.product((None, 1000.0), (None, Blind("cut off"))):
        attempt = an_attempt(state=phase, suspect_since=suspect) if phase is not None else None
        run = a_run(state=state, attempt=attempt, stop_asked=stop_asked)
        seen = [(s, c, []) for s, c in itertools.product(slices, CLOUD)]
        seen += [(a_slice(), c, workers) for c, workers in itertools.product(CLOUD, WORKERS)]
        for slice_, cloud, workers in seen:
            if unclear is not None and not workers:
                continue
            observation = RunObservation(run, slice_, cloud, workers, NOW, unclear=unclear)
            assert (phase_of(run), classify_run(observation).event) in TRANSITIONS
            assert plan_run(observation).verdict
