from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema
import pytest

from tests.docs.generate import ROOT
from tests.docs.reference import render_schema
from tpuctl.config.file import SECTIONS, file_error, frame_problems
from tpuctl.config.schema import Problem, render_example
from tpuctl.config.yaml_positions import parse_marked, plain
from tpuctl.fleet.file import FleetFile, FleetRequest, in_file_words, parse_fleet_file
from tpuctl.lib.options import registry
from tpuctl.model.cloud import Tier
from tpuctl.model.run_spec import PolicyRequest, RunRequest
from tpuctl.model.slice_spec import SliceRequest

SCHEMA = ROOT / "manifests" / "fleet.schema.json"
EXAMPLES = sorted((ROOT / "manifests" / "examples").glob("*.yaml"))


def parse(text: str) -> tuple[FleetFile | None, list[Problem]]:
    marked = parse_marked(text, "f")
    found, problems = parse_fleet_file(marked, "f")
    return found, [*frame_problems(marked, text, SECTIONS), *problems]


def fleet(text: str) -> FleetRequest:
    found, problems = parse(text)
    assert problems == []
    assert found is not None
    return found.fleet


def told(text: str) -> list[str]:
    return [f"{problem.place}: {problem.message}" for problem in parse(text)[1]]


def test_a_file_becomes_requests():
    found = fleet(
        """
fleet:
  name: lab
  slices:
    big: {accelerator: v4-32, zone: us-central2-b, tier: on-demand, queued: no, pay: true}
    small: {accelerator: v4-8, zone: [us-central2-b, us-east1-d], label: {team: 7}}
  runs:
    train:
      on: big
      script: train.py
      args: [--lr, 3e-4, --flag, yes]
      var: {SEED: 007, OPEN: on}
      no_checkpoint: true
      policy: {max_failures: 3, grace: 1.5}
"""
    )
    assert found.slices["big"] == SliceRequest(
        accelerator="v4-32", zone=("us-central2-b",), tier=Tier.ON_DEMAND, queued=False, pay=True
    )
    assert found.slices["small"].zone == ("us-central2-b", "us-east1-d")
    assert found.slices["small"].label == {"team": "7"}
    assert found.runs["train"] == RunRequest(
        on="big",
        script="train.py",
        args=("--lr", "3e-4", "--flag", "yes"),
        var={"SEED": "007", "OPEN": "on"},
        no_checkpoint=True,
        policy=PolicyRequest(max_failures=3, grace=1.5),
    )


def misspelt(word: str) -> Iterator[str]:
    """Every way to leave out a letter, to swap two, and to type one twice."""
    for i in range(len(word)):
        yield word[:i] + word[i + 1 :]
        yield word[:i] + word[i] + word[i:]
        yield word[:i] + word[i + 1 : i + 2] + word[i] + word[i + 2 :]


def one_letter_apart(one: str, other: str) -> bool:
    return len(one) == len(other) and sum(a != b for a, b in zip(one, other, strict=True)) == 1


PLACES: dict[Any, str] = {
    FleetRequest: "fleet:\n  name: lab\n  KEY: 1\n",
    SliceRequest: "fleet:\n  name: lab\n  slices:\n    a:\n      KEY: 1\n",
    RunRequest: "fleet:\n  name: lab\n  slices: {a: {}}\n  runs:\n    r:\n      KEY: 1\n",
    PolicyRequest: "fleet:\n  name: lab\n  slices: {a: {}}\n  runs:\n    r:\n      policy:\n        KEY: 1\n",
}


