"""What is done next for a slice. The cases are in tests/data/plans/slices.yaml."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.builders import a_slice
from tests.support.cases import changed, check, load_cases
from tpuctl.slices.plan import next_incarnation, plan_slice
from tpuctl.slices.states import ObservedEvent, SliceEvent

NOW = 5000.0


@pytest.mark.parametrize("case", load_cases("slices", NOW))
def test_what_is_done_next(case: dict[str, Any]) -> None:
    record = changed(a_slice(), case.get("slice", {}))
    seen = ObservedEvent(SliceEvent(case["seen"]), case.get("why", "seen"), case.get("pending", False))
    check(plan_slice(record, seen, NOW), case["plan"])


def test_incarnation_numbers_only_grow() -> None:
    assert next_incarnation(a_slice(last_incarnation=7), NOW).cloud_name == "big-8"
