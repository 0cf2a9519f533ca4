"""`disk gc` and `disk rm` by what exists: copies that were never made keep nothing, snapshots that were asked
for stay, and a copy goes with its snapshot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.session import Session, open_session

ZONE, OTHER = "us-central2-b", "us-central1-a"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as made:
        yield made


def states(session: Session, master: str) -> dict[str, str]:
    return {row["name"]: row["status"] for row in session.json("disk", "ls") if row["master"] == master}


def test_a_clone_that_the_quota_refused_keeps_nothing_and_costs_no_copy(session: Session) -> None:
    session.type("disk", "create", "data", "--size", "10", "--zone", ZONE)
    for _ in range(2):
        session.type("disk", "clone", "data", "--zone", ZONE)
    session.type("sim", "fault", "disk-quota")
    session.type("disk", "clone", "data", "--zone", ZONE, status=7)
    session.type("sim", "fault", "--clear")
    assert states(session, "data")["data-g3"] == "not there"
    session.type("disk", "gc", "--keep", "1", "--yes")
    assert states(session, "data") == {"data": "READY", "data-g2": "READY", "data-g3": "not there"}
    session.type("disk", "clone", "data", "--zone", ZONE)  # goes on with the one that was refused
    assert states(session, "data") == {"data": "READY", "data-g2": "READY", "data-g3": "READY"}


def test_a_snapshot_that_was_asked_for_stays_until_it_is_removed_by_name(session: Session) -> None:
    session.type("disk", "create", "kept", "--size", "10", "--zone", ZONE)
    session.type("disk", "snapshot", "kept")
    for _ in range(3):
        session.type("disk", "clone", "kept", "--zone", ZONE)
    session.type("disk", "gc", "--keep", "0", "--yes")
    assert states(session, "kept") == {"kept": "READY", "kept-g1": "snapshot only"}
    assert session.json("disk", "show", "kept")["snapshots"] == ["kept-g1-s"]
    unused = {row["name"]: row["command"] for row in session.json("reap", "--dry-run")["unused_disks"]}
    assert (unused["kept"], unused["kept-g1-s"]) == ("tpuctl disk show kept", "tpuctl disk show kept-g1")
    session.type("disk", "rm", "kept-g1", "--yes")
    assert session.json("disk", "show", "kept")["snapshots"] == []


def test_a_copy_goes_with_its_snapshot_and_the_next_one_is_of_its_own_moment(session: Session) -> None:
    session.type("disk", "create", "far", "--size", "10", "--zone", ZONE)
    session.type("disk", "clone", "far", "--zone", OTHER)
    assert session.json("disk", "show", "far")["snapshots"] == ["far-g1-s"]
    session.type("disk", "rm", "far-g1", "--yes")
    assert session.json("disk", "show", "far")["snapshots"] == []
    session.type("disk", "clone", "far", "--zone", OTHER)
    made = [each for each in session.sim_journal() if each["method"].startswith("disks.createSnapshot")]
    assert len(made) >= 2


@pytest.mark.parametrize("at", [3, 5])
def test_a_removal_that_was_killed_is_said_and_finished(session: Session, at: int) -> None:
    name = f"cut{at}"
    session.type("disk", "create", name, "--size", "10", "--zone", ZONE)
    session.type("disk", "clone", name, "--zone", OTHER)
    assert session.type_killed(at, "before", "disk", "rm", f"{name}-g1", "--yes").returncode != 0
    assert states(session, name)[f"{name}-g1"] in ("being removed", "READY")
    session.type("disk", "gc", "--keep", "5", "--yes")
    assert states(session, name) == {name: "READY"}
    assert session.json("disk", "show", name)["snapshots"] == []
