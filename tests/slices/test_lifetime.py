"""When a slice goes by itself: never without a warning, never on uncertainty."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tpuctl.model.records import Lifetime, LifetimeLimits
from tpuctl.slices.lifetime import (
    WARN_BEFORE_S,
    HostActivity,
    IdleWatch,
    LifetimeAction,
    describe_limits,
    extend_lifetime,
    find_use,
    judge_lifetime,
    parse_activity,
    replace_lifetime,
)

QUIET = HostActivity(0, sessions=0, chip_users=0, chips_unknown=False, load_per_cpu=0.02)
HALF_AN_HOUR = Lifetime(idle_s=1800.0)


def test_certain_quiet_on_every_worker_is_no_use():
    assert find_use(None, [QUIET, replace(QUIET, worker=1)]) == ""


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "worker 1 could not be asked"),
        (replace(QUIET, sessions=2), "2 logins"),
        (replace(QUIET, chip_users=1), "chip open"),
        (replace(QUIET, chips_unknown=True), "cannot tell"),
        (replace(QUIET, writers=1), "1 programs that write to disks or mounts"),
        (replace(QUIET, writers_unknown=True), "cannot tell who writes"),
        (replace(QUIET, load_per_cpu=0.5), "load 0.50"),
    ],
)
def test_one_worker_in_use_or_in_doubt_is_use(found, words):
    assert words in find_use(None, [QUIET, found])


def test_a_run_is_use_whatever_the_hosts_say():
    assert find_use("r1", [QUIET]) == "run r1"


def test_an_answer_is_parsed_and_nonsense_raises():
    data = {"sessions": 1, "chip_users": 0, "chips_unknown": False, "load": 2.0, "cpus": 4}
    data |= {"writers": 2, "writers_unknown": False}
    assert parse_activity(3, data) == HostActivity(3, 1, 0, False, 0.5, 2, False)
    with pytest.raises(KeyError):
        parse_activity(0, {})


def walk(
    lifetime: Lifetime, uses: dict[float, str], until: float, every: float = 60.0
) -> list[tuple[float, LifetimeAction]]:
    """The steps that are not NONE; `uses` says from when on what uses the slice."""
    watch, steps, now, use = IdleWatch(1), [], 0.0, ""
    while now <= until:
        use = next((word for at, word in sorted(uses.items(), reverse=True) if at <= now), "")
        verdict = judge_lifetime(lifetime, watch, use, now)
        watch = verdict.watch
        if verdict.step is not LifetimeAction.NONE:
            steps.append((now, verdict.step))
        if verdict.step is LifetimeAction.STOP:
            break
        now += every
    return steps


def test_an_idle_slice_is_warned_ten_minutes_before_it_goes():
    assert walk(HALF_AN_HOUR, {}, 7200) == [(1200.0, LifetimeAction.WARN), (1800.0, LifetimeAction.STOP)]


def test_use_in_between_begins_the_period_anew():
    assert walk(HALF_AN_HOUR, {0: "", 1500: "a login", 1560: ""}, 7200) == [
        (1200.0, LifetimeAction.WARN),
        (2760.0, LifetimeAction.WARN),
        (3360.0, LifetimeAction.STOP),
    ]


def test_a_slice_in_use_stays():
    assert walk(HALF_AN_HOUR, {0: "run r1"}, 7200) == []


def test_time_that_is_over_ends_also_a_slice_in_use_but_not_without_a_warning():
    assert walk(Lifetime(expires_at=3600.0), {0: "run r1"}, 7200) == [
        (3000.0, LifetimeAction.WARN),
        (3600.0, LifetimeAction.STOP),
    ]


def test_passes_that_come_late_warn_first():
    late = walk(Lifetime(expires_at=100.0), {}, 7200, every=900.0)
    assert late == [(0.0, LifetimeAction.WARN), (900.0, LifetimeAction.STOP)]
    verdict = judge_lifetime(Lifetime(expires_at=100.0), IdleWatch(1), "", 5000.0)
    assert verdict.step is LifetimeAction.WARN
    soon = judge_lifetime(Lifetime(expires_at=100.0), verdict.watch, "", 5000.0 + WARN_BEFORE_S - 1)
    assert soon.step is LifetimeAction.NONE


def test_the_earlier_of_both_limits_counts():
    both = Lifetime(expires_at=1000.0, idle_s=1800.0)
    assert walk(both, {}, 7200)[-1] == (1020.0, LifetimeAction.STOP)


def test_no_limit_is_no_limit():
    assert walk(Lifetime(), {}, 7200) == []


def test_another_up_changes_only_what_it_says():
    old = Lifetime(expires_at=100.0, idle_s=60.0, ttl_s=50.0)
    assert extend_lifetime(None, LifetimeLimits(), 7.0) is None
    assert extend_lifetime(old, LifetimeLimits(), 7.0) == old
    assert extend_lifetime(old, LifetimeLimits(idle_s=90.0), 7.0) == replace(old, idle_s=90.0)
    assert extend_lifetime(old, LifetimeLimits(ttl_s=50.0), 80.0) == replace(old, expires_at=130.0)


def test_a_file_says_all_of_it_and_an_unchanged_span_goes_on():
    old = Lifetime(expires_at=100.0, idle_s=60.0, ttl_s=50.0)
    assert replace_lifetime(old, LifetimeLimits(), 7.0) is None
    assert replace_lifetime(old, LifetimeLimits(ttl_s=50.0), 80.0) == Lifetime(expires_at=100.0, ttl_s=50.0)
    assert replace_lifetime(old, LifetimeLimits(ttl_s=70.0, idle_s=60.0), 80.0) == Lifetime(150.0, 60.0, 70.0)
    assert replace_lifetime(Lifetime(expires_at=9.0), LifetimeLimits(ttl_s=70.0), 80.0) == Lifetime(
        150.0, None, 70.0
    )


def test_limits_in_words():
    assert describe_limits(LifetimeLimits()) == ""
    assert describe_limits(LifetimeLimits(ttl_s=5400.0, idle_s=1800.0)) == "after 1h30m or when unused for 30m"


def looked_at(*minutes: int, lifetime: Lifetime = HALF_AN_HOUR) -> list[tuple[int, LifetimeAction]]:
    """The steps of looks at these minutes, in all of which nobody uses the slice."""
    watch, steps = IdleWatch(1), []
    for minute in minutes:
        verdict = judge_lifetime(lifetime, watch, "", 60.0 * minute)
        watch = verdict.watch
        if verdict.step is not LifetimeAction.NONE:
            steps.append((minute, verdict.step))
    return steps


def test_a_time_in_which_nobody_looked_does_not_count_as_idle():
    assert looked_at(0, 5, 10, 15, 20, 25, 30) == [(20, LifetimeAction.WARN), (30, LifetimeAction.STOP)]
    assert looked_at(0, 5, 180, 185, 190) == []
    assert looked_at(0, 180, 190, 200, 210) == [(200, LifetimeAction.WARN), (210, LifetimeAction.STOP)]
    # A large fleet comes round to each slice rarely: half of a long idle time may pass between two looks.
    assert looked_at(0, 55, 110, 120, lifetime=Lifetime(idle_s=7200.0)) == [
        (110, LifetimeAction.WARN),
        (120, LifetimeAction.STOP),
    ]


def test_a_slice_that_stays_idle_is_not_written_down_at_every_look():
    watch = IdleWatch(1)
    written = set()
    for minute in range(20):
        watch = judge_lifetime(HALF_AN_HOUR, watch, "", 60.0 * minute).watch
        written.add(watch)
    assert len(written) == 4
