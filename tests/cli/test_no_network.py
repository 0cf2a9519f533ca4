"""Commands on a machine that reaches no API: the reason after seconds, and nothing kept that never left."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.session import Session, open_session

pytestmark = pytest.mark.timeout(300)

UP = ("up", "v4-8", "mine", "--spot", "--pay")


@pytest.fixture(scope="module")
def machine() -> Iterator[Session]:
    with open_session() as opened:
        yield opened


@pytest.fixture
def session(machine: Session) -> Iterator[Session]:
    environ = dict(machine.environ)
    yield machine
    machine.environ = environ


@pytest.fixture
def cut(session: Session) -> Iterator[Session]:
    """The same machine with its endpoints at a port where nothing answers."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    profile = session.root / "state" / "sim" / "profile.json"
    good = profile.read_text()
    simulated = good.split('"endpoint_tpu": "')[1].split('"')[0]
    profile.write_text(good.replace(simulated, f"http://127.0.0.1:{port}"))
    yield session
    profile.write_text(good)


def plain(text: str) -> str:
    return " ".join(text.split())


def test_up_without_a_network_ends_with_the_whole_reason_and_leaves_nothing_wanted(cut: Session) -> None:
    refused = cut.type(*UP, status=1)
    assert "mine: nothing was asked for: could not read queued resource mine-1" in plain(refused.stderr)
    assert "does not answer (connection refused)" in plain(refused.stderr)
    assert "nothing was asked for; then the same command again" in plain(refused.stderr)
    assert [entry["action"] for entry in cut.json("why", "mine")] == ["up", "withdrawn"]


def test_a_record_that_never_left_is_withdrawn_by_down_offline(cut: Session) -> None:
    up = cut.start("up", "v4-8", "other", *UP[3:])
    store = cut.root / "state" / "sim" / "sim-project" / "store.sqlite"
    wait_for_record(store)
    up.send_signal(signal.SIGKILL)
    cut.finish(up)
    down = cut.type("down", "other", "--yes")
    assert "other: gone" in down.stderr
    assert cut.json("why", "other")[-1]["action"] == "withdrawn"


def wait_for_record(store: Path) -> None:
    import sqlite3
    import time

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if store.exists():
            with sqlite3.connect(store) as db:
                found = db.execute("SELECT name FROM sqlite_master WHERE name = 'documents'").fetchall()
                if found and db.execute("SELECT 1 FROM documents WHERE key = 'slices/other'").fetchall():
                    return
        time.sleep(0.02)
    raise AssertionError("no record was written")


def test_down_of_what_was_asked_for_says_the_whole_reason_and_goes_on_waiting(session: Session) -> None:
    session.type(*UP)
    profile = session.root / "state" / "sim" / "profile.json"
    good = profile.read_text()
    simulated = good.split('"endpoint_tpu": "')[1].split('"')[0]
    profile.write_text(good.replace(simulated, "http://127.0.0.1:9"))
    waiting = session.type("down", "mine", "--yes", "--timeout", "14", status=8)
    profile.write_text(good)
    assert "127.0.0.1:9 does not answer (connection refused); waiting for an answer" in plain(waiting.stderr)
    session.type("down", "mine", "--yes")


def test_a_dry_run_says_that_nothing_could_be_read(cut: Session) -> None:
    dry = cut.type(*UP, "--dry-run")
    assert "would ask for" in dry.stdout
    assert "could not be read" in plain(dry.stderr)
    assert "does not answer" in plain(dry.stderr)


def test_without_a_project_a_running_simulator_is_hinted_at(session: Session) -> None:
    del session.environ["TPUCTL_PROFILE"]
    session.environ["CLOUDSDK_CONFIG"] = str(session.root / "no-gcloud")
    refused = session.type("ls", status=2)
    assert "no project" in refused.stderr
    assert "--profile sim" in refused.stderr


def test_without_a_project_and_a_simulator_no_simulator_is_hinted_at(session: Session) -> None:
    session.type("sim", "down")
    del session.environ["TPUCTL_PROFILE"]
    session.environ["CLOUDSDK_CONFIG"] = str(session.root / "no-gcloud")
    assert "--profile sim" not in session.type("ls", status=2).stderr
