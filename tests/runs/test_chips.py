"""Which chips a run gets, and what is refused before anything is written down."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.builders import a_run
from tpuctl.errors import UsageError
from tpuctl.model.cloud import Tier
from tpuctl.model.records import RunRecord
from tpuctl.model.run_spec import RunOptions, RunRequest
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.runs.chips import are_shared, check_chips, check_room, claim_chips, describe_chips
from tpuctl.runs.rules import check_run

V6E = SliceSpec("v6e-8", "us-east5-b", Tier.SPOT, "v2-alpha-tpuv6e", hosts=1, chips=8)
V4 = SliceSpec("v4-8", "us-central2-b", Tier.SPOT, "tpu-ubuntu2204-base", hosts=1, chips=4)
POD = replace(V4, accelerator_type="v4-16", hosts=2, chips=8)
ONE_CHIP = replace(V6E, accelerator_type="v6e-1", chips=1)


def with_chips(name: str, *chips: int, **spec: Any) -> RunRecord:
    record = replace(a_run(), id=name, chips=chips)
    return replace(record, spec=replace(record.spec, **spec))


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        (["1"] * 8, None),
        (["1"] * 9, 9),
        (["3", "1", "1"], None),
        (["3"] * 2 + ["1"] * 7, None),
        (["2", "3", *["1"] * 7], 9),
        (["all"], None),
    ],
)
def test_runs_that_are_to_share_a_slice_have_room_there_together(asked: list[str], count: int | None) -> None:
    runs = {
        str(number): RunOptions(chips=each) if each in {"1", "all"} else RunOptions(chip=each)
        for number, each in enumerate(asked)
    }
    if count is None:
        check_room(runs, V6E)
        return
    with pytest.raises(UsageError, match=f"{len(asked)} runs want {count} chips of a slice that has 8"):
        check_room(runs, V6E)


TWO = [with_chips("a", 0), with_chips("b", 2)]
CLAIMS = [
    ({}, V6E, [], (), []),
    ({}, V6E, TWO, (), ["a", "b"]),
    ({}, POD, [with_chips("a")], (), ["a"]),
    ({}, None, [with_chips("a")], (), ["a"]),
    ({"chips": "1"}, V6E, [], (0,), []),
    ({"chips": "1"}, V6E, TWO, (1,), []),
    ({"chips": "1"}, V6E, [with_chips("a")], (), ["a"]),
    ({"chips": "1"}, V4, [with_chips(str(chip), chip) for chip in range(4)], (), ["0", "1", "2", "3"]),
    ({"chips": "1"}, ONE_CHIP, [], (), []),
    ({"chip": "2"}, V6E, TWO, (2,), ["b"]),
    ({"chip": "3"}, V6E, TWO, (3,), []),
    ({"chip": "3,1"}, V6E, TWO, (1, 3), []),
    ({"chip": "0,1,2,3"}, V4, [], (), []),
    ({"chip": "3"}, V6E, [with_chips("a", 0, owns_slice=True)], (3,), ["a"]),
    ({"chip": "3"}, V6E, [with_chips("a", 0, owns_slice=True, keep_slice=True)], (3,), []),
]


@pytest.mark.parametrize(("asked", "spec", "others", "chips", "in_the_way"), CLAIMS)
def test_a_run_gets_chips_that_no_other_has(
    asked: dict[str, Any],
    spec: SliceSpec | None,
    others: list[RunRecord],
    chips: tuple[int, ...],
    in_the_way: list[str],
) -> None:
    got, found = claim_chips(RunOptions(**asked), spec, others)
    assert (got, [run.id for run in found]) == (chips, in_the_way)


BAD = [
    ({"chips": "2"}, V6E, "chips", "--chips '2' is unknown"),
    ({"chips": "1", "chip": "2"}, V6E, "chip", "exclude each other"),
    ({"chip": "x"}, V6E, "chip", "no number of a chip"),
    ({"chip": "-1"}, V6E, "chip", "no number of a chip"),
    ({"chip": "1,"}, V6E, "chip", "no number of a chip"),
    ({"chip": ""}, V6E, "chip", "no number of a chip"),
    ({"chip": "9"}, V6E, "chip", "--chip 9: v6e-8 has 8 chips"),
    ({"chip": "1"}, ONE_CHIP, "chip", "--chip 1: v6e-1 has 1 chip"),
    ({"chip": "0"}, POD, "chip", "this one has 2 hosts"),
    ({"chips": "1"}, POD, "chips", "this one has 2 hosts"),
    ({"chip": "0,2"}, V6E, "chip", "only one chip or all"),
    ({"chip": "0,1,2", "unproven": True}, V6E, "chip", "only one chip or all"),
]


@pytest.mark.parametrize(("asked", "spec", "key", "said"), BAD)
def test_what_cannot_be_had_is_refused_with_its_option(
    asked: dict[str, Any], spec: SliceSpec, key: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        check_chips(RunOptions(**asked), {}, spec)
    assert refused.value.details["key"] == key
    assert refused.value.hint


def test_a_variable_that_chooses_chips_is_refused_beside_the_option() -> None:
    with pytest.raises(UsageError, match="--var TPU_VISIBLE_CHIPS chooses chips"):
        check_chips(RunOptions(chips="1"), {"SEED": "1", "TPU_VISIBLE_CHIPS": "3"}, V6E)
    check_chips(RunOptions(), {"TPU_VISIBLE_CHIPS": "3"}, V6E)


def test_a_process_for_each_chip_takes_them_all() -> None:
    with pytest.raises(UsageError, match="--per chip starts a process on every chip of a host"):
        check_run(RunRequest(script="train.py", per="chip", chip="1"))


def test_what_can_be_had_is_taken() -> None:
    for asked in ({}, {"chips": "1"}, {"chip": "7"}, {"chip": "0,2", "unproven": True}):
        check_chips(RunOptions(**asked), {}, V6E)
    check_chips(RunOptions(), {}, POD)


def test_runs_share_a_slice_that_have_other_chips() -> None:
    assert are_shared(with_chips("a", 0), with_chips("b", 1, 2))
    assert not are_shared(with_chips("a", 1), with_chips("b", 1, 2))
    assert not are_shared(with_chips("a", 1), with_chips("b"))
    assert [describe_chips(each) for each in ((), (2,), (0, 2), (0, 1, 2))] == [
        "", "chip 2", "chips 0 and 2", "chips 0, 1 and 2",
    ]  # fmt: skip
