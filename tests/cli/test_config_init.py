"""Moving a fleet's store into a bucket by the real command line, and joining it from another machine."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest

from tests.support.session import SIM_FIRST, Session, another_machine, open_session

URI = "gs://sim-bucket/fleet"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as opened:
        yield opened


def rows(session: Session) -> list[dict[str, object]]:
    return list(json.loads(session.type("ls", "--json").stdout))


@pytest.mark.slow
def test_a_fleet_moves_into_a_bucket_and_another_machine_joins_it(session):
    session.type("up", "v4-8", "big", "--spot", "--pay")
    before = rows(session)
    dry = session.type("config", "init", "--store", URI, "--dry-run")
    assert "would move the store to" in dry.stdout
    # Killed half-way, the store is between two places: nothing is changed there until the move has ended.
    for at in (2, 3, 2, 1):
        killed = session.type_killed(at, "after", "config", "init", "--store", URI)
        assert killed.returncode == -signal.SIGKILL
        refused = session.type("ls", status=2)
        assert f"is being moved to {URI}" in refused.stderr
        assert f"tpuctl config init --store {URI}" in refused.stderr
    assert "where to?" in session.type("config", "init", status=2).stderr
    session.type("config", "init", "--store", URI)
    assert rows(session) == before
    shown = json.loads(session.type("config", "show", "--json").stdout)
    (place,) = [row for row in shown if row["name"] == "store"]
    assert place["value"] == URI
    session.type("config", "init", "--store", URI)  # again: nothing to do

    other = another_machine(session)
    refused = other.type("config", "init", "--store", URI, status=6)
    assert "add --join" in refused.stderr
    other.type("config", "init", "--store", URI, "--join")
    assert rows(other) == before
    other.type("down", "big", "--yes")
    assert rows(session) == []


def test_a_place_that_cannot_be_is_refused(session):
    refused = session.type("config", "init", "--store", "gs://no-such-bucket/x", status=5)
    hint = refused.stderr.partition("hint: ")[2]
    assert hint.startswith(f"{SIM_FIRST}gcloud storage buckets create gs://no-such-bucket")
    assert "gs://" in session.type("config", "init", "--store", "s3://x", status=2).stderr
    assert "no store" in session.type("config", "init", "--store", URI + "-none", "--join", status=5).stderr
