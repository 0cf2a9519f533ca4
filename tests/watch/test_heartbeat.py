"""Heartbeats: what they remember of troubles, and when they prove that somebody watches."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tpuctl.config.settings import BY_NAME, parse_value
from tpuctl.errors import BadConfigError
from tpuctl.lib.codec import from_data, to_data
from tpuctl.watch.heartbeat import (
    MAX_TROUBLES,
    Heartbeat,
    PassLine,
    Verdict,
    Watcher,
    is_new,
    judge,
    next_heartbeat,
    render_span,
    worth_writing,
)

CRON = Watcher("m1", "vm", "ada", "1.0", 60.0)
HAND = replace(CRON, interval_s=None)


def line(subject: str, result: str, why: str = "because", *, acted: bool = False) -> PassLine:
    return PassLine(subject, result, why, acted)


def beat(*lines: PassLine, previous: Heartbeat | None = None, watcher: Watcher = CRON, at: float = 0.0):
    return next_heartbeat(previous, watcher, lines, at=at, seconds=1.0)


def test_a_heartbeat_counts_and_survives_the_store() -> None:
    first = beat(line("a", "done"), line("b", "done", acted=True), line("c", "blocked"), at=5.0)
    assert (first.counts, first.acted, first.passes, first.next_due) == ({"blocked": 1, "done": 2}, 1, 1, 65.0)
    assert from_data(Heartbeat, to_data(first)) == first


def test_a_pass_by_hand_keeps_the_installed_interval() -> None:
    by_hand = beat(previous=beat(), watcher=HAND, at=30.0)
    assert (by_hand.interval_s, by_hand.passes) == (60.0, 2)
    assert beat(watcher=HAND).next_due is None


def test_a_trouble_is_new_once_and_lasts_until_it_is_settled() -> None:
    first = beat(line("a", "failed", "x"), at=10.0)
    assert [is_new(trouble) for trouble in first.troubles] == [True]
    second = beat(line("a", "failed", "y"), previous=first, at=70.0)
    [trouble] = second.troubles
    assert (trouble.since, trouble.passes, trouble.why, is_new(trouble)) == (10.0, 2, "y", False)
    skipped = beat(line("a", "busy"), previous=second, at=130.0)
    assert skipped.troubles == second.troubles
    worse = beat(line("a", "blocked"), previous=skipped, at=190.0)
    assert [(each.result, is_new(each)) for each in worse.troubles] == [("blocked", True)]
    assert beat(line("a", "waiting"), previous=worse).troubles == ()
    assert beat(previous=worse).troubles == ()


def test_a_fleet_in_flames_does_not_make_a_large_document() -> None:
    assert len(beat(*(line(f"s{n}", "failed") for n in range(1000))).troubles) == MAX_TROUBLES


def test_news_is_written_at_once_and_sameness_twice_an_interval_at_most() -> None:
    first = beat(line("a", "done"), at=0.0)
    assert worth_writing(None, first)
    assert not worth_writing(first, beat(line("a", "done"), previous=first, at=29.0))
    assert worth_writing(first, beat(line("a", "done"), previous=first, at=30.0))
    assert worth_writing(first, beat(line("a", "failed"), previous=first, at=1.0))


@pytest.mark.parametrize(
    ("beats", "now", "verdict"),
    [
        ([], 0.0, Verdict.NEVER),
        ([beat()], 181.0, Verdict.GOOD),
        ([beat()], 181.1, Verdict.STOPPED),
        ([beat(watcher=replace(CRON, interval_s=600.0))], 1801.0, Verdict.GOOD),
        ([beat(watcher=HAND)], 181.0, Verdict.GOOD),
        ([beat(watcher=HAND)], 182.0, Verdict.STOPPED),
        # The newest is a stray pass by hand, but a slower watchdog is still on time.
        ([beat(watcher=HAND, at=1000.0), beat(watcher=replace(CRON, interval_s=3600.0))], 5000.0, Verdict.GOOD),
    ],
)
def test_three_intervals_without_a_pass_mean_that_nobody_watches(beats, now, verdict) -> None:
    assert judge(beats, now).verdict is verdict


def test_the_verdict_says_who_and_since_when() -> None:
    assert judge([beat()], 60.0).why == "ada on vm makes passes, every 60 s"
    assert judge([beat()], 7000.0).why == "no watchdog has made a pass for 117 min; the last was vm"


def test_spans_are_for_people() -> None:
    assert [render_span(seconds) for seconds in (0, 119, 120, 7200, 200_000)] == [
        "0 s",
        "119 s",
        "2 min",
        "2 h",
        "2 days",
    ]


@pytest.mark.parametrize(
    "url", ["https://hc-ping.com/x", "http://127.0.0.1:9/x", "http://[::1]/", "http://localhost"]
)
def test_urls_that_may_be_pinged(url: str) -> None:
    assert parse_value(BY_NAME["ping_url"], url, "flag") == url


@pytest.mark.parametrize(
    "url", ["http://hc-ping.com/x", "ftp://h/x", "file:///etc/passwd", "https://", "https://a b/"]
)
def test_urls_that_may_not(url: str) -> None:
    with pytest.raises(BadConfigError):
        parse_value(BY_NAME["ping_url"], url, "flag")
