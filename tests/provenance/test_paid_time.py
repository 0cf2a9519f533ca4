"""Money and time count while a TPU was there: what nobody saw is told apart."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.builders import a_run, a_slice, an_attempt, an_incarnation
from tpuctl.model.attempts import Attempt, Cause, RunTotals, TimelineEntry
from tpuctl.model.records import SliceState
from tpuctl.provenance.build import build_attempt, build_current, build_totals
from tpuctl.provenance.phases import cost_by_phase, split_phases
from tpuctl.runs.last_sign import alive_until

PRICE: dict[str, Any] = {"chips": 8, "usd_per_hour": 3600.0}
"""A dollar a second."""


def taken(**changes: Any) -> Attempt:
    """Ready at 100, begun at 120, seen last at 400 and seen gone at 540."""
    values = {"created_at": 110.0, "started_at": 120.0, "provisioned_at": 100.0, "alive_at": 400.0}
    return an_attempt(**{**values, "cause": Cause.PREEMPTED, "ended_at": 540.0, **changes})


def phases(row: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in split_phases(row["phases"]).items() if value}


def test_a_slice_that_was_taken_is_neither_run_nor_lost_nor_paid_after_the_last_sign_of_it():
    attempt = taken()
    run = a_run(attempt=attempt, created_at=0.0, checkpoint_dir="gs://b/c", newest_checkpoint=370.0)
    row = build_attempt(run, attempt, "big", since=0.0)
    assert (row["phases"]["running_s"], row["phases"]["lost_s"], row["phases"]["unseen_s"]) == (280, 30, 140)
    assert phases(row) == {
        "waiting": 100,
        "provisioning": 10,
        "preparing": 10,
        "training": 250,
        "lost": 30,
        "unseen": 140,
    }
    totals = build_totals([row], **PRICE)
    assert totals == RunTotals(round(250 / 540, 4), round(8 * 300 / 3600, 3), 300.0, 140.0)
    parts = {name: each.usd for name, each in cost_by_phase([row], totals).items()}
    assert parts.pop("unseen") == 140.0
    assert sum(usd for usd in parts.values() if usd is not None) == totals.usd


@pytest.mark.parametrize(
    ("cause", "running", "unseen"), [(Cause.FAILED, 420, 0), (Cause.HOST_LOST, 420, 0), (Cause.STOPPED, 420, 0)]
)
def test_a_slice_that_was_there_to_the_end_is_paid_to_the_end(cause, running, unseen):
    attempt = taken(cause=cause, alive_at=None)
    row = build_attempt(a_run(attempt=attempt), attempt, "big", since=0.0)
    assert (row["phases"]["running_s"], row["phases"]["unseen_s"]) == (running, unseen)
    assert build_totals([row], **PRICE).unseen_usd is None


def test_a_slice_that_was_taken_while_its_code_was_on_the_way_was_never_run():
    attempt = taken(started_at=None, alive_at=115.0)
    row = build_attempt(a_run(attempt=attempt), attempt, "big", since=0.0)
    assert phases(row) == {"waiting": 100, "provisioning": 10, "preparing": 5, "unseen": 425}


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        (Cause.HOST_LOST, {"unseen": 60, "waiting": 100, "provisioning": 10}),
        (Cause.PREEMPTED, {"waiting": 160, "provisioning": 10}),
    ],
)
def test_a_slice_that_an_attempt_left_alive_may_be_paid_until_the_next_is_asked_for(cause, told):
    first = taken(cause=cause)
    before = build_attempt(a_run(attempt=first), first, "big", since=0.0)
    second = an_attempt(
        number=2, incarnation=2, requested_at=600.0, provisioned_at=700.0, created_at=710.0, started_at=710.0
    )
    row = build_attempt(
        a_run(attempt=second), replace(second, ended_at=710.0), "big", since=540.0, before=before
    )
    assert phases(row) == told


@pytest.mark.parametrize(
    ("state", "number", "cause", "told"),
    [
        pytest.param(
            SliceState.BOOTING, 1, Cause.HOST_LOST, {"provisioning": 460}, id="hosts-in-doubt-are-paid"
        ),
        pytest.param(
            SliceState.LOST, 1, Cause.HOST_LOST, {"unseen": 460}, id="given-up-and-perhaps-not-deleted"
        ),
        pytest.param(SliceState.LOST, 1, Cause.PREEMPTED, {"waiting": 460}, id="taken"),
        pytest.param(
            SliceState.INITIALIZING,
            2,
            Cause.HOST_LOST,
            {"unseen": 60, "waiting": 200, "provisioning": 200},
            id="the-next-is-being-prepared",
        ),
    ],
)
def test_a_run_that_waits_pays_for_the_slice_that_is_there(state, number, cause, told):
    first = taken(cause=cause)
    before = build_attempt(a_run(attempt=first), first, "big", since=0.0)
    life = an_incarnation(number=number, requested_at=600.0, cloud_ready_at=800.0)
    row = build_current(
        a_run(attempt=first),
        "big",
        since=540.0,
        now=1000.0,
        slice_=a_slice(state=state, incarnation=life),
        before=before,
    )
    assert phases(row) == told
    assert build_totals([row], **PRICE).usd == told.get("provisioning")


@pytest.mark.parametrize(
    ("told", "moments", "last"),
    [
        pytest.param([], [], 120.0, id="nothing-but-its-start"),
        pytest.param([130.0, 300.0], [], 300.0, id="its-timeline"),
        pytest.param([130.0], [395.0, 200.0], 395.0, id="what-somebody-saw"),
        pytest.param([540.0, 541.0], [540.0, 900.0], 120.0, id="not-what-came-after"),
    ],
)
def test_the_last_sign_of_a_slice_is_the_newest_before_it_was_seen_gone(told, moments, last):
    attempt = taken(timeline=tuple(TimelineEntry(at, "stalled") for at in told))
    assert alive_until(attempt, moments, 540.0) == last
