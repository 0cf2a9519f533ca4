"""How often disks were copied within the hour, and when they can be again."""

from __future__ import annotations

import pytest

from tpuctl.disks.rates import CopyRate, judge_rates
from tpuctl.disks.rules import DiskRules
from tpuctl.lib.time import render_time
from tpuctl.model.disks import SnapshotInfo
from tpuctl.model.shipped_files import load_disk_rules

NOW = 1_800_000_000.0


def snapshot(minutes_ago: float, disk: str = "data", uid: str = "1") -> SnapshotInfo:
    made_at = render_time(NOW - 60 * minutes_ago)
    return SnapshotInfo("s", "2", "READY", 10, 0, disk, uid, create_time=made_at)


@pytest.mark.parametrize(
    ("snapshots", "rates"),
    [
        ([], []),
        ([snapshot(61)], []),
        ([snapshot(59), snapshot(1)], [CopyRate("data", 2, 6, None)]),
        ([snapshot(1, uid="1"), snapshot(1, uid="2")], [CopyRate("data", 1, 6, None)] * 2),
        ([snapshot(50 - each) for each in range(6)], [CopyRate("data", 6, 6, NOW + 600)]),
        ([snapshot(1, "b"), snapshot(1, "a")], [CopyRate("a", 1, 6, None), CopyRate("b", 1, 6, None)]),
    ],
)
def test_the_copies_of_the_last_hour_count(snapshots, rates):
    assert list(judge_rates(snapshots, DiskRules(load_disk_rules()), NOW)) == rates
