"""The life of a slice as a picture."""

from __future__ import annotations

import pytest

from tpuctl.slices.states import TRANSITIONS, LossKind
from tpuctl.views.slice_timeline import LEADS, TITLES, draw_slice


def told(*rows: tuple[str, str]) -> list[dict[str, str]]:
    return [{"at": f"2026-11-21T{at}Z", "action": action} for at, action in rows]


NOON = 1795262400.0
"""2026-11-21T12:00:00Z."""


def test_states_follow_each_other_without_gaps():
    rows = told(
        ("08:00:00", "up"),
        ("08:00:01", "create"),
        ("09:00:00", "booting"),
        ("09:06:00", "ready"),
        ("09:30:00", "keys"),
        ("11:00:00", "preempted"),
        ("11:00:10", "create"),
    )
    drawn = draw_slice(rows, NOON)
    assert [part.phase for part in drawn.segments] == ["waiting", "provisioning", "training", "lost", "waiting"]
    assert [part.x for part in drawn.segments] == pytest.approx([0.0, 25.0, 27.5, 75.0, 75.069], abs=0.001)
    ends = [part.x + part.width for part in drawn.segments]
    assert ends == pytest.approx([*(part.x for part in drawn.segments[1:]), 100.0], abs=0.01)
    assert drawn.times == ("08:00", "10:00", "12:00")
    assert drawn.said == "waiting for capacity 120 min; coming up 6 min; ready 114 min; lost 10 s"
    assert {share.title for share in drawn.shares} <= set(TITLES.values())


@pytest.mark.parametrize(
    ("rows", "phases"),
    [
        (told(), None),
        (told(("08:00:00", "keys")), None),
        (told(("08:00:00", "adopt")), ["training"]),
        (told(("08:00:00", "ready"), ("08:00:00", "down")), ["training", "unseen"]),
        (told(("13:00:00", "ready")), ["training"]),
    ],
)
def test_odd_journals_are_drawn_too(rows, phases):
    """Nothing that tells of a state, two at once, and one of a clock ahead of ours."""
    drawn = draw_slice(rows, NOON)
    assert (None if drawn is None else [part.phase for part in drawn.segments]) == phases
    assert drawn is None or all(0 <= part.x <= 100 and 0 <= part.width <= 100 for part in drawn.segments)


def test_each_state_and_loss_that_the_loop_writes_down_is_drawn():
    moved = {to.state for to in TRANSITIONS.values() if to.effect is None}
    assert moved | set(LossKind) <= LEADS.keys()


def test_a_queue_and_pauses_after_failed_tries_are_no_coming_up():
    rows = told(
        ("00:00:00", "up"),
        ("00:00:01", "create"),
        ("00:00:02", "create-failed"),
        ("02:00:00", "renew"),
        ("02:00:01", "create"),
        ("02:00:02", "provisioning"),
        ("11:00:00", "booting"),
        ("11:30:00", "ready"),
    )
    spent = {share.title: share.said for share in draw_slice(rows, NOON).shares}
    failed = "not made: tried again later, or refused"
    assert spent == {"waiting for capacity": "9 h", failed: "120 min", "coming up": "30 min", "ready": "30 min"}


def test_mounts_that_are_added_to_a_ready_slice_leave_it_ready():
    drawn = draw_slice(told(("08:00:00", "ready"), ("09:00:00", "mounts")), NOON)
    assert [part.phase for part in drawn.segments] == ["training"]
