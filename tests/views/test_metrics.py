"""The numbers of a run over its attempts: as lines, curves and data."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

from msgspec.structs import replace

from tests.support.builders import a_run, an_attempt
from tests.support.memory.services import MemoryServices
from tpuctl.lib.codec import to_data
from tpuctl.model.attempts import AttemptPhase, Cause
from tpuctl.model.records import RunRecord, RunState
from tpuctl.views.metrics import attempt_metrics, columns, csv_rows, curves, data_rows, run_metrics
from tpuctl.views.plot import Mark, Point, draw_curves, draw_line
from tpuctl.views.report import make_report
from tpuctl.views.run_status import run_status

PATTERN = r"step (?P<step>\d+) loss (?P<loss>\S+)"
SVG = "{http://www.w3.org/2000/svg}"


def put(services: MemoryServices, *attempts: tuple[Cause | None, dict[int, list[str]]]) -> RunRecord:
    """A run with the files of these attempts: by worker their rows."""
    for number, (cause, files) in enumerate(attempts, 1):
        state = AttemptPhase.RUNNING if cause is None else AttemptPhase.ENDED
        attempt = an_attempt(number=number, state=state, workers=tuple(files), cause=cause)
        if cause is not None:
            services.store.put(f"attempts/r1/{number:05d}", to_data(attempt), if_generation=0)
        for worker, rows in files.items():
            content = "\n".join(["at step count loss", *rows, ""]).encode()
            services.logs.append("r1", number, worker, "metrics", content if rows else b"")
    run = a_run(id="r1", state=RunState.RUNNING, attempt=attempt, progress=PATTERN)
    services.store.put(run.key, to_data(run), if_generation=0)
    return run


def rows(begin: int, end: int, loss: float) -> list[str]:
    return [f"{step}.0 {step} 1 {loss / (step + 1)}" for step in range(begin, end)]


def test_each_attempt_speaks_by_the_worker_that_came_furthest(services: MemoryServices) -> None:
    run = put(
        services,
        (Cause.PREEMPTED, {0: rows(0, 5, 9.0), 1: rows(0, 7, 8.0)}),
        (None, {0: rows(4, 9, 9.0), 1: rows(4, 9, 1.0), 2: []}),
    )
    first, second = run_metrics(services, run)
    assert (first.number, first.worker, len(first.rows), first.cause) == (1, 1, 7, "preempted")
    assert (second.number, second.worker, second.rows[-1].values["loss"].mean) == (2, 0, 1.0)
    assert (first.said, second.said) == (
        "attempt 1: steps 0 to 6, preempted",
        "attempt 2: steps 4 to 8, goes on",
    )
    assert attempt_metrics(services, "r1", an_attempt(number=9, workers=(0,))) is None


def test_a_column_has_its_last_value_its_extremes_and_its_line(services: MemoryServices) -> None:
    last = {0: ["1 50 1 0.5:0.125:9", "2 52 1 nan"]}
    run = put(services, (Cause.PREEMPTED, {0: rows(0, 40, 8.0)}), (None, last))
    loss, rate = columns(run_metrics(services, run), 9)
    assert (loss.name, loss.low, loss.high, loss.last) == ("loss", 0.125, 9.0, None)
    assert loss.line.endswith("┊▄×") or loss.line.endswith("┊×")
    assert (rate.name, rate.last) == ("steps/s", 2.0)
    assert len(loss.line) <= 9


def test_a_run_that_goes_on_says_the_step_that_its_numbers_have(services: MemoryServices) -> None:
    run = put(services, (None, {0: ["1 50 1 0.5", "3 58 1 0.25"], 1: []}))
    status = run_status(services, run)
    assert (status["step"], status["steps"], status["steps_per_s"]) == (58.0, None, 4.0)
    over = replace(run, attempt=replace(run.attempt, cause=Cause.FAILED, step=57.0))
    assert run_status(services, over)["step"] == 57.0, "as the record has it"


def test_rates_are_of_whole_looks_and_the_last_value_is_no_mean(services: MemoryServices) -> None:
    looks = [f"{step // 2}.0 {step} 1 {step}" for step in range(400)]
    loss, rate = columns(run_metrics(services, put(services, (None, {0: [*looks, "200 401 2 5:1:9:1"]}))), 9)
    assert (loss.last, rate.low, rate.high) == (1.0, 2.0, 2.0)


def test_rows_are_data_that_json_and_spreadsheets_know(services: MemoryServices) -> None:
    run = put(services, (None, {0: ["1.5 1234567 1 2.5", "2.5 - 4 -inf", "3.5 3 4 2:1:3"]}))
    first, second, third = data_rows(run_metrics(services, run))
    assert first == {
        "attempt": 1,
        "worker": 0,
        "time": "1970-01-01T00:00:01.5Z",
        "step": 1234567.0,
        "count": 1,
        "values": {"loss": {"mean": 2.5, "min": 2.5, "max": 2.5}},
    }
    assert (second["step"], second["values"]) == (None, {"loss": {"mean": None, "min": None, "max": None}})
    assert third["values"]["loss"] == {"mean": 2.0, "min": 1.0, "max": 3.0}
    head, one, two, _ = csv_rows(run_metrics(services, run))
    assert head == ["attempt", "worker", "time", "step", "count", "loss", "loss_min", "loss_max"]
    assert one[3:] == ["1234567", 1, 2.5, 2.5, 2.5]
    assert two[3:6] == ["", 4, -math.inf]


def test_curves_mark_where_attempts_ended_and_what_is_no_number(services: MemoryServices) -> None:
    run = put(
        services,
        (Cause.PREEMPTED, {0: rows(0, 60, 9.0)}),
        (Cause.FAILED, {0: rows(50, 80, 9.0)}),
        (None, {0: [*rows(80, 90, 9.0), "91 91 1 nan", "92 92 1 0.1"]}),
    )
    loss, rate = curves(run_metrics(services, run))
    picture = ElementTree.fromstring(loss.svg)
    marks = list(picture.iter("line"))
    assert [(each.get("class"), each[0].text) for each in marks] == [
        ("mark lost", "attempt 1: preempted"),
        ("mark bad", "attempt 2: failed"),
    ]
    assert [float(each.get("x1", "0")) for each in marks] == [64.13, 85.87]
    assert len(list(picture.iter("polyline"))) == 4
    assert [each.text for each in picture.iter("text")] == ["×", "0", "46", "92"]
    assert (loss.said, rate.title) == ("from 0.1 to 9, logarithmic", "steps/s")
    page = make_report(services, "r1").html
    assert page.count('class="curves"') == 2
    assert "What the program printed" in page
    assert '<td data-title="Step">92</td>' in page
    (metric, _) = run_status(services, run)["metrics"]
    assert (metric["name"], metric["last"], metric["low"]) == ("loss", 0.1, 0.1)


def test_a_run_without_numbers_has_no_curves(services: MemoryServices) -> None:
    run = put(services, (None, {0: []}))
    assert run_metrics(services, run) == []
    assert run_status(services, run)["metrics"] == []
    assert "What the program printed" not in make_report(services, "r1").html


def test_lines_are_as_long_as_there_is_room() -> None:
    assert draw_line([[0.0, 1.0]], 40) == "▁█"
    assert draw_line([[3.0, 3.0]], 40) == "▅▅"
    assert draw_line([[math.inf, 1.0, 0.0]], 40) == "×█▁"
    assert draw_line([], 40) == draw_line([[]], 40) == ""
    for parts in (1, 2, 7, 100):
        assert len(draw_line([[float(n) for n in range(500)]] * parts, 40)) <= 40


def test_nothing_leaves_the_frame_whatever_numbers_are() -> None:
    for low, high in ((-1e308, 1e308), (0.0, 0.0), (1e-300, 1e300), (5.0, 5.0), (-3.0, 2.0)):
        points = [Point(x, mean, low, high) for x, mean in ((0.0, low), (1e15, high), (1e15, math.nan))]
        drawn = draw_curves("<x>&", [points, []], [Mark(1e15, "<end>", "bad")])
        picture = ElementTree.fromstring(drawn.svg)
        for element in picture.iter():
            places = [float(part) for pair in element.get("points", "").split() for part in pair.split(",")]
            assert all(-0.01 <= place <= 100.01 for place in places), drawn.svg
