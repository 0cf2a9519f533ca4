"""The picture of capacity: everything in its place and inside the frame, whatever was learnt."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from tpuctl.model.capacity import CapacityNote, HourStat
from tpuctl.model.cloud import Tier
from tpuctl.views.plot import render_capacity

NOW = 1_795_275_000.0
SVG = "{http://www.w3.org/2000/svg}"
BUSY = CapacityNote(
    "us-central2-b",
    "v4-32",
    Tier.SPOT,
    last_ready_at=NOW - 7_200,
    waits_s=(0.0, 60.0, 3_600.0, 9e9),
    lives_s=(1.0, 86_400.0),
    hours={"00": HourStat(2, 0), "09": HourStat(4, 2), "23": HourStat(120, 120)},
)
EMPTY = CapacityNote("<zone>&", "v5litepod-256", Tier.PREEMPTIBLE)


def drawn(*notes: CapacityNote) -> ElementTree.Element:
    return ElementTree.fromstring(render_capacity(notes, NOW))


def words(picture: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in picture.iter(f"{SVG}text")]


def test_each_hour_says_how_many_requests_got_capacity() -> None:
    said = words(drawn(BUSY))
    assert {"0/2", "2/4", "100%"} <= set(said)
    assert "spot: 122 of 126, last found 2 h ago" in said


def test_shares_have_colours_that_differ_and_hours_without_requests_have_none() -> None:
    cells = [each for each in drawn(BUSY).iter(f"{SVG}rect") if each.find(f"{SVG}title") is not None]
    assert [each.get("fill") for each in cells] == ["#d55e00", "#ece6d6", "#0072b2"]
    blank = [each for each in drawn(BUSY).iter(f"{SVG}rect") if each.get("class") == "none"]
    assert len(blank) == 24 - 3 + 1  # and the one in the legend


def test_nothing_leaves_the_frame_however_long_a_wait_was() -> None:
    picture = drawn(BUSY, EMPTY)
    width, height = float(picture.get("width", "0")), float(picture.get("height", "0"))
    for element in picture.iter():
        for key, most in (("x", width), ("cx", width), ("x1", width), ("y", height), ("cy", height)):
            assert 0 <= float(element.get(key, "0")) <= most
    dots = [float(each.get("cx", "0")) for each in picture.iter(f"{SVG}circle")]
    assert len(dots) == 6
    assert dots[:4] == sorted(dots[:4])


def test_longer_spans_are_further_right_and_the_median_is_among_them() -> None:
    picture = drawn(BUSY)
    dots = [float(each.get("cx", "0")) for each in picture.iter(f"{SVG}circle")][:4]
    median = next(each for each in picture.iter(f"{SVG}line") if each.get("class") == "median")
    assert dots[1] < float(median.get("x1", "0")) < dots[2]


def test_a_type_that_was_only_asked_for_is_a_row_too_and_names_are_escaped() -> None:
    said = words(drawn(EMPTY))
    assert "<zone>&  v5litepod-256" in said
    assert "preemptible: 0 of 0, never found" in said
