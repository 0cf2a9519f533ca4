"""Output of pods as it is kept on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kube.lab import NAMES, Lab
from tests.support.crashing import Crash, Crashing, CrashPoint
from tests.support.kube.pod_logs import lines_of
from tpuctl.engine.events import Warn
from tpuctl.kube.pod_logs import stamp_key
from tpuctl.model.records import RunState
from tpuctl.runs.request import request_stop


def test_output_is_fetched_once_whole_and_with_its_times(lab: Lab) -> None:
    lab.start()
    lab.line(0, "a", "2026-11-26T12:00:01.123456789Z")
    lab.line(3, "b", "2026-11-26T12:00:01Z")
    lab.settle()
    lab.line(0, "c", "2026-11-26T12:00:01.2Z")
    lab.line(0, "d", "2026-11-26T12:00:05Z")
    lab.settle()
    lab.settle()
    assert (lab.output(0), lab.output(3)) == ("a\nc\nd\n", "b\n")
    times = lab.services.logs.read("r1", 1, 0, "stdout-times", 0, 1000).decode().split()
    assert times[-2:] == ["000000000000006", "1795694405000"]
    assert lab.services.output().count("a\n") == 1


def test_lines_of_the_same_nanosecond_come_each_once_wherever_a_read_ends(lab: Lab) -> None:
    lab.start()
    at = "2026-11-26T12:00:01.123456789Z"
    for text in ("a", "b", "c"):
        lab.line(0, text, at)
        lab.settle()
    assert lab.output(0) == "a\nb\nc\n"
    for number in range(9):  # more than a piece
        lab.line(0, str(number) * (1 << 20), at)
    lab.settle()
    lab.settle()
    found = lab.services.logs.read("r1", 1, 0, "stdout", 0, 1 << 24)
    assert (len(found), found[6], found[-2:]) == (6 + 9 * ((1 << 20) + 1), ord("0"), b"8\n")


def test_a_line_that_is_older_than_the_one_before_is_not_lost(lab: Lab) -> None:
    lab.start()
    for text, fraction in (("a", "5"), ("b", "4"), ("c", "5"), ("d", "3"), ("e", "6")):
        lab.line(0, text, f"2026-11-26T12:00:01.{fraction}Z")
        lab.settle()
    lab.line(0, "f", "2026-11-26T12:00:02Z")
    lab.settle()
    lab.settle()
    assert lab.output(0) == "a\nb\nc\nd\ne\nf\n"


def test_a_fetch_that_was_cut_off_before_its_cursor_writes_the_same_again(lab: Lab) -> None:
    lab.start()
    lab.line(0, "a")
    logs, point = lab.services.logs, CrashPoint(3)  # its log, its times, its cursor
    lab.services.logs = Crashing(logs, point, lambda name, _: name in {"write", "append"})
    with pytest.raises(Crash):
        lab.settle()
    lab.services.logs = logs
    lab.line(0, "b", "2026-11-26T12:00:02Z")
    lab.settle()
    assert lab.output(0) == "a\nb\n"


def test_progress_bars_keep_all_they_write_and_offsets_of_a_node_are_those_of_its_log(lab: Lab) -> None:
    lab.start()
    for at in ("2026-11-26T14:00:01.1+02:00", "2026-11-26T14:00:02.1+02:00"):
        lab.line(0, " 10%\r 20%\r\x0b 30%", at)
        lab.settle()
    assert lab.output(0) == " 10%\r 20%\r\x0b 30%\n" * 2


def test_more_than_a_piece_within_one_second_comes_whole(lab: Lab) -> None:
    lab.start()
    for number in range(9):
        lab.line(0, str(number) * (1 << 20), f"2026-11-26T12:00:01.{number}Z")
    lab.line(0, "end", "2026-11-26T12:00:02Z")
    lab.settle()
    found = lab.services.logs.read("r1", 1, 0, "stdout", 0, 1 << 24)
    assert (len(found), found[-5:]) == (9 * ((1 << 20) + 1) + 4, b"\nend\n")


def test_a_log_that_cannot_be_read_is_told_once_and_holds_up_nothing(lab: Lab) -> None:
    lab.start()
    for number in range(4):
        lab.line(number, "a")
    lab.api.lost |= set(NAMES[:3])
    lab.settle()
    assert lab.output(3) == ""
    lab.settle()
    assert lab.output(3) == "a\n"
    lab.settle()
    told = [each for each in lab.services.events if isinstance(each, Warn)]
    assert [each.text.split(":")[0] for each in told] == [
        f"output of worker {number} cannot be read" for number in range(3)
    ]
    lab.api.lost.clear()
    request_stop(lab.services, "r1")
    lab.settle()
    assert (lab.run.state, lab.output(0)) == (RunState.STOPPED, "a\n")


def test_times_are_ordered_whatever_their_digits() -> None:
    stamps = [
        "2026-11-26T12:00:00Z",
        "2026-11-26T12:00:00.05Z",
        "2026-11-26T12:00:00.5Z",
        "2026-11-26T12:00:01.1Z",
    ]
    assert sorted(stamps, key=stamp_key) == stamps
    assert stamp_key("") < stamp_key(stamps[0])


def test_the_kubelet_of_the_tests_splits_at_newlines_alone_as_kubelets_do(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"2026-11-26T12:00:01Z 10%\r20%\r100%\n")
    query = {"timestamps": "true"}
    assert list(lines_of(path, lambda: False, query)) == [path.read_bytes()]
