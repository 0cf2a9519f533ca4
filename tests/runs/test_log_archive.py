"""Segments of collected logs in a shared store."""

from __future__ import annotations

from tpuctl.runs.log_archive import LogPart, parse_segment, render_segment
from tpuctl.state.gc_plan import find_children


def test_a_segment_gives_back_what_was_put_in() -> None:
    parts = [
        LogPart(0, "stdout", 0, b"one\ntwo\n"),
        LogPart(31, "stderr", 1 << 40, b"\n\xff\0"),
        LogPart(31, "stderr-times", 0, b""),
    ]
    assert parse_segment(render_segment(parts)) == parts


def test_what_programs_write_refers_to_no_blob() -> None:
    line = b'{"tree": "' + b"a" * 64 + b'"}'
    assert find_children(render_segment([LogPart(0, "stdout", 0, line)])) == frozenset()
