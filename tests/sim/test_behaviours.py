"""The list of what the simulator does as the real cloud names tests that there are."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.support.yaml_files import read_yaml

ROOT = Path(__file__).parents[2]
LIST = ROOT / "tests" / "sim" / "behaviours.yaml"
SECTIONS: dict[str, dict[str, list[str]]] = read_yaml(LIST)
BEHAVIOURS = {behaviour: tests for rows in SECTIONS.values() for behaviour, tests in rows.items()}


@cache
def named_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(
        each.name
        for each in tree.body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test_")
    )


def is_there(test: str) -> bool:
    """Whether `FILE::NAME` is a test, or `FILE` has some."""
    file, _, name = test.partition("::")
    if not (ROOT / file).is_file():
        return False
    return name in named_in(file) if name else bool(named_in(file))


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_every_behaviour_has_tests_and_they_exist(behaviour: str) -> None:
    tests = BEHAVIOURS[behaviour]
    assert tests
    assert [test for test in tests if not is_there(test)] == []
    assert len(set(tests)) == len(tests)


def test_no_behaviour_is_listed_twice() -> None:
    assert len(BEHAVIOURS) == sum(len(rows) for rows in SECTIONS.values())


def test_a_test_that_is_not_there_is_noticed() -> None:
    assert not is_there("tests/sim/test_none.py")
    assert not is_there("tests/sim/test_behaviours.py::test_none")
    assert is_there("tests/sim/test_behaviours.py::test_no_behaviour_is_listed_twice")
