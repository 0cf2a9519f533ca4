"""What a smoke test makes of the reports of workers."""

from __future__ import annotations

import pytest

from tpuctl.runs.smoke import MARK, SmokeReport, judge_smoke, parse_report

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
        ("", "did not finish"),
        ("ImportError: no jax", "did not finish: ImportError: no jax"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_the_worker_that_stands_out_is_named(report: SmokeReport | str, said: str | None) -> None:
    found = judge_smoke({0: WELL, 1: WELL, 2: report, 3: WELL}, backend="tpu", devices=4)
    assert [(each.worker, each.what) for each in found] == ([] if said is None else [(2, said)])


def test_a_slice_of_which_nobody_reports_is_wrong_everywhere() -> None:
    found = judge_smoke({0: "", 1: ""}, backend="tpu", devices=4)
    assert [each.worker for each in found] == [0, 1]


@pytest.mark.parametrize("output", ["", "step 1\n", f"{MARK}{{}}\n", f"{MARK}not json\n"])
def test_output_without_a_whole_report_has_none(output: str) -> None:
    assert parse_report(output) is None


def test_a_report_is_found_between_other_lines() -> None:
    line = '{"backend":"tpu","devices":4,"processes":4,"matmul_s":0.01,"collective_s":0.002}'
    assert parse_report(f"warning: x\n{MARK}{line}\nbye\n") == WELL
