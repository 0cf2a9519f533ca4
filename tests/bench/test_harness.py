"""The harness itself, on jobs that cost next to nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.bench.__main__ import MEASUREMENTS, main
from tests.bench.harness import BenchError, Budget, Contender, Line, Report, compare, execute
from tests.bench.history import entry_of, pairs, render_difference
from tests.bench.report import NOTE, PAGE, WIDTH, render_text, replace_head, replace_section
from tests.support import measured

BEGAN = {"revision": "abc1234", "date": "2026-11-27", "load": 0.2}
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


def test_peak_memory_is_that_of_the_contender_and_not_of_the_harness() -> None:
    harness = bytearray(100_000_000)
    grows = "held = bytearray(40_000_000)"
    small, large = (execute(Contender("", [sys.executable, "-c", each])).peak_mb for each in ("pass", grows))
    assert len(harness) > small * 1e6
    assert 35 < large - small < 45


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
    page, text = replace_section("# Page\n", report, BEGAN, 5), render_text(report)
    assert "| hare | 1.000 | 1.000 | 3 | 4.00 | 2.00 |" in page
    assert "| wall | 4.00 (at least 5) | NOT met |" in page
    assert "| CPU | 0.50 (at most 0.5) | met |" in page
    assert "not measured: the tortoise is not installed" in text


def a_report(cpu_s: float, title: str = "Race", limit: float = 1.0) -> Report:
    line = Line("hare", cpu_s, cpu_s, cpu_s_span=(cpu_s * 0.9, cpu_s * 1.1), wall_s_span=(0.0, 9.0))
    return Report(title, "uphill", "hare", (line,), (Budget("CPU", cpu_s, limit),))


def test_a_section_is_replaced_alone_and_keeps_what_people_wrote() -> None:
    page = replace_section(
        replace_section("# Page\n", a_report(1.0), BEGAN, 5), a_report(3.0, "Swim"), BEGAN, 5
    )
    page = page.replace("\n## Swim", f"\n{NOTE}\n\nThe hare was tired.\n\n## Swim")
    again = replace_section(page, a_report(2.0), {**BEGAN, "load": 1.6}, 1)
    assert again.index("| hare | 2.000") < again.index("The hare was tired.") < again.index("## Swim")
    assert "| hare | 1.000" not in again
    assert again.count("The machine was busy") == 1
    assert "Measured on 2026-11-27 at abc1234: rounds 1, load 1.6." in again
    assert replace_section(again, a_report(2.0), {**BEGAN, "load": 1.6}, 1) == again
    assert replace_head(PAGE.read_text()).partition("\n## ")[2] == PAGE.read_text().partition("\n## ")[2]


def test_what_got_slower_is_named_where_it_is_more_than_rounds_differ(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    for number, cpu_s in enumerate((0.8, 0.9, 1.2)):
        began = {**BEGAN, "revision": f"r{number}"}
        measured.append_entry(file, entry_of("race", a_report(cpu_s), {**began, "load": [0.2, 0.1]}, 5))
    entries = measured.read_entries(file)
    assert [(a["revision"], b["revision"]) for a, b in pairs(entries, [])] == [("r1", "r2")]
    ((first, last),) = pairs(entries, ["r0", "r2"])
    lines, slower = render_difference(first, last)
    assert slower == 2
    assert "  slower  1.50x  hare: CPU 0.800 -> 1.200 s" in lines
    assert "  no longer met: CPU: 1.20 of 1" in lines
    assert not any("wall" in line for line in lines)
    assert render_difference(*pairs(entries, ["r0", "r1"])[0])[1] == 0
    assert pairs(entries, ["r0", "none"]) == []
    assert measured.is_done(entries, "race", "r1")
    assert not measured.is_done([*entries, {"name": "race", "revision": "r1+"}], "race", "r1+")
