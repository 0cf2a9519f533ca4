"""What Orbax and Grain tell of checkpoints and data, as Prometheus' text has it."""

from __future__ import annotations

import pytest

from tpuctl.telemetry.prometheus import parse_figures

TOTAL = "jax_checkpoint_write_async_total_duration_secs"
NEXT = "grain_python_dataset_next_duration_ns"
CASES = {
    "nothing": ("", {}),
    "a gauge": (f"# TYPE {TOTAL} gauge\n{TOTAL} 12.5\n", {"checkpoint_s": 12.5}),
    "the mean of a histogram": (
        f'{TOTAL}_bucket{{le="10.0"}} 1\n{TOTAL}_bucket{{le="+Inf"}} 4\n{TOTAL}_count 4.0\n{TOTAL}_sum 50.0\n',
        {"checkpoint_s": 12.5},
    ),
    "of all labels together": (
        f'{TOTAL}_count{{storage_type="gcs"}} 1\n{TOTAL}_sum{{storage_type="gcs"}} 9\n'
        f'{TOTAL}_count{{storage_type="local"}} 2\n{TOTAL}_sum{{storage_type="local"}} 3\n',
        {"checkpoint_s": 4.0},
    ),
    "nanoseconds are seconds": (f"{NEXT}_count 2\n{NEXT}_sum 6e9\n", {"data_wait_s": 3.0}),
    "none was written yet": (f"{TOTAL}_count 0\n{TOTAL}_sum 0\n", {}),
    "what is no number": (f"{TOTAL} NaN\n{NEXT} +Inf\n{NEXT} x\n<html>\n", {}),
    "others": ("python_gc_objects_collected_total 1\n", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_figures(case: str) -> None:
    page, expected = CASES[case]
    assert parse_figures(page) == expected
