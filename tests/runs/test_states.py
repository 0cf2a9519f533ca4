"""The table of a run: complete, with an effect for each row, and an event for whatever a pass may see."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from msgspec.structs import replace

from tests.support.builders import a_run, a_slice, an_attempt
from tpuctl.errors import PartialError
from tpuctl.hosts.protocol import WorkerState
from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.model.attempts import AttemptPhase, Cause
from tpuctl.model.records import Desired, RunState, SliceState
from tpuctl.model.timeouts import POLL_FIRST_S
from tpuctl.model.verdict import Blind
from tpuctl.runs.effects import EFFECTS
from tpuctl.runs.plan import SEEN, RunObservation, classify_run, plan_event, plan_run
from tpuctl.runs.states import IGNORED, REASONS, TRANSITIONS, RunEffect, RunEvent, RunPhase, phase_of
from tpuctl.runs.trouble import judge_lack, judge_refusal
from tpuctl.slices.states import ObservedEvent, SliceEvent

NOW = 5000.0
PAIRS = list(itertools.product(RunPhase, RunEvent))


def test_every_pair_is_either_a_transition_or_ignored_with_a_reason() -> None:
    assert [pair for pair in PAIRS if (pair in TRANSITIONS) == (pair in IGNORED)] == []
    assert [pair for pair in PAIRS if not (TRANSITIONS.get(pair) or IGNORED[pair])] == []


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


REPORTS = [
    ({"refused": [0]}, None, None, RunEvent.CLOSED, None),
    ({"broken": [0]}, None, None, RunEvent.PROMISE_BROKEN, None),
    ({"unreached": [0]}, None, None, RunEvent.REFUSED, None),
    ({"unreached": [0]}, None, 1000.0, RunEvent.HOST_LOST, Cause.HOST_LOST),
    ({"unreached": [0]}, None, NOW - 1.0, RunEvent.REFUSED, None),
    ({"differences": ["jax"]}, "mend it", None, RunEvent.DRIFTED, Cause.DRIFTED),
    ({"differences": ["jax"]}, None, None, RunEvent.REFUSED, None),
    ({}, "mend it", None, RunEvent.REFUSED, None),
    ({}, "mend it", NOW - 1.0, RunEvent.FAILED, Cause.FAILED),
]


@pytest.mark.parametrize(("details", "hint", "since", "event", "cause"), REPORTS)
def test_what_hosts_report_before_a_start_is_an_event_of_the_table(
    details: dict[str, object], hint: str | None, since: float | None, event: RunEvent, cause: Cause | None
) -> None:
    for phase in (AttemptPhase.PREPARING, AttemptPhase.STARTING):
        attempt = an_attempt(state=phase, suspect_since=since)
        run = a_run(attempt=attempt)
        found = judge_refusal(run, attempt, PartialError("it refuses", hint=hint, details=details), NOW)
        plan = plan_event(run, found)
        assert plan.event is event
        started = event is RunEvent.PROMISE_BROKEN and phase is AttemptPhase.STARTING
        assert plan.to.cause is (Cause.HOST_LOST if started else cause)


def test_what_a_project_lacks_ends_an_attempt_only_where_it_is_found_again() -> None:
    attempt = an_attempt(state=AttemptPhase.PREPARING)
    first = judge_lack(attempt, "no rule", "make one", NOW, may_pass=False)
    assert (first.event, first.changes["suspect_since"]) == (RunEvent.REFUSED, NOW)
    known = replace(attempt, **first.changes)
    again = judge_lack(known, "no rule", "make one", NOW + POLL_FIRST_S, may_pass=False)
    assert plan_event(a_run(attempt=known), again).to.cause is Cause.NOT_SET_UP
    assert judge_lack(known, "no rule", "make one", NOW + POLL_FIRST_S, may_pass=True).event is RunEvent.REFUSED
    assert judge_lack(known, "no bucket", "make that", NOW + 99.0, may_pass=False).event is RunEvent.REFUSED
