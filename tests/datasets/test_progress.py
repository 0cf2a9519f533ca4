"""What is told of a pack while it is made, and how a person reads it."""

from __future__ import annotations

from tests.support.clocks import FakeClock
from tpuctl.cli.live import data_text
from tpuctl.datasets.pack import PROGRESS_EVERY_S, PackProgress
from tpuctl.engine.events import DataProgress


def test_progress_is_told_now_and_then_without_what_is_done_again() -> None:
    clock, events = FakeClock(), list[DataProgress]()
    meter = PackProgress(clock, events.append, "gs://b/pack", "packed", 10, 4096)
    meter.add(1024, 3)
    assert events == []
    meter.take_back(512, 1)
    clock.sleep(PROGRESS_EVERY_S * 2)
    meter.add(512, 1)
    meter.add(1, 0)
    assert [(each.done_bytes, each.done_files) for each in events] == [(1024, 3)]
    assert data_text(events[0]) == "gs://b/pack: packed 1.0 KiB of 4.0 KiB, 512 B/s, 3 of 10 files"
