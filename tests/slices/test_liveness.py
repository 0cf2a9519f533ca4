"""What silence and heartbeats prove: the tables."""

from __future__ import annotations

import itertools

import pytest

from tpuctl.lib.codec import from_data, to_data
from tpuctl.model import timeouts
from tpuctl.slices.liveness import (
    Heartbeats,
    Liveness,
    Silence,
    classify_heartbeats,
    classify_silence,
    count_read,
    due,
    replacement_limit,
)

GAP, ENOUGH = timeouts.BEAT_READ_GAP_S, timeouts.BEAT_STILL_READS


def reads(*values: dict[int, str], gap_s: float = GAP, name: str = "big-1") -> Heartbeats:
    """The heartbeats after so many reads, one after the other."""
    heartbeats: Heartbeats | None = None
    for number, each in enumerate(values):
        heartbeats = count_read(heartbeats, name, each, 1000.0 + number * gap_s)
    assert heartbeats is not None
    return heartbeats


@pytest.mark.parametrize(
    ("values", "liveness"),
    [
        ([], Liveness.UNKNOWN),
        (["a"], Liveness.UNKNOWN),
        (["a"] * (ENOUGH - 1), Liveness.UNKNOWN),
        (["a"] * ENOUGH, Liveness.STILL),
        (["a", "b"], Liveness.MOVING),
        (["a", "b"] + ["b"] * (ENOUGH - 2), Liveness.MOVING),
        (["a", "b"] + ["b"] * (ENOUGH - 1), Liveness.STILL),
        (["a"] * 20 + ["b"], Liveness.MOVING),
        (["b", "a", "b"], Liveness.MOVING),
    ],
)
def test_a_heartbeat_moves_stands_still_or_is_not_known_yet(values, liveness):
    heartbeats = reads(*[{0: value} for value in values]) if values else reads({})
    assert classify_heartbeats(heartbeats, [0], others_answer=False) is liveness


def test_a_heartbeat_that_was_withdrawn_proves_nothing():
    heartbeats = reads(*[{0: "a"}] * ENOUGH, {})
    assert classify_heartbeats(heartbeats, [0], others_answer=False) is Liveness.UNKNOWN
    assert (
        classify_heartbeats(count_read(heartbeats, "big-1", {0: "a"}, 2000.0), [0], others_answer=False)
        is Liveness.UNKNOWN
    )


def test_only_the_heartbeats_of_this_incarnation_and_of_late_count():
    still = reads(*[{0: "a"}] * ENOUGH)
    assert classify_heartbeats(
        count_read(still, "big-2", {0: "a"}, still.read_at + GAP), [0], others_answer=False
    ) is (Liveness.UNKNOWN)
    later = still.read_at + timeouts.BEAT_FORGET_S + 1
    for value in ("a", "b"):
        heartbeats = count_read(still, "big-1", {0: value}, later)
        assert classify_heartbeats(heartbeats, [0], others_answer=False) is Liveness.UNKNOWN


def test_a_clock_that_jumps_makes_no_heartbeat_stand_still():
    heartbeats = count_read(reads({0: "a"}), "big-1", {0: "a"}, 1000.0 + timeouts.BEAT_FORGET_S - 1)
    assert classify_heartbeats(heartbeats, [0], others_answer=False) is Liveness.UNKNOWN
    assert due(heartbeats, heartbeats.read_at - GAP)
    assert due(heartbeats, heartbeats.read_at + GAP)
    assert not due(heartbeats, heartbeats.read_at + GAP - 1)
    assert due(None, 0.0)


MOVES, STANDS = ["a", *"bcdefghij"], ["x"] * 10


@pytest.mark.parametrize(
    ("workers", "silent", "others", "liveness"),
    [
        ([MOVES, MOVES], {0, 1}, False, Liveness.MOVING),
        ([MOVES, STANDS], {0, 1}, False, Liveness.MOVING),
        ([MOVES, STANDS], {0, 1}, True, Liveness.UNKNOWN),
        ([MOVES, MOVES], {0, 1}, True, Liveness.MOVING),
        ([MOVES, STANDS], {1}, True, Liveness.STILL),
        ([MOVES, STANDS], {0}, True, Liveness.MOVING),
        ([STANDS, STANDS], {0, 1}, False, Liveness.STILL),
        ([MOVES], {0, 1}, True, Liveness.UNKNOWN),
        ([MOVES], {0, 1}, False, Liveness.MOVING),
        ([STANDS], {0, 1}, False, Liveness.STILL),
        ([MOVES], set(), False, Liveness.UNKNOWN),
    ],
)
def test_one_host_speaks_for_others_only_where_none_answers(workers, silent, others, liveness):
    rows = [{worker: values[read] for worker, values in enumerate(workers)} for read in range(10)]
    heartbeats = from_data(Heartbeats, to_data(reads(*rows)))
    assert classify_heartbeats(heartbeats, silent, others_answer=others) is liveness


@pytest.mark.parametrize(
    ("silent_s", "another", "sick", "liveness"),
    list(
        itertools.product(
            (0.0, timeouts.BOOT_GRACE_S, timeouts.UNREACHABLE_MAX_S),
            (False, True),
            (False, True),
            list(Liveness),
        )
    ),
)
def test_nothing_is_given_up_that_shows_life_or_against_which_nothing_speaks(silent_s, another, sick, liveness):
    judged = classify_silence(silent_s, reached_another=another, unhealthy=sick, liveness=liveness)
    evidence = another or sick or liveness is Liveness.STILL
    if liveness is Liveness.MOVING:
        assert judged is Silence.BLIND
    elif silent_s < timeouts.BOOT_GRACE_S:
        assert judged is Silence.WAIT
    elif not evidence:
        assert judged is Silence.BLIND
    else:
        late = silent_s >= timeouts.UNREACHABLE_MAX_S
        assert judged is (Silence.GIVE_UP if late else Silence.WAIT)


@pytest.mark.parametrize(
    ("usd_per_hour", "writes_disks", "asked_s", "limit_s"),
    [
        pytest.param(3.0, False, None, 900.0, id="cheap"),
        pytest.param(60.0, False, None, 600.0, id="ten-dollars"),
        pytest.param(120.0, False, None, 300.0, id="dear"),
        pytest.param(4000.0, False, None, 300.0, id="never-less-than-a-reboot-takes"),
        pytest.param(120.0, True, None, 900.0, id="what-it-wrote-may-be-lost"),
        pytest.param(None, False, None, 900.0, id="no-price"),
        pytest.param(3.0, False, 420.0, 420.0, id="as-somebody-said"),
        pytest.param(120.0, False, 3600.0, 3600.0, id="longer-as-somebody-said"),
        pytest.param(3.0, True, 420.0, 900.0, id="said-and-written"),
    ],
)
def test_silence_is_waited_out_for_what_it_costs(usd_per_hour, writes_disks, asked_s, limit_s):
    assert replacement_limit(usd_per_hour, writes_disks=writes_disks, asked_s=asked_s) == limit_s
    judged = [
        classify_silence(silent_s, reached_another=True, unhealthy=False, limit_s=limit_s)
        for silent_s in (limit_s - 1, limit_s)
    ]
    assert judged == [Silence.WAIT, Silence.GIVE_UP]
    cut_off = classify_silence(limit_s, reached_another=False, unhealthy=False, limit_s=limit_s)
    assert cut_off is Silence.BLIND, "a limit proves nothing"
