"""Records that are shown: those that are over are passed over unread, and a damaged one hides no other."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import a_run
from tests.support.memory.services import MemoryPlace
from tpuctl.engine.ports import Document
from tpuctl.engine.services import Services
from tpuctl.errors import DamagedRecordError
from tpuctl.lib.codec import to_data
from tpuctl.model.records import RunRecord, RunState
from tpuctl.state.journal import DAMAGED, NEW_RUN, decided_at, read_events, read_journal, record_decision
from tpuctl.state.repository import active_runs, decode, get_run, list_runs, runs_under_way
from tpuctl.state.sqlite import LISTED_FROM, READ_AT_ONCE, SqliteStore


def test_only_runs_that_may_go_on_are_read(place: MemoryPlace) -> None:
    services = place.machine()
    for state in RunState:
        run = a_run(id=str(state), state=state)
        services.store.put(run.key, to_data(run), if_generation=0)
    services.store.put("runs/damaged", {"state": "running"}, if_generation=0)
    services.store.put("runs/strange", {"state": "to-come"}, if_generation=0)
    services.store.put("runs/stranger", {"state": ["running"]}, if_generation=0)
    assert {run.state for run in runs_under_way(services)} == {state for state in RunState if not state.final}


def test_an_error_that_is_kept_with_a_long_list_does_not_grow(place: MemoryPlace, tmp_path) -> None:
    with closing(SqliteStore(tmp_path / "store.sqlite")) as store:
        _write(tmp_path / "store.sqlite", LISTED_FROM, {"state": 7})
        services = place.machine()
        services.store = store
        depths = []
        for _ in range(3):
            with pytest.raises(DamagedRecordError) as refused:
                list_runs(services)
            depths.append(len(refused.traceback))
    assert len({*depths}) == 1


def test_others_write_while_records_are_made_of_a_long_list(tmp_path) -> None:
    path, count = tmp_path / "store.sqlite", READ_AT_ONCE + 1
    with closing(SqliteStore(path)) as store, closing(SqliteStore(path)) as other:
        _write(path, count, {"state": 7})

        def read(document: Document) -> str:
            if document.key in {"runs/00000", f"runs/{count - 1:05}"}:
                other.append("journal/runs/exp", {"key": document.key})
            return document.key

        assert store.read_all("runs/", read) == [f"runs/{number:05}" for number in range(count)]
        assert len(store.list("journal/")) == 2


def _write(path: Path, count: int, data: Mapping[str, Any]) -> None:
    """Runs, all at once: a commit for each takes a busy disk minutes."""
    rows = [(f"runs/{number:05}", number + 1, json.dumps(data)) for number in range(count)]
    with closing(sqlite3.connect(path)) as db, db:
        db.executemany("INSERT INTO documents (key, generation, data) VALUES (?, ?, ?)", rows)
        db.execute("UPDATE meta SET value = ? WHERE key = 'sequence'", (str(count),))


@pytest.mark.parametrize("spec", ["big", {}, {"slice_name": 7}, {"slice_name": "big"}])
def test_a_damaged_run_that_may_be_on_a_slice_is_named_with_what_to_type(place: MemoryPlace, spec) -> None:
    services = place.machine()
    services.store.put("runs/odd", {"spec": spec}, if_generation=0)
    with pytest.raises(DamagedRecordError, match="the record runs/odd in the store is damaged") as refused:
        active_runs(services, "big")
    assert "tpuctl store forget runs/odd" in (refused.value.hint or "")


def test_a_damaged_run_that_says_another_slice_is_in_nobodys_way(place: MemoryPlace) -> None:
    services = place.machine()
    run = a_run(id="mine", state=RunState.RUNNING)
    services.store.put(run.key, to_data(run), if_generation=0)
    services.store.put("runs/odd", {"spec": {"slice_name": f"not-{run.slice_name}"}}, if_generation=0)
    assert active_runs(services, run.slice_name) == [run]


def read_actions(services: Services, since: float = 0.0) -> Sequence[str]:
    return [str(entry["action"]) for entry in read_events(services, "runs/exp", since).values()]


@pytest.mark.parametrize("first", [{"action": NEW_RUN}, {"reason": "lost its action"}])
def test_events_of_an_earlier_run_are_not_those_of_a_new_one(place: MemoryPlace, first) -> None:
    services = place.machine()
    record_decision(services, "runs/exp", "started", "the old one", event="00001.00000")
    record_decision(services, "runs/exp", "preempted", "the old one", event="00001.00001")
    place.clock.advance(10.0)
    since = services.store.now()
    services.store.append("journal/runs/exp/", {"at": since, "reason": "", **first})
    assert read_actions(services, since) == []
    record_decision(services, "runs/exp", "stopped", "the new one", event="00001.00000")
    services.store.append("journal/runs/exp/", {"reason": "lost its action"})
    record_decision(services, "runs/exp", "ended", "the new one", event="00001.00001")
    assert read_actions(services, since) == ["stopped", "ended"]


def test_damaged_entries_are_as_old_as_those_beside_them(place: MemoryPlace) -> None:
    services = place.machine()
    times = []
    for damaged in (True, True, False, True, False):
        place.clock.advance(10.0)
        if damaged:
            services.store.append("journal/slices/big/", {"reason": "lost its action"})
        else:
            times.append(record_decision(services, "slices/big", "up", "asked for"))
    first, last = times
    told = [(decided_at(each.data), each.data["action"]) for each in read_journal(services, "slices/big")]
    assert told == [(first, DAMAGED), (first, DAMAGED), (first, "up"), (first, DAMAGED), (last, "up")]


def test_last_is_the_newest_run_that_can_be_read(place: MemoryPlace) -> None:
    services = place.machine()
    now = services.store.now()
    for name, at in (("old", now - 60), ("new", now - 30), ("damaged", now), ("ahead", now + 3600)):
        services.store.put(f"runs/{name}", to_data(a_run(id=name, created_at=at)), if_generation=0)
    damaged = services.store.get("runs/damaged")
    services.store.put("runs/damaged", {**damaged.data, "state": 7}, if_generation=damaged.generation)
    assert get_run(services, "last").record.id == "new"


def test_of_a_listed_document_as_much_is_read_as_is_asked_for(tmp_path) -> None:
    said = {"state": "ready", "at": 1e400, "spec": {"chips": [1, 2]}, "none": None}
    with closing(SqliteStore(tmp_path / "store.sqlite")) as store:
        for key, data in (("a", said), ("b", {**said, "at": 5})):
            store.put(key, data, if_generation=0)
        odd, plain = (document.data for document in store.list(""))
    for data in (plain, odd):
        assert [data.get("state"), data.get("spec"), data.get("none", 1), data.get("no", 1)] == [
            "ready", {"chips": [1, 2]}, None, 1,
        ]  # fmt: skip
        assert (data["state"], "no" in data, len(data)) == ("ready", False, 4)
        with pytest.raises(DamagedRecordError, match="no is missing"):
            data["no"]
    assert (odd, plain, odd == plain) == (said, {**said, "at": 5}, False)


@pytest.mark.parametrize(("text", "why"), [('{"id": "r', "it is not JSON"), ("[]", "it is no JSON object")])
def test_of_what_is_no_document_it_is_said_that_it_is_none(tmp_path, text, why) -> None:
    with closing(SqliteStore(tmp_path / "store.sqlite")) as store:
        store.put("runs/r", {}, if_generation=0)
        with sqlite3.connect(tmp_path / "store.sqlite") as db:
            db.execute("UPDATE documents SET data = ?", (text,))
        for document in (store.get("runs/r"), *store.list("runs/")):
            with pytest.raises(DamagedRecordError, match=why):
                decode(RunRecord, document)
