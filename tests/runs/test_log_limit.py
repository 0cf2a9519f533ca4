"""How much of the logs of runs a machine keeps, and what of them goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.jobs import bring_up, run_to_end, submit
from tests.support.memory.process import scripted
from tests.support.memory.services import MemoryPlace
from tpuctl.engine.ports import KeptLogs
from tpuctl.provenance.keep import keep_run, release_run
from tpuctl.runs.follow import start_run
from tpuctl.runs.log_limit import find_excess, plan_removal, remove_logs
from tpuctl.state.run_logs import LogFiles

DAY = 86400.0
NOW = 100 * DAY
LOGS = [
    KeptLogs("old", 30, NOW),
    KeptLogs("older", 20, NOW),
    KeptLogs("runs", 50, NOW),
    KeptLogs("new", 9, NOW),
]
ENDS = {"old": NOW - 2 * DAY, "older": NOW - 3 * DAY, "runs": None, "new": NOW - DAY + 1}


@pytest.mark.parametrize(
    ("limit", "kept", "goes"),
    [
        (109, (), []),
        (108, (), ["older"]),
        (88, (), ["older", "old"]),
        (88, ("older",), ["old"]),
        (1, (), ["older", "old"]),
    ],
)
def test_the_oldest_that_are_over_go_until_the_rest_fits(
    limit: int, kept: tuple[str, ...], goes: list[str]
) -> None:
    assert [each.run_id for each in plan_removal(LOGS, ENDS, kept, limit, NOW)] == goes


def test_what_is_of_no_known_run_is_as_old_as_its_last_byte() -> None:
    found = [KeptLogs("a.old-1", 9, NOW - 2 * DAY), KeptLogs("b.old-1", 9, NOW)]
    assert plan_removal(found, {}, (), 0, NOW) == found[:1]


@pytest.fixture
def place(place: MemoryPlace) -> MemoryPlace:
    place.hosts.programs["main.py"] = scripted(60.0, lines=["x" * 1023] * 1024)
    return place


@pytest.mark.slow
def test_logs_beyond_the_limit_go_but_for_those_of_runs_that_are_kept_or_go_on(place: MemoryPlace) -> None:
    services = place.machine()
    bring_up(services, "big")
    first, second = (run_to_end(services, "big", f"the {name}") for name in ("first", "second"))
    assert find_excess(services, 1) == []
    place.clock.advance(2 * DAY)
    place.hosts.programs["main.py"] = scripted(1e6)
    goes_on = submit(services, "big", "goes on")
    start_run(services, goes_on.id)
    services.logs.append(goes_on.id, 1, 0, "stdout", bytes(5 << 20))
    assert find_excess(services, 0) == find_excess(services, 100) == []
    assert [each.run_id for each in find_excess(services, 8)] == [first.id]
    keep_run(services, first, None)
    assert [each.run_id for each in find_excess(services, 1)] == [second.id]
    said = remove_logs(services, find_excess(services, 1))
    assert said == "the logs of 1 run (2.0 MiB)"
    assert not services.logs.has(second.id, 1)
    rows = [document.data for document in services.store.list(f"journal/runs/{second.id}/")]
    (why,) = [row["reason"] for row in rows if row["action"] == "logs"]
    assert why.startswith("2.0 MiB removed from ")
    release_run(services, first)
    assert [each.run_id for each in find_excess(services, 1)] == [first.id]


def test_files_of_logs_are_measured_and_removed_with_a_note(tmp_path: Path) -> None:
    files = LogFiles(tmp_path)
    assert files.list() == []
    files.append("a", 1, 0, "stdout", b"12345")
    files.append("a", 2, 0, "stdout-times", b"678")
    assert [(each.run_id, each.size) for each in files.list()] == [("a", 8)]
    assert files.list()[0].written_at == pytest.approx((tmp_path / "a" / "2").stat().st_mtime, abs=60)
    assert files.removed_at("a") is None
    files.remove("a", 7.0)
    files.remove("nobody", 7.0)
    assert (files.has("a", 1), files.removed_at("a"), files.removed_at("nobody")) == (False, 7.0, None)
    assert files.list_removed() == {"a"}
    assert [each.size for each in files.list()] == [0]
    files.append("a", 1, 0, "stdout", b"again, from the store")
    assert (files.removed_at("a"), files.list_removed()) == (None, frozenset())
