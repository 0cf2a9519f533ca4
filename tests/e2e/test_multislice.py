"""Several slices in one request: up, commands and runs on all of them, and down."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.session import REAL_PACE, Session, open_session
from tpuctl.sim.server import control

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session(*REAL_PACE) as session:
        session.type("up", "v4-16", "big", "--slices", "2", "--spot", "--pay")
        yield session


def printed(session: Session, *words: str) -> dict[int, str]:
    rows = json.loads(session.type("exec", "--json", "big", "--", *words).stdout)
    return {row["worker"]: row["stdout"].strip() for row in rows}


def test_workers_are_counted_through_all_nodes(session: Session) -> None:
    facts = session.json("status", "big")
    assert (facts["state"], facts["slices"], facts["hosts"], len(facts["workers"])) == ("ready", 2, 4, 4)
    ids = printed(session, "sh", "-c", "echo ${HOSTNAME##*-} $HOSTNAME")
    assert [ids[worker].split()[0] for worker in range(4)] == ["0", "1", "0", "1"]
    hosts = [ids[worker].split()[1].rpartition("-w-")[0] for worker in range(4)]
    assert hosts[0] == hosts[1] != hosts[2] == hosts[3]


def test_a_run_tells_each_worker_its_slice(session: Session) -> None:
    line = "echo $TPUCTL_RANK $MEGASCALE_SLICE_ID $MEGASCALE_NUM_SLICES $MEGASCALE_COORDINATOR_ADDRESS"
    session.type("run", "--no-checkpoint", "--name", "told", "--on", "big", "--", "sh", "-c", line)
    lines = session.type("logs", "told").stdout.splitlines()
    told = sorted(each.partition("│ ")[2].split() for each in lines)
    nodes = {each["name"].rpartition("/")[2]: each for each in session.json("sim", "status")["state"]["nodes"]}
    first = nodes["big-1-0"]["networkEndpoints"][0]["ipAddress"]
    assert told == [[str(rank), str(rank // 2), "2", first] for rank in range(4)]


def test_the_second_up_changes_nothing_and_another_number_is_a_conflict(session: Session) -> None:
    before = session.sim_journal()
    session.type("up", "v4-16", "big", "--slices", "2", "--spot", "--pay")
    assert session.sim_journal() == before
    session.type("up", "v4-16", "big", "--slices", "3", "--spot", "--pay", status=6)


def test_the_fleet_shows_it_once(session: Session) -> None:
    rows = session.json("ls")
    assert [(row["name"], row["hosts"], row["managed"]) for row in rows] == [("big", 4, True)]


def test_down_leaves_nothing(session: Session) -> None:
    session.type("down", "big", "--yes")
    state = control.state(session.sim())
    assert not state["nodes"]
    assert not state["queuedResources"]
