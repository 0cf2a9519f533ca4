"""Records of one kind, as everybody reads and changes them."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.memory.services import MemoryPlace
from tpuctl.errors import DamagedRecordError, StaleRecordError
from tpuctl.model.disks import KeptRun
from tpuctl.state.repository import KEPT_RUNS as RECORDS
from tpuctl.state.sqlite import SqliteStore

OLD = KeptRun("r", ("a",), "me", None)


@pytest.fixture
def services(place: MemoryPlace, tmp_path) -> Any:
    services: Any = place.machine()
    with closing(SqliteStore(tmp_path / "store.sqlite")) as store:
        services.store = store
        yield services


def test_what_another_writes_meanwhile_is_changed_and_not_lost(services: Any) -> None:
    RECORDS.create(services, "r", OLD)
    seen = []

    def add(there: KeptRun | None) -> KeptRun:
        assert there is not None
        seen.append(there.disks)
        if len(seen) == 1:
            RECORDS.overwrite(services, "r", replace(there, disks=("a", "theirs")))
        return replace(there, disks=(*there.disks, "ours"))

    assert RECORDS.update(services, "r", add).disks == ("a", "theirs", "ours")
    assert RECORDS.record(services, "r").disks == ("a", "theirs", "ours")
    assert seen == [("a",), ("a", "theirs")]


def test_a_change_begins_a_record_and_one_that_changes_nothing_writes_nothing(services: Any) -> None:
    assert RECORDS.update(services, "r", lambda there: there or OLD) == OLD
    generation = RECORDS.generation(services, "r")
    RECORDS.update(services, "r", lambda there: there or OLD)
    assert RECORDS.generation(services, "r") == generation > 0


def test_what_is_written_once_stands(services: Any) -> None:
    assert RECORDS.create(services, "r", OLD)
    assert not RECORDS.create(services, "r", replace(OLD, disks=()))
    assert RECORDS.record(services, "r") == OLD


def test_what_changed_since_it_was_read_is_neither_written_over_nor_removed(services: Any) -> None:
    RECORDS.create(services, "r", OLD)
    read = RECORDS.find(services, "r")
    RECORDS.overwrite(services, "r", replace(OLD, owner="you"))
    with pytest.raises(StaleRecordError, match="kept/r was changed by another tpuctl") as refused:
        RECORDS.put(services, "r", OLD, read.generation)
    assert refused.value.hint
    assert not RECORDS.try_put(services, "r", OLD, read.generation)
    with pytest.raises(StaleRecordError):
        RECORDS.delete(services, "r", read.generation)
    assert RECORDS.record(services, "r").owner == "you"
    assert RECORDS.delete(services, "r")
    assert not RECORDS.delete(services, "r")


def test_a_damaged_record_hides_no_other_and_is_replaced_or_removed_by_name(services: Any) -> None:
    RECORDS.create(services, "well", OLD)
    for name in ("bad", "worse"):
        services.store.put(RECORDS.key(name), {"run": 7}, if_generation=0)
    found, damaged = RECORDS.load(services)
    assert ([*found], [*damaged]) == (["well"], ["bad", "worse"])
    assert RECORDS.names(services) == ["bad", "well", "worse"]
    for read in (RECORDS.list, RECORDS.named, lambda services: RECORDS.find(services, "bad")):
        with pytest.raises(DamagedRecordError, match="kept/bad"):
            read(services)
    with pytest.raises(DamagedRecordError):
        RECORDS.update(services, "bad", lambda _: OLD)
    RECORDS.overwrite(services, "bad", OLD)
    RECORDS.delete(services, "worse")
    assert [*RECORDS.named(services)] == ["bad", "well"]


def test_records_are_left_out_by_what_their_data_say_before_they_are_read(services: Any) -> None:
    RECORDS.create(services, "a/1", OLD)
    RECORDS.create(services, "b/1", OLD)
    services.store.put(RECORDS.key("a/2"), {"run": 7}, if_generation=0)
    assert [*RECORDS.named(services, where=lambda data: data["run"] == "r")] == ["a/1", "b/1"]
    assert [*RECORDS.named(services, "b/")] == ["b/1"]
