"""`up` while credentials are refused: what never left this machine is not wanted afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.session import Session, open_session

UP = ("up", "v4-8", "mine", "--spot", "--pay")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as opened:
        yield opened


def test_a_run_whose_slice_was_never_asked_for_ends_with_it_and_can_be_repeated(session: Session) -> None:
    (session.work / "main.py").write_text("print('it ran')\n")
    run = ("run", "main.py", "--up", "v4-8", "--spot", "--pay", "--no-checkpoint")
    session.type("sim", "fault", "expired-token")
    refused = session.type(*run, "--name", "first", status=4)
    assert "nothing was asked for" in refused.stderr
    session.type("sim", "fault", "--clear")
    assert session.json("ls") == []
    (row,) = session.json("runs")
    assert (row["state"], row["attempts"]) == ("stopped", 0)
    session.type("watch", "once")
    assert session.sim_journal() == []
    assert "it ran" in session.type(*run, "--name", "second").stdout


def test_a_first_request_that_never_left_is_withdrawn_and_can_be_repeated(session: Session) -> None:
    session.type("sim", "fault", "expired-token")
    refused = session.type(*UP, status=4)
    assert "nothing was asked for" in refused.stderr
    session.type("sim", "fault", "--clear")
    session.type("watch", "once")
    assert session.json("ls") == []
    assert [entry["action"] for entry in session.json("why", "mine")] == ["up", "withdrawn"]
    session.type(*UP)
    (row,) = session.json("ls")
    assert (row["name"], row["state"]) == ("mine", "ready")


def test_what_was_wanted_before_stays_wanted_and_that_is_said(session: Session) -> None:
    session.type("up", "v4-8", "wanted", "--spot", "--pay")
    session.type("sim", "fault", "expired-token")
    refused = session.type("up", "wanted", "--pay", status=4)
    assert "`tpuctl down wanted` withdraws it" in " ".join(refused.stderr.split())
    session.type("sim", "fault", "--clear")
    (row,) = [row for row in session.json("ls") if row["name"] == "wanted"]
    assert row["state"] == "ready"
