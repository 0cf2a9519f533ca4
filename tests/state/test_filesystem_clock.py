"""The time of whoever keeps the files, by which machines that share a directory agree."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tpuctl.state.sqlite import COARSE_S, FileTime, SqliteStore

REAL = time.time


def set_clock(monkeypatch: pytest.MonkeyPatch, wrong_s: float) -> None:
    """This machine's clock is wrong from now on; the kernel stamps files with the right time."""
    monkeypatch.setattr(time, "time", lambda: REAL() + wrong_s)


@pytest.mark.parametrize("wrong_s", [-600.0, 0.0, 600.0])
def test_machines_with_wrong_clocks_agree_on_the_time_of_their_files(tmp_path, monkeypatch, wrong_s):
    set_clock(monkeypatch, wrong_s)
    assert abs(FileTime(tmp_path / "clock").now() - REAL()) < COARSE_S
    store = SqliteStore(tmp_path / "store.sqlite")
    assert abs(store.now() - REAL()) < COARSE_S
    store.close()


def test_the_grain_of_timestamps_is_not_taken_for_another_clock(tmp_path, monkeypatch):
    set_clock(monkeypatch, COARSE_S / 2)
    before = time.time()
    assert before <= FileTime(tmp_path / "clock").now() <= time.time()


def test_where_nothing_can_be_written_this_machines_clock_has_to_do(monkeypatch):
    set_clock(monkeypatch, 600.0)
    before = time.time()
    assert before <= FileTime(Path("/proc/clock")).now() <= time.time()


@pytest.mark.parametrize(("wrong_s", "later_s"), [(-3600.0, 0.0), (0.0, 3600.0)])
def test_a_clock_that_is_set_does_not_move_the_time_of_the_files(tmp_path, monkeypatch, wrong_s, later_s):
    set_clock(monkeypatch, wrong_s)
    files = FileTime(tmp_path / "clock")
    assert abs(files.now() - REAL()) < COARSE_S
    set_clock(monkeypatch, later_s)
    assert abs(files.now() - REAL()) < COARSE_S
