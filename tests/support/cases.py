"""Cases of planners as data: one YAML file for each planner, one sentence for each case.

A case says what is given and what is planned. Records are as in the store, with only those fields that the case
speaks about. Times are numbers or sums such as `now + VERDICT_MAX_S - 1`, with names of `model/timeouts.py`. A
case with `each` is tried once with every entry of that list in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support.yaml_files import read_yaml
from tpuctl.lib.codec import from_data, to_data
from tpuctl.model import timeouts

T = TypeVar("T")
FOLDER = Path(__file__).parents[1] / "data" / "plans"
TERM = re.compile(r"[+-]?\s*(?:now|[A-Z_]+_S|\d+)")
SUM = re.compile(rf"(?:{TERM.pattern}\s*)+")


def load_cases(planner: str, now: float) -> list[Any]:
    """A parameter for each case of tests/data/plans/PLANNER.yaml, called by its sentence."""
    found = read_yaml(FOLDER / f"{planner}.yaml")
    return [
        pytest.param(_with_times(case, now), id=name)
        for sentence, whole in found.items()
        for name, case in _each(sentence, whole)
    ]


def _each(sentence: str, case: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if "each" not in case:
        yield sentence, case
    for number, more in enumerate(case.get("each", ())):
        yield f"{sentence} {number + 1}", merged({k: v for k, v in case.items() if k != "each"}, more)


def merged(data: Any, changes: Any) -> Any:
    """`data` with what `changes` has instead, mapping by mapping."""
    if not isinstance(data, Mapping) or not isinstance(changes, Mapping):
        return changes
    return {**data, **{key: merged(data.get(key), value) for key, value in changes.items()}}


def changed(record: T, changes: Mapping[str, Any]) -> T:
    """A Struct with fields changed as its stored form would have them."""
    made = from_data(type(record), merged(to_data(record), changes))
    assert not (lost := list(_lost(to_data(made), changes))), f"no such fields: {lost}"
    return made


def _lost(data: Any, changes: Mapping[str, Any]) -> Iterator[str]:
    """What a misspelt case would silently be without."""
    for key, value in changes.items():
        if key not in data:
            yield key
        elif isinstance(value, Mapping):
            yield from _lost(data[key], value)


def check(found: Any, wanted: Any, where: str = "") -> None:
    """Asserts what a case says of a result: fields by name, types by `is` or alone, texts by a part of them."""
    if isinstance(wanted, Mapping):
        for name, value in wanted.items():
            part = (
                found if name == "is" else found[name] if isinstance(found, Mapping) else getattr(found, name)
            )
            check(part, value, f"{where}.{name}")
    elif isinstance(wanted, str) and isinstance(found, str) and not isinstance(found, StrEnum):
        assert wanted in found, where
    elif isinstance(wanted, str) and not isinstance(found, str):
        assert type(found).__name__ == wanted, where
    else:
        assert found == (tuple(wanted) if isinstance(wanted, list) else wanted), where


def _with_times(value: Any, now: float) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_times(each, now) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_times(each, now) for each in value]
    if isinstance(value, str) and SUM.fullmatch(value):
        return sum(_term(term.replace(" ", ""), now) for term in TERM.findall(value))
    return value


def _term(text: str, now: float) -> float:
    name = text.lstrip("+-")
    value = now if name == "now" else float(name) if name.isdigit() else float(getattr(timeouts, name))
    return -value if text.startswith("-") else value
