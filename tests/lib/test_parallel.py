"""Looks at once: each gives a value or an error, and none holds up the others."""

from __future__ import annotations

import threading

import pytest

from tpuctl.errors import DeniedError, TransientError
from tpuctl.lib.parallel import read_all


def fail() -> None:
    raise DeniedError("not for you")


def test_values_and_errors_stand_side_by_side():
    found = read_all({"a": lambda: 1, "b": fail, "c": lambda: None})
    assert (found["a"].value, found["a"].error) == (1, None)
    assert isinstance(found["b"].error, DeniedError)
    assert found["b"].why_not == "not for you"
    assert found["c"].error is None


def test_a_look_that_hangs_is_left_behind():
    forever = threading.Event()
    try:
        found = read_all({"quick": lambda: 1, "slow": forever.wait}, timeout_s=0.2)
    finally:
        forever.set()
    assert found["quick"].value == 1
    assert isinstance(found["slow"].error, TransientError)


def test_a_bug_in_a_look_is_not_swallowed():
    with pytest.raises(ZeroDivisionError):
        read_all({"bug": lambda: 1 / 0})


def test_nothing_to_look_at():
    assert read_all({}) == {}
