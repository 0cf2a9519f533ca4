"""Which copies `disk gc` takes: judged by what is there, never by what is recorded."""

from __future__ import annotations

from typing import Any

import pytest

from tpuctl.disks.remove import judge_copies
from tpuctl.model.cloud import Listing
from tpuctl.model.disks import DiskInfo, DiskRecord, DiskRequest

ZONE, OTHER = "us-central2-b", "us-east5-a"


def copy(generation: int, **more: Any) -> DiskRecord:
    """A completed copy of `data`."""
    name, zone = more.pop("name", f"data-g{generation}"), more.pop("zone", ZONE)
    source = more.pop("source_snapshot", "")
    request = DiskRequest(name, zone, "pd-balanced", 10, {}, source_snapshot=source)
    return DiskRecord(name, request, "ada", 0.0, "data", generation, **{"complete": True, **more})


def seen(*names: str, users: tuple[str, ...] = (), zone: str = ZONE) -> list[DiskInfo]:
    return [DiskInfo(name, zone, name, "pd-balanced", 10, "READY", users=users) for name in names]


def taken(records: list[DiskRecord], disks: list[DiskInfo], keep: int, *dark: str) -> list[str]:
    return [each.name for each in judge_copies(records, Listing(tuple(disks), frozenset(dark)), keep)]


G1, G2, G3 = copy(1), copy(2), copy(3)
G4_BEGUN = copy(4, complete=False)
ALL = seen("data-g1", "data-g2", "data-g3")
CASES: list[tuple[str, list[DiskRecord], list[DiskInfo], int, tuple[str, ...], list[str]]] = [
    ("the newest stay", [G1, G2, G3], ALL, 2, (), ["data-g1"]),
    ("none stays", [G1, G2, G3], ALL, 0, (), ["data-g3", "data-g2", "data-g1"]),
    ("a record of a clone that ended early keeps nothing", [G1, G2, G4_BEGUN], ALL[:2], 1, (), ["data-g1"]),
    (
        "a copy that is begun does not count even where it is there",
        [G1, G4_BEGUN],
        seen("data-g1", "data-g4"),
        1,
        (),
        [],
    ),
    ("a copy that somebody deleted by hand keeps nothing", [G1, G3], ALL[:1], 1, (), []),
    ("but its record goes where newer ones are there", [G1, G3], ALL[2:], 1, (), ["data-g1"]),
    (
        "a copy in a zone that was not read does not count and stays",
        [G1, G2, copy(3, zone=OTHER)],
        ALL[:2],
        1,
        (OTHER,),
        ["data-g1"],
    ),
    ("nor is it taken", [copy(1, zone=OTHER), G2], ALL[1:2], 0, (OTHER,), ["data-g2"]),
    ("what is attached stays", [G1, G2], [*seen("data-g1", users=("a-w-0",)), *ALL[1:2]], 0, (), ["data-g2"]),
    (
        "a snapshot that was asked for stays",
        [copy(1, wanted=False, snapshot="data-g1-s"), G2],
        ALL[1:2],
        0,
        (),
        ["data-g2"],
    ),
    ("and keeps no copy", [G1, copy(2, wanted=False, snapshot="data-g2-s")], ALL[:1], 1, (), []),
    ("what is being removed goes", [copy(1, wanted=False, complete=False)], ALL[:1], 2, (), ["data-g1"]),
    (
        "the same generation in two zones counts once",
        [G2, copy(2, name="data-g2-e", zone=OTHER, parent="data-g2"), G1],
        [*ALL[:2], *seen("data-g2-e", zone=OTHER)],
        1,
        (),
        ["data-g1"],
    ),
    (
        "the parent of a clone under way in another zone stays",
        [G1, copy(1, name="data-g1-e", zone=OTHER, parent="data-g1", snapshot="data-g1-s", complete=False)],
        ALL[:1],
        0,
        (),
        [],
    ),
    (
        "and so does the copy whose snapshot an unfinished one is made from",
        [G1, copy(2, complete=False, source_snapshot="data-g1-s", snapshot="data-g1-s")],
        ALL[:1],
        0,
        (),
        [],
    ),
]


@pytest.mark.parametrize(
    ("records", "disks", "keep", "dark", "wanted"), [row[1:] for row in CASES], ids=[row[0] for row in CASES]
)
def test_copies_count_where_they_are_there(
    records: list[DiskRecord], disks: list[DiskInfo], keep: int, dark: tuple[str, ...], wanted: list[str]
) -> None:
    assert taken(records, disks, keep, *dark) == wanted
