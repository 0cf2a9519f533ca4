"""Many hosts on few lines, and who is slowest: pure tables."""

from __future__ import annotations

import pytest

from tpuctl.telemetry.summary import FigureRow, Folded, Slowest, Spread, find_slowest, fold, spread


def shown(folded: list[Folded]) -> list[tuple[tuple[int, ...], tuple[int, ...], object]]:
    return [
        (each.workers, each.places, each.figures["duty_percent"] if not each.text else each.text)
        for each in folded
    ]


def duty(worker: int, place: int, value: float | None, text: str = "") -> FigureRow:
    return FigureRow(worker, place, {"duty_percent": value}, text)


ALIKE = [duty(worker, place, 90.0 + worker / 100) for worker in range(32) for place in range(4)]
CASES = {
    "all alike": (ALIKE, 4, [(tuple(range(32)), (0, 1, 2, 3), (90.0, 90.31))]),
    "one chip of one worker is idle": (
        [duty(w, p, 1.0 if (w, p) == (2, 3) else 90.0) for w in range(4) for p in range(4)],
        4,
        [((0, 1, 3), (0, 1, 2, 3), (90.0, 90.0)), ((2,), (0, 1, 2), (90.0, 90.0)), ((2,), (3,), (1.0, 1.0))],
    ),
    "as fine as there is room": (
        [duty(w, 0, 10.0 * w) for w in range(4)],
        4,
        [((w,), (0,), (10.0 * w, 10.0 * w)) for w in range(4)],
    ),
    "coarser where there is none": (
        [duty(w, 0, 3.0 * w) for w in range(32)],
        5,
        [
            ((0, 1, 2, 3, 4), (0,), (0.0, 12.0)),
            ((5, 6, 7, 8, 9, 10, 11, 12, 13), (0,), (15.0, 39.0)),
            ((14, 15, 16, 17, 18, 19, 20, 21, 22), (0,), (42.0, 66.0)),
            ((23, 24, 25, 26, 27, 28, 29, 30, 31), (0,), (69.0, 93.0)),
        ],
    ),
    "no round number is between what is near": (
        [duty(0, 0, 50.4), duty(1, 0, 50.6), duty(2, 0, 52.0)],
        4,
        [((0, 1), (0,), (50.4, 50.6)), ((2,), (0,), (52.0, 52.0))],
    ),
    "what is unknown stays apart": (
        [duty(0, 0, None), duty(1, 0, 0.0), duty(2, 0, 100.0), duty(3, 0, None)],
        1,
        [((0, 3), (0,), None), ((1, 2), (0,), (0.0, 100.0))],
    ),
    "texts stay apart": (
        [duty(0, -1, None, "no server"), duty(1, -1, None, "port 8431 hangs"), duty(2, -1, None, "no server")],
        1,
        [((0, 2), (-1,), "no server"), ((1,), (-1,), "port 8431 hangs")],
    ),
    "nothing": ([], 4, []),
}


@pytest.mark.parametrize("case", CASES)
def test_rows_that_are_alike_share_a_line(case: str) -> None:
    rows, most, expected = CASES[case]
    assert shown(fold(rows, most)) == expected


@pytest.mark.parametrize(
    ("steps", "lines"), [((100, 99, 100), 1), ((100, 97, 100), 2), ((100, 0, 50), 3), ((None, 100, 100), 2)]
)
def test_a_worker_that_is_steps_behind_has_a_line_of_its_own(
    steps: tuple[float | None, ...], lines: int
) -> None:
    assert len(fold([FigureRow(n, 0, {"step": step}) for n, step in enumerate(steps)], 4)) == lines


def test_little_traffic_is_all_alike() -> None:
    rows = [FigureRow(n, 0, {"net_in_s": float(n * 1000), "disk_read_s": 0.0}) for n in range(8)]
    assert len(fold(rows, 4)) == 1


def test_the_spread_leaves_out_what_nobody_knows() -> None:
    rows = [
        FigureRow(0, 0, {"a": 1.0, "b": None}),
        FigureRow(1, 0, {"a": 5.0, "b": None}),
        FigureRow(2, 0, {"a": None, "b": None}),
    ]
    assert spread(rows) == {"a": Spread(1.0, 3.0, 5.0)}


SLOW = {
    "nothing is known": ({}, {}, {}, None),
    "all alike": ({0: 10, 1: 11}, {0: 2.0, 1: 2.0}, {0: 90, 1: 85}, None),
    "steps behind": ({0: 10, 1: 4, 2: 10}, {}, {}, Slowest((1,), "step 4, usual is step 10")),
    "a slower rate": ({}, {0: 2.0, 1: 2.1, 2: 1.1}, {}, Slowest((2,), "1.1 steps/s, usual is 2 steps/s")),
    "idle chips while others wait": (
        {0: 10, 1: 10, 2: 10},
        {0: 2.0, 1: 2.0, 2: 2.0},
        {0: 99.0, 1: 99.0, 2: 4.0},
        Slowest((2,), "duty 4 %, usual is duty 99 %"),
    ),
    "steps count before duty": (
        {0: 10, 1: 10, 2: 2},
        {},
        {0: 4.0, 1: 99.0, 2: 99.0},
        Slowest((2,), "step 2, usual is step 10"),
    ),
    "two are": (
        {n: 9 if n in (3, 7) else 20 for n in range(8)},
        {},
        {},
        Slowest((3, 7), "step 9, usual is step 20"),
    ),
}


@pytest.mark.parametrize("case", SLOW)
def test_who_is_slowest(case: str) -> None:
    steps, rates, duties, expected = SLOW[case]
    assert find_slowest(steps, rates, duties) == expected
    assert expected is None or expected.said.startswith("worker ")
