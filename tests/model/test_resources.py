"""Marks: whose a thing is that takes no labels."""

from __future__ import annotations

import pytest

from tpuctl.model.resources import marks_text, parse_marks, without_marks

LABELS = {
    "tpuctl-slice": "big",
    "tpuctl-incarnation": "3",
    "tpuctl-store": "ab12",
    "tpuctl-user": "alice",
}
MARKS = "[tpuctl-slice=big tpuctl-incarnation=3 tpuctl-store=ab12 tpuctl-user=alice]"


@pytest.mark.parametrize(
    ("labels", "text", "description"),
    [
        (LABELS, "", MARKS),
        (LABELS, "Ablation of [this]", f"Ablation of [this] {MARKS}"),
        ({**LABELS, "team": "vision"}, "", MARKS),
        ({**LABELS, "tpuctl-user": ""}, "", MARKS.replace("alice", "")),
        ({"tpuctl-slice": "big"}, "[tpuctl-slice=small]", "[tpuctl-slice=small] [tpuctl-slice=big]"),
        ({}, "Ablation", "Ablation"),
        ({}, "", ""),
    ],
)
def test_marks_come_back_from_the_description_and_so_does_the_text(labels, text, description):
    assert marks_text(labels, text) == description
    owners = {key: value for key, value in labels.items() if key.startswith("tpuctl-")}
    assert parse_marks(description) == owners
    assert without_marks(description) == text


@pytest.mark.parametrize(
    "description",
    [
        "made by hand",
        f"{MARKS} and more",
        MARKS[:-1],
        "[]",
        "[tpuctl-slice=big; tpuctl-user=alice]",
        "[team=vision]",
        f"{MARKS}\n",
    ],
)
def test_what_tpuctl_did_not_write_is_no_mark(description):
    assert parse_marks(description) == {}
    assert without_marks(description) == description
