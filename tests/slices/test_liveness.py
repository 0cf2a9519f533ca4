"""What silence and heartbeats prove: the tables."""

from __future__ import annotations

import itertools

import pytest

from tpuctl.lib.codec import from_data, to_data
from tpuctl.model import timeouts
from tpuctl.slices.liveness import Beats, Life, Silence, count_read, due, judge_beats, judge_silence

GAP, ENOUGH = timeouts.BEAT_READ_GAP_S, timeouts.BEAT_STILL_READS


def reads(*values: dict[int, str], gap_s: float = GAP, name: str = "big-1") -> Beats:
    """The heartbeats after so many reads, one after the other."""
    beats: Beats | None = None
    for number, each in enumerate(values):
        beats = count_read(beats, name, each, 1000.0 + number * gap_s)
    assert beats is not None
    return beats


@pytest.mark.parametrize(
    ("values", "life"),
    [
        ([], Life.UNKNOWN),
        (["a"], Life.UNKNOWN),
        (["a"] * (ENOUGH - 1), Life.UNKNOWN),
        (["a"] * ENOUGH, Life.STILL),
        (["a", "b"], Life.MOVING),
        (["a", "b"] + ["b"] * (ENOUGH - 2), Life.MOVING),
        (["a", "b"] + ["b"] * (ENOUGH - 1), Life.STILL),
        (["a"] * 20 + ["b"], Life.MOVING),
        (["b", "a", "b"], Life.MOVING),
    ],
)
def test_a_heartbeat_moves_stands_still_or_is_not_known_yet(values, life):
    beats = reads(*[{0: value} for value in values]) if values else reads({})
    assert judge_beats(beats, [0], others_answer=False) is life


def test_a_heartbeat_that_was_withdrawn_proves_nothing():
    beats = reads(*[{0: "a"}] * ENOUGH, {})
    assert judge_beats(beats, [0], others_answer=False) is Life.UNKNOWN
    assert judge_beats(count_read(beats, "big-1", {0: "a"}, 2000.0), [0], others_answer=False) is Life.UNKNOWN


def test_only_the_heartbeats_of_this_incarnation_and_of_late_count():
    still = reads(*[{0: "a"}] * ENOUGH)
    assert judge_beats(count_read(still, "big-2", {0: "a"}, still.read_at + GAP), [0], others_answer=False) is (
        Life.UNKNOWN
    )
    later = still.read_at + timeouts.BEAT_FORGET_S + 1
    for value in ("a", "b"):
        beats = count_read(still, "big-1", {0: value}, later)
        assert judge_beats(beats, [0], others_answer=False) is Life.UNKNOWN


def test_a_clock_that_jumps_makes_no_heartbeat_stand_still():
    beats = count_read(reads({0: "a"}), "big-1", {0: "a"}, 1000.0 + timeouts.BEAT_FORGET_S - 1)
    assert judge_beats(beats, [0], others_answer=False) is Life.UNKNOWN
    assert due(beats, beats.read_at - GAP)
    assert due(beats, beats.read_at + GAP)
    assert not due(beats, beats.read_at + GAP - 1)
    assert due(None, 0.0)


MOVES, STANDS = ["a", *"bcdefghij"], ["x"] * 10


@pytest.mark.parametrize(
    ("workers", "silent", "others", "life"),
    [
        ([MOVES, MOVES], {0, 1}, False, Life.MOVING),
        ([MOVES, STANDS], {0, 1}, False, Life.MOVING),
        ([MOVES, STANDS], {0, 1}, True, Life.UNKNOWN),
        ([MOVES, MOVES], {0, 1}, True, Life.MOVING),
        ([MOVES, STANDS], {1}, True, Life.STILL),
        ([MOVES, STANDS], {0}, True, Life.MOVING),
        ([STANDS, STANDS], {0, 1}, False, Life.STILL),
        ([MOVES], {0, 1}, True, Life.UNKNOWN),
        ([MOVES], {0, 1}, False, Life.MOVING),
        ([STANDS], {0, 1}, False, Life.STILL),
        ([MOVES], set(), False, Life.UNKNOWN),
    ],
)
def test_one_host_speaks_for_others_only_where_none_answers(workers, silent, others, life):
    rows = [{worker: values[read] for worker, values in enumerate(workers)} for read in range(10)]
    beats = from_data(Beats, to_data(reads(*rows)))
    assert judge_beats(beats, silent, others_answer=others) is life


@pytest.mark.parametrize(
    ("silent_s", "another", "sick", "life"),
    list(
        itertools.product(
            (0.0, timeouts.BOOT_GRACE_S, timeouts.UNREACHABLE_MAX_S), (False, True), (False, True), list(Life)
        )
    ),
)
def test_nothing_is_given_up_that_shows_life_or_against_which_nothing_speaks(silent_s, another, sick, life):
    judged = judge_silence(silent_s, reached_another=another, unhealthy=sick, life=life)
    evidence = another or sick or life is Life.STILL
    if life is Life.MOVING:
        assert judged is Silence.BLIND
    elif silent_s < timeouts.BOOT_GRACE_S:
        assert judged is Silence.WAIT
    elif not evidence:
        assert judged is Silence.BLIND
    else:
        late = silent_s >= timeouts.UNREACHABLE_MAX_S
        assert judged is (Silence.GIVE_UP if late else Silence.WAIT)
