"""What services tell, as samples of devices: pure tables."""

from __future__ import annotations

import pytest

from tpuctl.telemetry.messages import DUTY, HBM_TOTAL, HBM_USED, QUEUE
from tpuctl.telemetry.sample import ChipSample, chips_of, merge_chips

FOUR = [(8, 10), (9, 11), (12, 12), (13, 13)]
CASES = {
    "nothing is told": (1, {}, []),
    "ids are those of the slice": (
        1,
        {HBM_USED: FOUR, DUTY: [(each, 50.0) for each, _ in FOUR]},
        [(each, used, None, 50.0, None) for each, used in FOUR],
    ),
    "duty by chip, memory by device": (
        2,
        {HBM_USED: FOUR, HBM_TOTAL: [(each, 99) for each, _ in FOUR], DUTY: [(0, 10.0), (1, 90.0)]},
        [(8, 10, 99, 10.0, None), (9, 11, 99, 10.0, None), (12, 12, 99, 90.0, None), (13, 13, 99, 90.0, None)],
    ),
    "queues by the ordinal on the host": (
        1,
        {HBM_USED: FOUR, QUEUE: [(3, 7), (0, 4), (1, 5), (2, 6)]},
        [(8, 10, None, None, 4), (9, 11, None, None, 5), (12, 12, None, None, 6), (13, 13, None, None, 7)],
    ),
    "what does not come out even is unknown": (
        1,
        {HBM_USED: FOUR, DUTY: [(0, 10.0), (1, 20.0), (2, 30.0)]},
        [(each, used, None, None, None) for each, used in FOUR],
    ),
    "more of it than devices": (
        1,
        {HBM_USED: FOUR[:2], QUEUE: [(n, n) for n in range(4)]},
        [(8, 10, None, None, None), (9, 11, None, None, None)],
    ),
    "of some devices only": (
        1,
        {HBM_USED: FOUR[:2], DUTY: [(9, 0.0)]},
        [(8, 10, None, None, None), (9, 11, None, 0.0, None)],
    ),
    "duty of chips by the id of their first device": (
        2,
        {HBM_USED: FOUR, DUTY: [(8, 10.0), (12, 90.0)]},
        [
            (8, 10, None, 10.0, None),
            (9, 11, None, 10.0, None),
            (12, 12, None, 90.0, None),
            (13, 13, None, 90.0, None),
        ],
    ),
    "duty by device where chips have two": (
        2,
        {HBM_USED: FOUR, DUTY: [(each, 50.0) for each, _ in FOUR]},
        [(each, used, None, 50.0, None) for each, used in FOUR],
    ),
    "no memory": (1, {DUTY: [(0, 10.0)]}, [(0, None, None, 10.0, None)]),
}


@pytest.mark.parametrize("case", CASES)
def test_the_devices_of_one_service(case: str) -> None:
    per_chip, told, expected = CASES[case]
    found = chips_of(3, 8431, told, per_chip)
    assert {(each.worker, each.port) for each in found} <= {(3, 8431)}
    rows = [(each.device, each.hbm_used, each.hbm_total, each.duty_percent, each.queue) for each in found]
    assert rows == expected


def test_one_sample_for_a_device_whichever_port_told_it() -> None:
    rows = [
        ChipSample(1, 4, 8432, hbm_used=1, queue=0),
        ChipSample(0, 4, 8431, duty_percent=5.0),
        ChipSample(1, 4, 8433, hbm_used=2, hbm_total=9),
        ChipSample(0, 0, 8431),
    ]
    assert merge_chips(rows) == [
        ChipSample(0, 0, 8431),
        ChipSample(0, 4, 8431, duty_percent=5.0),
        ChipSample(1, 4, 8432, hbm_used=1, hbm_total=9, queue=0),
    ]
