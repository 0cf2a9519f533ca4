"""The table of a run on a cluster: complete, with an effect for each row and a row for each effect."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from tests.support.builders import a_run, an_attempt
from tests.support.kube_objects import a_cluster_run
from tpuctl.kube.reconcile import CHANGES, EFFECTS
from tpuctl.kube.states import (
    IGNORED,
    REASONS,
    TRANSITIONS,
    ClusterEffect,
    ClusterEvent,
    ClusterPhase,
    phase_of,
)
from tpuctl.model.attempts import AttemptPhase
from tpuctl.model.records import RunState

PAIRS = list(itertools.product(ClusterPhase, ClusterEvent))


def test_every_pair_is_either_a_transition_or_ignored_with_a_reason() -> None:
    assert [pair for pair in PAIRS if (pair in TRANSITIONS) == (pair in IGNORED)] == []


def test_a_pair_is_ignored_for_one_reason() -> None:
    named = Counter(pair for phases, events, _ in REASONS for pair in itertools.product(phases, events))
    assert set(named.values()) == {1}


def test_every_effect_is_asked_for_and_done() -> None:
    assert set(EFFECTS) == set(ClusterEffect) == {to.effect for to in TRANSITIONS.values()} - {None}


def test_nothing_is_applied_for_what_is_to_end_and_nothing_deleted_of_what_goes_on() -> None:
    for (phase, event), to in TRANSITIONS.items():
        if phase in (ClusterPhase.ENDING, ClusterPhase.OVER):
            assert to.effect is not ClusterEffect.APPLY
        if to.effect in CHANGES - {ClusterEffect.APPLY}:
            assert event in (ClusterEvent.TO_BE_DELETED, ClusterEvent.HOPELESS)


@pytest.mark.parametrize(
    ("changes", "phase"),
    [
        ({"attempt": None, "cluster": a_cluster_run(uid="")}, ClusterPhase.ASKED),
        ({"attempt": None}, ClusterPhase.QUEUED),
        ({"attempt": an_attempt(state=AttemptPhase.ENDED)}, ClusterPhase.QUEUED),
        ({"attempt": an_attempt(state=AttemptPhase.PREPARING)}, ClusterPhase.STARTING),
        ({}, ClusterPhase.RUNNING),
        ({"stop_asked": True}, ClusterPhase.ENDING),
        ({"attempt": an_attempt(state=AttemptPhase.ENDING)}, ClusterPhase.ENDING),
        ({"state": RunState.FAILED, "stop_asked": True}, ClusterPhase.OVER),
    ],
)
def test_the_phase_is_that_of_the_record(changes: dict[str, object], phase: ClusterPhase) -> None:
    assert phase_of(a_run(**{"cluster": a_cluster_run(), **changes})) is phase
