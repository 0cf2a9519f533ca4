"""`ls`, `reap` and `down` at the terminal: whose they are, and what must be confirmed."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.session import REAL_PACE, Session, open_session
from tpuctl.state.sqlite import SqliteStore

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session(*REAL_PACE) as made:
        made.type("up", "v4-8", "mine", "--spot", "--pay")
        yield made


def test_status_and_why_need_no_name_where_there_is_one_slice(session):
    assert json.loads(session.type("status", "--json").stdout)["name"] == "mine"
    assert any(entry["action"] == "ready" for entry in session.json("why"))


def test_another_user_sees_it_but_must_say_twice_that_it_shall_go(session):
    session.environ["TPUCTL_USER"] = "somebody-else"
    try:
        assert [row["name"] for row in session.json("ls")] == ["mine"]
        assert session.json("ls", "--mine") == []
        refused = session.type("down", "mine", "--yes", status=2)
        assert "not yours: mine" in refused.stderr
        unsure = session.type("down", "mine", "--yes", "--all-users", status=2)
        assert "--confirm sim-project" in unsure.stderr
        wrong = session.type("down", "mine", "--yes", "--all-users", "--confirm", "other", status=2)
        assert "is not this project" in wrong.stderr
        nameless = session.type("status", status=2)
        assert "you have no slice" in nameless.stderr
        assert "nothing of yours to delete" in session.type("reap").stderr
    finally:
        del session.environ["TPUCTL_USER"]
    assert session.json("ls")[0]["state"] == "ready"


def test_a_slice_whose_record_was_lost_is_reaped_after_a_yes(session):
    (path,) = session.root.glob("state/sim/sim-project/store.sqlite")
    store = SqliteStore(path)
    document = store.get("slices/mine")
    assert document is not None
    store.delete(document.key, if_generation=document.generation)
    store.close()
    rows = session.json("ls")
    assert [(row["name"], row["state"]) for row in rows] == [("mine-1", "unwanted")]
    said = "no slice wants it: tpuctl reap"
    assert f"mine-1 in us-central2-b: {said}" in session.type("bill", status=1).stderr
    [line] = json.loads(session.type("bill", "--json", status=1).stdout)["paid"]
    assert line["note"].endswith(said)
    found = json.loads(session.type("doctor", "--json", status=None).stdout)["findings"]
    [told] = [each for each in found if each["check"] == "tpus"]
    assert (told["level"], told["fix"]) == ("warning", "tpuctl reap")
    dry = session.type("reap", "--dry-run")
    assert "delete" in dry.stdout
    session.type("reap", status=2)
    assert [row["name"] for row in session.json("ls")] == ["mine-1"]
    done = session.type("reap", "--yes")
    assert "mine-1: gone" in done.stderr
    assert session.json("ls") == []
    assert session.json("reap", "--yes") == {"found": [], "unused_disks": [], "not_read": []}
