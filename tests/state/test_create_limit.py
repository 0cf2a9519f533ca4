"""The allowance of creates that commands on one machine share."""

from __future__ import annotations

import stat

from tpuctl.state.create_limit import FileRateLimiter


def test_a_burst_goes_out_at_once_and_the_next_waits(tmp_path):
    path = tmp_path / "state" / "creates.json"
    waits = [FileRateLimiter(path, per_minute=0.001, burst=3).take() for _ in range(4)]
    assert waits[:3] == [0.0, 0.0, 0.0]
    assert 59_000 < waits[3] <= 60_000
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_a_crash_left_torn_is_a_full_allowance(tmp_path):
    path = tmp_path / "creates.json"
    path.write_text('{"left": 0')
    assert FileRateLimiter(path, burst=1).take() == 0.0


def test_a_clock_that_goes_back_takes_nothing_away(tmp_path):
    path = tmp_path / "creates.json"
    path.write_text('{"left": 1.5, "at": 99999999999}')
    assert FileRateLimiter(path).take() == 0.0
