"""A disk of a slice as it is typed."""

from __future__ import annotations

import pytest

from tpuctl.disks.follow import merge_refs
from tpuctl.disks.rules import DiskUse, parse_disk
from tpuctl.errors import UsageError
from tpuctl.model.disks import DiskMode
from tpuctl.model.refs import DiskRef

RO, RW = DiskMode.READ_ONLY, DiskMode.READ_WRITE


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("data", DiskUse("data", None, "")),
        ("data:/mnt/x", DiskUse("data", None, "/mnt/x")),
        ("data:ro", DiskUse("data", RO, "")),
        ("data:rw:/data", DiskUse("data", RW, "/data")),
    ],
)
def test_what_can_be_said(text: str, wanted: DiskUse) -> None:
    assert parse_disk(text) == wanted


@pytest.mark.parametrize(
    "text",
    ["", "Data", "data:", "data:wo", "data:mnt", "data:/", "data:/usr", "data:/mnt/../etc", "data:/mnt/"],
)
def test_what_cannot_be_said(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_disk(text)
    assert refused.value.hint


def test_a_path_has_one_disk_and_a_disk_one_path() -> None:
    one, two = DiskRef("data-g1", "/mnt/data", RO), DiskRef("data-g2", "/mnt/data", RO)
    moved = DiskRef("data-g1", "/mnt/old", RO)
    assert merge_refs((one,), (moved, two)) == (moved, two)
    assert merge_refs((two,), (moved,)) == (two, moved)
    assert merge_refs((one,), ()) == (one,)


@pytest.mark.parametrize("path", ["/mnt/data", "/mnt/data/below", "/mnt"])
def test_a_path_that_another_disk_has_is_refused(path: str) -> None:
    one, two = DiskRef("data-g1", "/mnt/data", RO), DiskRef("data-g2", path, RO)
    with pytest.raises(UsageError, match="disk data-g1 is at /mnt/data"):
        merge_refs((one,), (two,))
    with pytest.raises(UsageError, match="disk data-g1 is at /mnt/data"):
        merge_refs((), (one, two))