@pytest.mark.parametrize(
    ("shape", "key"), [(shape, key) for shape in PLACES for key in registry(shape)], ids=lambda item: str(item)
)
def test_a_typo_in_any_key_is_named_with_its_line_and_the_nearest_key(shape, key):
    known = set(registry(shape))
    for typo in set(misspelt(key)) - known - {""}:
        text = PLACES[shape].replace("KEY", f'"{typo}"')
        line = text[: text.index(f'"{typo}"')].count("\n") + 1
        found = [each for each in told(text) if f"unknown key {typo!r}" in each]
        assert len(found) == 1, typo
        assert found[0].startswith(f"{line}:")
        if len(key) > 2:
            alike = [each for each in known if each.startswith(key) or key.startswith(each)]
            alike += [
                each for each in known if one_letter_apart(each, typo)
            ]  # `pai` is as near to pay as to api
            assert found[0].endswith(tuple(f"did you mean {each!r}?" for each in alike)), (typo, found)


@pytest.mark.parametrize("key", ["disks", "mounts"])
def test_what_tpuctl_cannot_do_is_no_key(key):
    assert any(f"unknown key {key!r} in fleet" in each for each in told(f"fleet: {{name: x, {key}: {{}}}}"))


def test_a_key_that_is_like_none_comes_without_a_guess():
    (only,) = told("fleet: {name: x, slices: {a: {colour: red}}}")
    assert only.endswith("unknown key 'colour' in fleet.slices.a")


def test_what_belongs_to_the_fleet_is_sent_there_from_the_top_level():
    assert "1:1: 'slices' belongs below fleet:" in told("slices: {a: {accelerator: v4-8}}")


def test_the_name_of_a_flag_leads_to_the_key_that_says_the_same():
    (only,) = told("fleet: {name: x, slices: {a: {spot: true}}}")
    assert only.endswith("unknown key 'spot' in fleet.slices.a; did you mean 'tier'?")
    (only,) = told("fleet: {name: x, slices: {a: {direct: true}}}")
    assert only.endswith("did you mean 'queued'?")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("queued: maybe", "fleet.slices.a.queued must be true or false, not maybe"),
        ("pay: 1", "must be true or false, not 1"),
        ("boot_disk: big", "must be a whole number, not big"),
        ("boot_disk: 1.5", "must be a whole number, not 1.5"),
        ("slices: 0", "must be 1 or more, not 0"),
        ("accelerator: 4", "must be text, not 4"),
        ("ttl: 28800", "must be text, not 28800"),
        ("accelerator: [v4-8]", "must be text"),
        ("accelerator:", "has no value"),
        ("tier: sopt", "'sopt' is not known; did you mean 'spot'?"),
        ("network_tag: training", "must be a list"),
        ("zone: {a: b}", "must be a list"),
        ("label: [a]", "must hold keys and values"),
    ],
)
def test_a_value_of_the_wrong_kind_is_told_with_its_place(value, said):
    (only,) = told(f"fleet:\n  name: x\n  slices:\n    a:\n      {value}\n")
    assert only.startswith("5:")
    assert said in only


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ("r: {on: a}", "fleet.runs.r: say what to run"),
        ("r: {on: a, script: x.py, module: y}", "say what to run once: script and module exclude each other"),
        ("r: {on: a, script: ../x.py}", "not below the directory"),
        ("r: {on: a, command: [x], args: [y]}", "args go with a script or a module"),
        ("r: {on: a, script: x, worker: 0}", "leaves out workers"),
        ("r: {on: a, script: x, no_checkpoint: true, checkpoint_dir: gs://b/x}", "exclude each other"),
        ("r: {on: a, script: x, secret: {T: plain}}", "must be a reference"),
        ("r: {script: x}", "does not say which slice"),
        ("r: {on: c, script: x}", "there is no slice 'c' in the file"),
        ("r: {on: a, script: x}\n    s: {on: a, script: y}", "slice a has run r already"),
        ("R!: {on: a, script: x}", "run id 'R!' is not valid"),
    ],
)
def test_what_contradicts_itself_is_told(runs, said):
    found = told(f"fleet:\n  name: x\n  slices: {{a: {{}}, b: {{}}}}\n  runs:\n    {runs}\n")
    assert any(said in each for each in found), found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there are no keys and values"),
        ("settings: {tier: spot}", "there is no fleet in it"),
        ("flet: {name: x}", "did you mean 'flet' to be 'fleet'?"),
        ("fleet: {}", "fleet lacks the key 'name'"),
        ("fleet: [a]", "fleet must hold keys and values"),
        ("fleet: {name: My Lab}", "fleet name 'My Lab' is not valid"),
        ("fleet: {name: x, slices: {Big_One: {}}}", "slice name 'Big_One' is not valid"),
    ],
)
def test_a_frame_that_cannot_be_is_told(text, said):
    assert any(said in each for each in told(text))


