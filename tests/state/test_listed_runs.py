"""What lists tell of runs that are over: the same as their whole records."""

from __future__ import annotations

import pytest
from msgspec import NODEFAULT, Struct
from msgspec.structs import fields, replace

from tests.bench.stores import a_record
from tests.support.memory.services import MemoryPlace
from tpuctl.lib.codec import to_data
from tpuctl.model.attempts import Attempt
from tpuctl.model.receipt import Receipt
from tpuctl.model.records import RunRecord
from tpuctl.model.run_spec import RunSpec
from tpuctl.state.listed_runs import EndedRun, ListedAttempt, ListedReceipt, ListedSpec, listed_runs
from tpuctl.state.repository import RUNS
from tpuctl.views.runs import run_row

PARTS = {EndedRun: RunRecord, ListedSpec: RunSpec, ListedAttempt: Attempt, ListedReceipt: Receipt}


@pytest.mark.parametrize("part", PARTS, ids=lambda each: each.__name__)
def test_a_part_has_fields_of_the_whole(part: type[Struct]) -> None:
    whole = {each.name: each for each in fields(PARTS[part])}
    for each in fields(part):
        same = whole[each.name]
        assert (each.default, each.default_factory) == (same.default, same.default_factory)
        assert each.encode_name == same.encode_name
        inner = {"spec", "attempt", "data"}
        assert each.name in inner or each.type == same.type
    needed = {each.name for each in fields(part) if each.default is each.default_factory is NODEFAULT}
    assert needed <= whole.keys()


def test_a_list_tells_of_a_run_that_is_over_what_its_record_tells(place: MemoryPlace) -> None:
    services = place.machine()
    ended, going_on = a_record(1, 5, 4, on=False), a_record(2, 5, 4, on=True)
    unsaid = replace(a_record(3, 5, 4, on=False), reason="")
    for run in (ended, going_on, unsaid):
        RUNS.put(services, run.id, run, 0)
    found, damaged = listed_runs(services)
    assert [type(each) for each in found] == [EndedRun, RunRecord, RunRecord]
    assert [run_row(services, each) for each in found] == [
        run_row(services, run) for run in (ended, going_on, unsaid)
    ]
    assert not damaged


def test_what_lists_tell_is_read_also_where_the_rest_is_damaged(place: MemoryPlace) -> None:
    services = place.machine()
    run = a_record(1, 5, 4, on=False)
    damaged = {**to_data(run), "code": 7}
    services.store.put(run.key, damaged, if_generation=0)
    services.store.put("runs/worse", {**damaged, "state": 7}, if_generation=0)
    found, errors = listed_runs(services)
    assert [each.id for each in found] == [run.id]
    assert [error.details["key"] for error in errors] == ["runs/worse"]
