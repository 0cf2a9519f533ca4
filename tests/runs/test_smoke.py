"""What a smoke test makes of the reports of workers."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.support.require import require_torch_xla
from tpuctl.model.shipped_files import read_template
from tpuctl.runs.smoke import MARK, STEP_MARK, SmokeReport, Unfinished, judge_smoke, parse_report, smoke_rows

WELL = SmokeReport(backend="tpu", devices=4, processes=4, matmul_s=0.010, collective_s=0.002)


def changed(**fields: object) -> SmokeReport:
    return SmokeReport(**{**{name: getattr(WELL, name) for name in WELL.__struct_fields__}, **fields})


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (WELL, None),
        (changed(matmul_s=0.055), None),
        (changed(matmul_s=0.2), "is slow: 0.200 s, others 0.010 s"),
        (changed(backend="cpu"), "runs on cpu, not on tpu"),
        (changed(devices=3), "has 3 of 4 devices"),
        (changed(processes=3), "was joined by 3 of 4 processes"),
        (Unfinished(), "did not finish"),
        (Unfinished("join"), "did not finish"),
        (Unfinished(said="ImportError: no jax"), "did not finish: ImportError: no jax"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_the_worker_that_stands_out_is_named(report: SmokeReport | Unfinished, said: str | None) -> None:
    found = judge_smoke({0: WELL, 1: WELL, 2: report, 3: WELL}, backend="tpu", devices=4)
    assert [(each.worker, each.what) for each in found] == ([] if said is None else [(2, said)])


def test_of_two_workers_the_slow_one_is_named() -> None:
    found = judge_smoke({0: WELL, 1: changed(matmul_s=0.2, processes=4)}, backend="tpu", devices=4)
    assert [(each.worker, each.what) for each in found if "slow" in each.what] == [
        (1, "is slow: 0.200 s, others 0.010 s")
    ]


def gave_up(took: float) -> Unfinished:
    return Unfinished("collective", "gloo: connection closed", took)


WAITS, LATE = Unfinished("join", "warning: a proxy"), Unfinished(said="a warning")


@pytest.mark.parametrize(
    ("reports", "wrong", "rows"),
    [
        ((LATE, LATE), [0, 1], ["did not finish: a warning"] * 2),
        ((WAITS, LATE, WAITS), [1], ["waits for worker 1", "did not finish: a warning", "waits for worker 1"]),
        (
            (Unfinished("collective"), Unfinished("devices"), Unfinished("collective")),
            [1],
            ["waits for worker 1", "did not finish", "waits for worker 1"],
        ),
        ((WAITS, WAITS), [0, 1], ["waited in vain for the others: none came past `join`"] * 2),
        ((Unfinished("join"),), [0], ["did not finish"]),
        (
            (gave_up(0.01), gave_up(0.01), gave_up(2.0), gave_up(0.01)),
            [2],
            ["waits for worker 2"] * 2 + ["is slow: 2.000 s, others 0.010 s"] + ["waits for worker 2"],
        ),
        (
            (gave_up(0.01), gave_up(0.01)),
            [0, 1],
            ["waited in vain for the others: none came past `collective`"] * 2,
        ),
    ],
)
def test_a_worker_that_the_others_wait_for_is_named_and_they_are_not(
    reports: tuple[Unfinished, ...], wrong: list[int], rows: list[str]
) -> None:
    by_worker = dict(enumerate(reports))
    found = judge_smoke(by_worker, backend="tpu", devices=4)
    assert [each.worker for each in found] == wrong
    assert [row["finding"] for row in smoke_rows(by_worker, found)] == rows


LINE = '{"backend":"tpu","devices":4,"processes":4,"matmul_s":0.01,"collective_s":0.002}'
COME = f"{STEP_MARK}join\nstep 1\n{STEP_MARK}devices\n"


@pytest.mark.parametrize(
    ("output", "step"),
    [
        ("", "start"),
        ("step 1\n", "start"),
        (f"{MARK}{{}}\n", "start"),
        (COME, "devices"),
        (f"{COME}{MARK}not json\n", "devices"),
        (f"{COME}{STEP_MARK}collective", "collective"),
        (f"{STEP_MARK}later\n", "start"),
    ],
)
def test_output_without_a_whole_report_says_how_far_it_came(output: str, step: str) -> None:
    assert parse_report(output, "last") == Unfinished(step, "last")


def test_what_its_products_took_is_known_before_the_collective_ends() -> None:
    assert parse_report(f"{COME}{STEP_MARK}collective 0.25\n", "last") == Unfinished("collective", "last", 0.25)


def test_a_report_is_found_between_other_lines() -> None:
    assert parse_report(f"warning: x\n{COME}{MARK}{LINE}\nbye\n", "") == WELL


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 4])
def test_a_real_torch_xla_tests_each_of_its_devices(devices: int) -> None:
    own = {"TPUCTL_RANK": "0", "TPUCTL_WORLD_SIZE": "1", "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices)}
    words = [require_torch_xla(), "-c", read_template("smoke.py").decode(), "torch_xla"]
    said = subprocess.run(words, env=os.environ | own, capture_output=True, text=True, check=True, timeout=200)
    report = parse_report(said.stdout, "")
    assert isinstance(report, SmokeReport)
    assert (report.backend, report.devices, report.processes) == ("cpu", devices, 1)
