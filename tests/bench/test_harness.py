"""The harness itself, on jobs that cost next to nothing."""

from __future__ import annotations

import sys

import pytest

from tests.bench.__main__ import MEASUREMENTS, main
from tests.bench.harness import BenchError, Budget, Contender, Line, Report, compare, execute
from tests.bench.report import WIDTH, render_page, render_text

BURN = "import time\nwhile time.process_time() < 0.2: pass"


def test_a_quick_look_prints_a_table_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "interpreter"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("python -c pass" in line for line in lines)
    assert max(len(line) for line in lines) <= WIDTH


def test_an_unknown_measurement_is_named_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["nonsense"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "nonsense" in said
    assert all(name in said for name in MEASUREMENTS)


def test_cpu_counts_the_whole_process_tree() -> None:
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}], check=True)"
    assert execute(Contender("nested", [sys.executable, "-c", nested])).cpu_s >= 0.2


def test_a_wrong_answer_or_a_failure_is_no_figure() -> None:
    says = [sys.executable, "-c", "print('no')"]
    with pytest.raises(BenchError, match="liar"):
        compare([Contender("liar", says, check=lambda out: out.read() == b"yes\n")], 1)
    with pytest.raises(BenchError, match="exit status 3"):
        compare([Contender("broken", [sys.executable, "-c", "raise SystemExit(3)"])], 1)


def test_the_page_says_which_budgets_were_met() -> None:
    report = Report(
        title="Race",
        setting="on the kitchen table",
        baseline="snail",
        lines=(Line("snail", 4.0, 2.0), Line("hare", 1.0, 1.0, peak_mb=3.0)),
        budgets=(Budget("wall", 4.0, 5.0, at_least=True), Budget("CPU", 0.5, 0.5)),
        missing=("the tortoise is not installed",),
    )
    page, text = render_page([report]), render_text(report)
    assert "| hare | 1.000 | 1.000 | 3 | 4.00 | 2.00 |" in page
    assert "| wall | 4.00 (at least 5) | NOT met |" in page
    assert "| CPU | 0.50 (at most 0.5) | met |" in page
    assert "not measured: the tortoise is not installed" in text
