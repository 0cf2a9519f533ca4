"""What commands say to a person: what is known, once, and what to type next."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import wait_until
from tests.support.session import Session, open_session


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as session:
        session.type("up", "v4-8", "big", "--spot", "--pay")
        yield session


def test_a_wrong_node_is_refused_with_one_hint_that_names_the_right_one(session: Session) -> None:
    done = session.type("sim", "preempt", "big", status=5)
    assert done.stderr.count("sim status") == 1
    assert done.stderr.splitlines()[1] == "hint: did you mean big-1? `tpuctl sim status` lists all nodes"
    done = session.type("sim", "preempt", "nix", status=5)
    assert done.stderr.splitlines()[1] == "hint: `tpuctl sim status` lists the nodes"
    assert session.json("ls")[0]["cloud"] == "READY"


def test_a_slice_that_vanished_is_shown_as_it_is_known(session: Session) -> None:
    session.type("up", "v4-8", "gone", "--spot", "--pay", "--direct")
    call_api(session, "DELETE", "nodes/gone-1")
    shown = session.type("ls")
    row = next(line for line in shown.stdout.splitlines() if " gone " in line)
    assert row.split()[-4:-2] == ["ready", "absent"]
    assert "gone is recorded as ready, but nothing of it is left in the cloud" in shown.stderr
    assert "`tpuctl up gone`" in shown.stderr
    session.type("watch", "once", status=3)
    assert next(row["state"] for row in session.json("ls") if row["name"] == "gone") == "removed"
    session.type("down", "gone", "--yes")


def test_what_a_person_removed_says_what_is_left_of_it_and_both_ways_on(session: Session) -> None:
    session.type("up", "v4-8", "mine", "--spot", "--pay")
    call_api(session, "DELETE", "nodes/mine-1")
    session.type("watch", "once", status=3)
    told = session.type("ls").stderr
    assert "queued resource mine-1 is SUSPENDED and holds quota" in told
    for command in ("`tpuctl up mine`", "`tpuctl down mine`"):
        assert command in told
        assert command in session.type("status", "mine").stderr
        assert command in session.type("why", "mine").stderr
    session.type("down", "mine", "--yes")
    assert "mine" not in session.type("ls").stderr


def call_api(session: Session, verb: str, name: str) -> None:
    """What a person does with another tool."""

    info = session.sim()
    request = urllib.request.Request(
        f"{info.http}/v2/projects/{info.project}/locations/us-central2-b/{name}",
        method=verb,
        headers={"authorization": f"Bearer {info.token}"},
    )
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30).close()
    if verb == "DELETE":
        wait_until(lambda: Path(name).name not in session.type("sim", "status").stdout)


def test_status_has_words_for_people_and_keys_for_programs(session: Session) -> None:
    shown = session.type("status", "big").stdout
    assert "cloud says    node big-1 is READY" in shown
    assert "type          v4-8, 1 host, 4 chips" in shown
    assert "it took " in shown
    assert "_" not in shown
    assert "last loss" not in shown
    facts = session.json("status", "big")
    assert {"runtime_version", "login_user", "last_loss", "stop_when_idle_s", "remark"} <= set(facts)
    assert facts["remark"] == ""


def test_the_simulator_says_what_delays_it_simulates(session: Session) -> None:
    assert "delays      none: a slice is ready as soon as" in session.type("sim", "status").stdout
    assert session.json("sim", "status")["delays"] == {
        "until_ready": 0.0,
        "until_gone": 0.0,
        "until_preemption_shows": 0.0,
    }


def test_up_says_how_long_it_usually_takes() -> None:
    with open_session("--speed", "150") as session:
        assert "a slice is ready after 1 s" in session.type("sim", "status").stdout
        first = session.type("up", "v4-8", "a", "--spot", "--pay", "--direct").stderr
        assert "usually" not in first
        second = session.type("up", "v4-8", "b", "--spot", "--pay", "--direct").stderr
        assert re.search(
            r"b: waiting: node b-1 is CREATING \(since [\d:]+, usually ready after \d+ s\)", second
        )
