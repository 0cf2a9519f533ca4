"""`store prune` typed, and the watchdog that does it by itself."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.session import REAL_PACE, Session, open_session
from tpuctl.state.sqlite import SqliteStore

DAY_S = 86400.0


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session(*REAL_PACE) as opened:
        yield opened


def state(session: Session) -> Path:
    return session.root / "state" / "sim" / "sim-project"


def leave_a_blob(session: Session, content: bytes, days: float) -> Path:
    """As a run that was interrupted before it was written down leaves one."""
    store = SqliteStore(state(session) / "store.sqlite")
    digest = store.put_blob(content)
    store.close()
    path = state(session) / "blobs" / digest[:2] / digest
    at = path.stat().st_mtime - days * DAY_S
    os.utime(path, (at, at))
    return path


def test_prune_shows_asks_and_removes(session: Session) -> None:
    session.type("ls")
    old, young = leave_a_blob(session, b"old", 15), leave_a_blob(session, b"young", 13)
    dry = session.type("store", "prune", "--dry-run")
    assert old.name[:12] in dry.stdout
    assert young.name[:12] not in dry.stdout
    refused = session.type("store", "prune", status=2)
    assert "add --yes" in refused.stderr
    assert old.exists()
    done = session.type("store", "prune", "--yes")
    assert "removed 1 blob (" in done.stderr
    assert (old.exists(), young.exists()) == (False, True)
    assert "removed nothing" in session.type("store", "prune").stderr
    too_young = session.type("store", "prune", "--runs-older-than", "7d", status=2)
    assert "--runs-older-than 30d or more" in too_young.stderr
    assert session.json("store", "prune", "--runs-older-than", "365d", "--dry-run")["found"] == []
    removed = session.json("store", "prune", "--older-than", "3d", "--yes")
    assert [each["name"] for each in removed["found"]] == [young.name]
    assert (removed["removed"], young.exists()) == (True, False)


@pytest.mark.parametrize(("age", "says"), [("1d", "--older-than 2d or more"), ("soon", "not a duration")])
def test_an_age_that_is_not_safe_is_refused(session: Session, age: str, says: str) -> None:
    refused = session.type("store", "prune", "--older-than", age, status=2)
    assert says in refused.stderr


def test_watchdogs_prune_once_a_day_unless_told_not_to(session: Session) -> None:
    old = leave_a_blob(session, b"of last month", 30)
    stamp = state(session) / "watch" / "pruned"
    stamp.unlink(missing_ok=True)
    session.environ["TPUCTL_PRUNE_AFTER_DAYS"] = "0"
    session.type("watch", "once")
    assert old.exists()
    session.environ["TPUCTL_PRUNE_AFTER_DAYS"] = "1"
    assert "prune_after_days" in session.type("watch", "once", status=2).stderr
    del session.environ["TPUCTL_PRUNE_AFTER_DAYS"]
    done = session.type("watch", "once")
    assert (done.stdout, done.stderr) == ("", "")
    assert not old.exists()
    assert "store: pruned: 1 blob" in (state(session) / "watch" / "watch.log").read_text()
    again = leave_a_blob(session, b"of last month, too", 30)
    session.type("watch", "once")
    assert again.exists(), "not before tomorrow"
    assert json.loads(session.type("store", "prune", "--dry-run", "--json").stdout)["found"]
