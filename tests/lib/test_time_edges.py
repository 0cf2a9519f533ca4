"""Times have an end: what people type is refused beyond it, and any number in a record can be shown."""

from __future__ import annotations

import math

import pytest

from tpuctl.errors import UsageError
from tpuctl.lib import time as spans

NOW = 1_800_000_000.0
SHOWN = (
    spans.render_duration,
    spans.render_age,
    spans.render_moment,
    spans.render_instant,
    spans.render_time,
    spans.render_seconds,
    spans.render_timer,
    spans.render_span,
    spans.render_clock,
)


@pytest.mark.parametrize("word", ["9999999d", "4000000d", "530w", "9" * 400 + "s", "3653d", "1d99999999h"])
def test_more_than_ten_years_is_no_duration(word):
    with pytest.raises(UsageError, match="more than ten years"):
        spans.parse_duration(word, "--ttl")
    with pytest.raises(UsageError, match="more than ten years"):
        spans.parse_until(word, "--until", NOW)


def test_ten_years_are_one():
    assert spans.parse_duration("3652d", "--ttl") == spans.LONGEST_S
    assert spans.render_moment(spans.parse_until("3652d", "--until", NOW)).startswith("2037-")


@pytest.mark.parametrize(
    "word", ["-5m", "0d", "0001-01-01", "0001-01-01T00:00+14:00", "0999-12-31", "nan", "inf"]
)
def test_what_is_past_or_negative_is_refused(word):
    with pytest.raises(UsageError):
        spans.parse_until(word, "--until", NOW)


@pytest.mark.parametrize("render", SHOWN)
def test_any_number_can_be_shown(render):
    numbers = (0.0, -1.0, 1e9, 1e12, -1e12, 1e18, -1e18, 1e300, -1e300, math.inf, -math.inf, math.nan, 2**70)
    assert [number for number in numbers if not render(number)] == []
