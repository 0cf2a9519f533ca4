"""What is remarkable about a slice, from the record and one word of the cloud."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.builders import a_slice, an_incarnation
from tpuctl.model.records import Desired, Loss, SliceState
from tpuctl.views.conditions import (
    ABSENT,
    UNREAD,
    Condition,
    cloud_word,
    group_conditions,
    judge_condition,
)

S = SliceState


@pytest.mark.parametrize(
    ("shown", "unread", "word"),
    [("READY", True, "READY"), ("", True, UNREAD), ("", False, ABSENT), ("SUSPENDED", False, "SUSPENDED")],
)
def test_the_clouds_word_is_its_own_or_says_why_there_is_none(shown: str, unread: bool, word: str) -> None:
    record = a_slice(incarnation=an_incarnation(create_called_at=1.0))
    assert cloud_word(record, shown, unread=unread) == word


def test_what_was_never_asked_for_is_not_called_absent() -> None:
    assert cloud_word(a_slice(incarnation=None), "", unread=False) == ""


@pytest.mark.parametrize(
    ("state", "cloud", "said"),
    [
        (S.READY, "READY", ""),
        (S.PROVISIONING, "WAITING_FOR_RESOURCES", ""),
        (S.REQUESTED, ABSENT, ""),
        (S.LOST, ABSENT, "`tpuctl up big` asks for it again"),
        (S.DELETING, ABSENT, "`tpuctl down big` or a pass ends it"),
        (S.DELETING, "SUSPENDED", ""),
        (S.READY, ABSENT, "nothing of it is left"),
        (S.BOOTING, "PREEMPTED", "the cloud says PREEMPTED"),
        (S.READY, UNREAD, "could not be read"),
        (S.REMOVED, ABSENT, "stays away: `tpuctl up"),
        (S.REMOVED, "SUSPENDED", "holds quota: `tpuctl up"),
        (S.REMOVED, "", "if its queued resource"),
        (S.REFUSED, ABSENT, "no such type; `tpuctl up"),
    ],
)
def test_only_what_is_not_as_it_should_be_is_remarked_on(state: SliceState, cloud: str, said: str) -> None:
    record = a_slice(
        state=state,
        desired=Desired.UP,
        incarnation=an_incarnation(create_called_at=1.0),
        loss=Loss(1.0, "refused", "no such type"),
    )
    found = judge_condition(record, cloud)
    assert (said in found) if said else found == ""


def test_a_direct_node_leaves_no_request_behind() -> None:
    spec = a_slice().spec
    record = a_slice(state=S.REMOVED, incarnation=an_incarnation(), spec=replace(spec, queued=False))
    assert "queued resource" not in judge_condition(record, "")


def test_what_is_the_same_for_many_slices_is_said_once() -> None:
    names = ("a", "b", "big", "big-2")
    said = [Condition(name, "{name} is away; `tpuctl up {name}` asks again") for name in names]
    other = Condition("c", "{name} was refused: {why}", why="no {type}, says big")
    assert group_conditions([*said[:2], other]) == [
        "a is away; `tpuctl up a` asks again",
        "b is away; `tpuctl up b` asks again",
        "c was refused: no {type}, says big",
    ]
    assert group_conditions([*said, other]) == [
        "4 slices (a, b, big, big-2): NAME is away; `tpuctl up NAME` asks again",
        other,
    ]


def test_of_many_names_the_first_ones_are_said() -> None:
    said = [Condition(f"v4-{number}", "{name} is away") for number in range(10)]
    assert group_conditions(said) == ["10 slices (v4-0, v4-1, v4-2, v4-3, v4-4, v4-5, …): NAME is away"]
