"""The grid of a sweep: what a file says, row by row."""

from __future__ import annotations

import pytest

from tpuctl.errors import BadConfigError, UsageError
from tpuctl.runs.matrix import ROWS_MAX, parse_matrix
from tpuctl.runs.sweep_request import describe_hourly


def rows(text: str) -> list[tuple[dict[str, str], tuple[str, ...]]]:
    return [(dict(row.variables), row.args) for row in parse_matrix(text, "grid.yaml")]


GOOD = {
    "one variable": ("SEED: [1, 2]", [({"SEED": "1"}, ()), ({"SEED": "2"}, ())]),
    "all combinations, the last changing fastest": (
        "SEED: [1, 2]\nMODEL: [small, large]",
        [
            ({"SEED": "1", "MODEL": "small"}, ()),
            ({"SEED": "1", "MODEL": "large"}, ()),
            ({"SEED": "2", "MODEL": "small"}, ()),
            ({"SEED": "2", "MODEL": "large"}, ()),
        ],
    ),
    "arguments, as they are written": (
        "args:\n  lr: [1e-3, 0.10]\n  --wd: [0]\n  model.depth=: [12]",
        [
            ({}, ("--lr", "1e-3", "--wd", "0", "model.depth=12")),
            ({}, ("--lr", "0.10", "--wd", "0", "model.depth=12")),
        ],
    ),
    "flags that are there or not": (
        "args: {bf16: [true, false], say: ['true']}",
        [({}, ("--bf16", "--say", "true")), ({}, ("--say", "true"))],
    ),
    "a variable that is true is a word": ("DEBUG: [true]", [({"DEBUG": "true"}, ())]),
    "keys that go together": (
        "zip:\n  MODEL: [s, l]\n  args: {batch: [64, 16]}\nSEED: [1, 2]",
        [
            ({"MODEL": "s", "SEED": "1"}, ("--batch", "64")),
            ({"MODEL": "s", "SEED": "2"}, ("--batch", "64")),
            ({"MODEL": "l", "SEED": "1"}, ("--batch", "16")),
            ({"MODEL": "l", "SEED": "2"}, ("--batch", "16")),
        ],
    ),
    "rows that are written out": (
        "list:\n- {SEED: 1}\n- {SEED: 7, args: {lr: 1e-4}}",
        [({"SEED": "1"}, ()), ({"SEED": "7"}, ("--lr", "1e-4"))],
    ),
}


@pytest.mark.parametrize(("text", "expected"), GOOD.values(), ids=GOOD.keys())
def test_a_grid_is_its_rows(text, expected):
    assert rows(text) == expected


def test_each_row_has_tags_that_tell_it_from_the_others():
    text = "SEED: [1, 2]\nargs: {--lr: [0.1], path=: ['gs://b/a,b']}"
    assert [row.tags for row in parse_matrix(text, "grid.yaml")] == [
        ("SEED=1", "lr=0.1", "path=gs://b/a;b"),
        ("SEED=2", "lr=0.1", "path=gs://b/a;b"),
    ]


BAD = {
    "nothing": ("", "1:1: there are no keys", "SEED: [1, 2]"),
    "a list": ("[1, 2]", "1:1: there are no keys", "SEED: [1, 2]"),
    "no list": ("SEED: 1", "1:1: SEED has no list", "SEED: [1, 2]"),
    "an empty list": ("SEED: []", "1:1: SEED has no list", "SEED: [1, 2]"),
    "no variable": (
        "A: [1]\nlearning-rate: [1]",
        "2:1: 'learning-rate' is no name of a variable",
        "below args:",
    ),
    "no argument": ("args: {'--l r': [1]}", "'--l r' is no argument", "--lr"),
    "a value that is a list": ("SEED: [[1]]", "a value of SEED is no word", "SEED: [1, 2]"),
    "a value that is nothing": ("SEED: [1, ~]", "a value of SEED is no word", "SEED: [1, 2]"),
    "args without keys": ("args: [1]", "1:1: args has keys", "args: {lr"),
    "zip without keys": ("zip: [1]", "zip has keys", ""),
    "zip of other lengths": ("zip: {A: [1], B: [1, 2]}", "A has 1, B has 2", "the same length"),
    "list without rows": ("list: {A: 1}", "list: has rows", "list: ["),
    "a row that is none": ("list: [1]", "list has keys", ""),
    "a row with a list": ("list: [{A: [1]}]", "a value of A is no word", ""),
    "a key in two places": ("A: [1]\nzip: {A: [2]}", "2:7: A stands at 1:1, too", "once"),
    "a key in list and outside": ("A: [1]\nlist: [{A: 2}]", "A stands at 1:1, too", "once"),
    "rows that are the same": ("list: [{A: 1}, {A: 2}, {A: 1}]", "rows 1 and 3 are the same", "leave one out"),
    "too many": (
        "\n".join(f"{key}: {list(range(10))}" for key in "ABCD"),
        f"10 x 10 x 10 x 10 are 10000 rows; at most {ROWS_MAX}",
        "fewer values",
    ),
}


@pytest.mark.parametrize(("text", "message", "hint"), BAD.values(), ids=BAD.keys())
def test_what_is_no_grid_is_refused_with_its_place(text, message, hint):
    with pytest.raises(UsageError) as refused:
        parse_matrix(text, "grid.yaml")
    assert refused.value.message.startswith("grid.yaml:")
    assert message in refused.value.message
    assert hint in (refused.value.hint or "")
    assert refused.value.details["key"] == "matrix"


@pytest.mark.parametrize(
    ("prices", "count", "said"),
    [
        ([1.5], 1, "about $1.50 per hour by the list while it is there"),
        ([1.5], 6, "about $9.00 per hour by the list while all are there"),
        ([1.5, 2.0], 2, "about $3.00 to $4.00 per hour by the list while all are there"),
        ([1.5, None], 2, "the price per hour is unknown"),
    ],
)
def test_what_its_slices_cost_is_said_by_the_hour(prices, count, said):
    assert describe_hourly(prices, count) == said


@pytest.mark.parametrize("text", ["SEED: [1", "A: [1]\nA: [2]"])
def test_what_is_no_yaml_is_refused_with_its_place(text):
    with pytest.raises(BadConfigError, match=r"grid.yaml:\d"):
        parse_matrix(text, "grid.yaml")
