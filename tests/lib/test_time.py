"""Spans and moments as people write them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tpuctl.errors import UsageError
from tpuctl.lib.time import parse_duration, parse_moment, render_age, render_duration, render_moment


@pytest.mark.parametrize(
    ("word", "seconds", "shown"),
    [
        ("4h", 14400, "4h"),
        ("90m", 5400, "1h30m"),
        ("1h30m", 5400, "1h30m"),
        ("7d", 604800, "7d"),
        ("1w", 604800, "7d"),
        ("1.5h", 5400, "1h30m"),
        (" 45S ", 45, "45s"),
    ],
)
def test_durations_are_read_and_shown(word, seconds, shown):
    assert parse_duration(word, "--ttl") == seconds
    assert render_duration(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-3, "0s"), (59.9, "59s"), (60, "1m"), (7199, "1h"), (86400, "1d"), (30 * 86400, "30d")],
)
def test_ages_are_shown_by_their_largest_unit(seconds, shown):
    assert render_age(seconds) == shown


@pytest.mark.parametrize("word", ["", "4", "h", "4 h", "-1h", "0m", "4y", "1h,30m", "٣h"])
def test_what_is_no_duration_is_refused_by_its_flag(word):
    with pytest.raises(UsageError, match="--ttl") as refused:
        parse_duration(word, "--ttl")
    assert refused.value.hint


def test_a_time_without_an_offset_is_utc():
    assert parse_moment("2026-12-24T18:00", "--until") == parse_moment("2026-12-24T19:00+01:00", "--until")
    assert render_moment(parse_moment("2026-12-24", "--until")) == "2026-12-24T00:00:00Z"


@pytest.mark.parametrize("word", ["", "tomorrow", "24.12.2026", "2026-13-01"])
def test_what_is_no_time_is_refused_by_its_flag(word):
    with pytest.raises(UsageError, match="--until") as refused:
        parse_moment(word, "--until")
    assert "UTC" in refused.value.hint


@pytest.mark.parametrize("at", [0.0, -0.5, -86_400.0, 951_782_400.0, 951_868_799.9, 1_732_579_199.0, 253e9])
def test_a_moment_is_told_as_the_standard_library_tells_it(at: float) -> None:
    assert render_moment(at) == datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
