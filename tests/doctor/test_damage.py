"""Damaged records of every kind: what their error says to type removes them, and no other record."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tpuctl
from tests.support.memory.services import MemoryPlace
from tpuctl.doctor.damage import REPOSITORIES, check_damaged, remove_damaged
from tpuctl.errors import ConflictError, DamagedRecordError
from tpuctl.state.journal import read_journal, record_decision

KINDS = {each.kind: each for each in REPOSITORIES}


def test_each_kind_of_record_is_known_here():
    sources = Path(tpuctl.__file__).parent.rglob("*.py")
    made = [kind for path in sources for kind in re.findall(r'= Repository\(.*"([a-z-]+)"\)', path.read_text())]
    assert {*made} == {*KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_error_of_a_damaged_record_says_to_type_removes_it(place: MemoryPlace, kind: str):
    services, records = place.machine(), KINDS[kind]
    name = "" if kind == "pause" else "x/00000"
    key = records.key(name)
    data = {field: {"of another": ["shape"]} for field in records.cls.__struct_fields__}
    generation = services.store.put(key, data, if_generation=0).generation
    with pytest.raises(DamagedRecordError) as error:
        records.find(services, name)
    assert f"tpuctl store forget {key}" in (error.value.hint or "")
    assert check_damaged(services, key) == generation
    remove_damaged(services, key, generation)
    assert not records.generation(services, name)


def test_a_record_that_can_be_read_is_not_removed(place: MemoryPlace):
    services = place.machine()
    services.store.put("sweeps/x", {}, if_generation=0)
    assert check_damaged(services, "sweeps/x")
    services.store.put("notes/x", {}, if_generation=0)
    with pytest.raises(ConflictError, match="notes/x can be read"):
        check_damaged(services, "notes/x")


def test_a_damaged_entry_of_a_journal_is_removed_as_its_error_says(place: MemoryPlace):
    services = place.machine()
    record_decision(services, "slices/big", "up", "asked for")
    key = services.store.append("journal/slices/big/", {"reason": "lost its action"})
    whole, damaged = (each.data for each in read_journal(services, "slices/big"))
    assert (whole["action"], damaged["action"]) == ("up", "damaged")
    assert key in damaged["reason"]
    remove_damaged(services, key, check_damaged(services, key))
    assert [each.data["action"] for each in read_journal(services, "slices/big")] == ["up"]
    [left] = services.store.list("journal/")
    with pytest.raises(ConflictError, match="can be read"):
        check_damaged(services, left.key)
