from __future__ import annotations

import pytest
import yaml

from tpuctl.config.yaml_positions import MarkedMapping, Position, parse_marked, plain
from tpuctl.errors import BadConfigError


def test_keys_and_values_know_where_they_stand():
    marked = parse_marked("a:\n  bb: [1, two]\n", "f")
    assert isinstance(marked, MarkedMapping)
    inner = marked.entries["a"]
    assert isinstance(inner, MarkedMapping)
    assert (marked.keys["a"], inner.keys["bb"], inner.entries["bb"].place) == (
        Position(1, 1),
        Position(2, 3),
        Position(2, 7),
    )


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\nb: 0x10\nc: .5\nd: -3\ne: 1e3",
        "a: yes\nb: false\nc: 'yes'\nd: ~\ne:",
        "a: [x, {b: c}]\nd: |\n  two\n  lines\n",
        "a: &x {b: 1, c: 2}\nd: *x\ne: {<<: *x, c: 3}",
        "a: &x {b: 1}\nc: &y {b: 2, d: 3}\ne: {<<: [*x, *y]}",
        "",
        "# only a remark",
        "just text",
    ],
)
def test_without_its_places_it_is_what_yaml_says(text):
    assert plain(parse_marked(text, "f")) == yaml.safe_load(text)


def test_what_yaml_1_1_takes_for_a_truth_value_may_be_a_key():
    assert plain(parse_marked("on: big\nno: 1", "f")) == {"on": "big", "no": 1}


def test_an_alias_is_the_same_object_and_nothing_is_expanded():
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))
    marked = parse_marked(bomb, "f")
    assert isinstance(marked, MarkedMapping)
    last = marked.entries["a59"]
    assert last.items[0] is last.items[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3", "f:3:1: the key 'a' stands here twice (first on line 1)"),
        ("a: !!python/name:os.system x", "f:1:4: the tag !!python/name:os.system is not allowed"),
        ("a: !mine {b: c}", "f:1:4: the tag !mine is not allowed"),
        ("a: &x [*x]", "f:1:4: an anchor that contains itself"),
        ("? [1]\n: 2", "f:1:3: a key must be a word"),
        ("a: [", "not valid YAML"),
        ("a: b: c", "f:1:5: not valid YAML"),
        ("a: *nope", "f:1:4: not valid YAML: found undefined alias 'nope'"),
        ("--- 1\n--- 2", "another document"),
        ("a: \0", "not valid YAML"),
        ("a: !!int x", "f:1:4: 'x' is not a whole number"),
        ("a: {<<: 3}", "<< takes a mapping"),
        (f"a: {'[' * 5000}", "f:1:54: nested more than 50 levels deep"),
    ],
)
def test_what_is_not_plain_data_is_refused_with_its_place(text, said):
    with pytest.raises(BadConfigError) as caught:
        parse_marked(text, "f")
    assert said in caught.value.message