def test_what_an_alias_repeats_is_complained_of_once():
    assert len(told("fleet:\n  name: x\n  slices:\n    a: &a {teir: spot}\n    b: *a\n    c: *a\n")) == 1


def test_all_problems_make_one_error_in_the_order_of_the_file():
    _, problems = parse("fleet:\n  name: x\n  slices:\n    a: {teir: spot}\n  rnus: {}\nsettings: {zoen: x}\n")
    error = file_error("f", problems)
    lines = error.message.splitlines()
    assert lines[0] == "3 problems in f"
    assert [line.split(":")[1] for line in lines[1:]] == ["4", "5", "6"]
    assert [entry["line"] for entry in error.details["problems"]] == [4, 5, 6]
    assert error.exit_code == 2


def test_settings_of_the_old_form_are_told_with_the_file_as_it_should_be():
    text = "# mine\nproject: my-project\ntier: spot\nzone:\n  - us-central2-b\n"
    (problem,) = frame_problems(parse_marked(text, "f"), text, SECTIONS)
    assert problem.hint is not None
    mended = problem.hint.partition("\n")[2]
    assert plain(parse_marked(mended, "f")) == {"settings": plain(parse_marked(text, "f"))}
    assert frame_problems(parse_marked(mended, "f"), mended, SECTIONS) == []


def test_flags_in_hints_become_keys():
    assert in_file_words("--zone us-east1-d, or --spot", SliceRequest) == "zone: us-east1-d, or tier: spot"
    assert (
        in_file_words("leave out --direct; add --pay", SliceRequest) == "leave out queued: false; add pay: true"
    )
    assert in_file_words("--secret T=env:T, or not", RunRequest) == "secret: {T: env:T}, or not"


def test_a_run_whose_key_is_misspelt_is_complained_of_once():
    (only,) = told("fleet: {name: x, slices: {a: {}}, runs: {r: {on: a, scrpt: x.py}}}")
    assert only.endswith("did you mean 'script'?")


def test_a_number_for_a_span_is_told_how_spans_are_written():
    _, problems = parse("fleet: {name: x, slices: {a: {ttl: 28800}}}")
    assert problems[0].hint == "put it in quotes: '28800'; ttl: 8h"


def test_the_published_schema_is_that_of_the_shapes():
    assert SCHEMA.read_text() == render_schema(), "run `make docs`"


@cache
def validator() -> Any:
    """Of the published file, which is a schema itself: to check that takes longer than all cases together."""
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_right_and_named_like_their_files(path):
    assert fleet(path.read_text()).name == path.stem
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_fit_the_schema_as_an_editor_sees_it(path):
    assert list(validator().iter_errors(plain(parse_marked(path.read_text(), "f")))) == []


@pytest.mark.parametrize(
    ("shape", "key"),
    [(shape, key) for shape in (SliceRequest, RunRequest, PolicyRequest) for key in registry(shape)],
    ids=lambda item: str(item),
)
def test_schema_and_reader_agree_on_every_example_and_on_every_wrong_kind(shape, key):
    about = registry(shape)[key]
    assert about.examples, f"{key} has no example"
    for value in [*map(render_example, about.examples), "[[1]]", "{a: [1]}", "[{}]"]:
        text = PLACES[shape].replace("KEY: 1", f"{key}: {value}")
        by_schema = validator().is_valid(plain(parse_marked(text, "f")))
        by_reader = not any(f".{key}" in problem.message for problem in parse(text)[1])
        assert by_schema == by_reader, text
