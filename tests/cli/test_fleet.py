"""`pause`, `resume`, `capacity` and hunting, as they are typed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.session import REAL_PACE, Session, open_session


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session(*REAL_PACE) as opened:
        yield opened


@pytest.mark.slow
def test_a_hunt_goes_on_where_capacity_is_and_is_remembered(session):
    session.type("sim", "fault", "stockout-now")
    hunt = ("--zone", "us-east1-d", "--zone", "europe-west4-a", "--spot", "--pay", "--direct")
    said = session.type("up", "v6e-8", "found", *hunt)
    assert "us-east1-d" in said.stderr
    assert session.json("status", "found")["zone"] == "europe-west4-a"
    notes = {note["zone"]: note for note in session.json("capacity")}
    assert notes["us-east1-d"]["failures"] == 1
    assert notes["europe-west4-a"]["hours"]
    table = session.type("capacity", "v6e-8").stdout
    assert "1/1" in table
    assert "no more capacity" in table
    assert session.type("capacity", "v4-8").stdout == ""
    session.type("down", "found", "--yes")


@pytest.mark.slow
def test_a_slice_comes_up_again_by_its_name_alone(session):
    session.type("up", "v4-8", "again", "--spot", "--pay", "--direct")
    session.type("down", "again", "--yes")
    refused = session.type("up", "again", "--on-demand", "--pay", status=2)
    assert "comes up as it was asked for before" in refused.stderr
    session.type("up", "again", "--pay")
    status = session.json("status", "again")
    assert (status["type"], status["tier"], status["queued"]) == ("v4-8", "spot", False)
    session.type("down", "again", "--yes")


@pytest.mark.slow
def test_a_race_of_types_ends_with_one_slice_which_comes_back_by_its_name(session):
    race = ("up", "--race", "v5e-16,v6e-16", "--spot", "--zone", "us-west4-a", "--zone", "us-east1-d")
    assert "not covered" in session.type(*race, status=2).stderr
    shown = " ".join(session.type(*race, "--pay", "--dry-run").stdout.split())
    assert "v5litepod-16-or-v6e-16: v5litepod-16, 4 hosts, 16 chips, us-west4-a, spot" in shown
    assert "and at the same time v5litepod-16-or-v6e-16: v6e-16, 4 hosts, 16 chips, us-east1-d" in shown
    session.type(*race, "--pay")
    [row] = session.json("ls")
    assert row["name"] == "v5litepod-16-or-v6e-16"
    before = session.sim_journal()
    session.type(*race, "--pay")
    session.type("up", row["name"])
    assert session.sim_journal() == before
    session.type("down", row["name"], "--yes")
    assert session.json("ls") == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("pause", "--until", "yesterday"), "neither a span nor a time"),
        (("pause", "--until", "2020-01-01"), "in the past"),
        (("pause", "--until", "9999999d"), "more than ten years"),
        (("up", "v4-8", "far", "--spot", "--pay", "--ttl", "9999999d"), "more than ten years"),
        (("up", "v4-8", "far", "--spot", "--pay", "--valid-for", "9999999d"), "more than ten years"),
        (("grant", "add", "8", "spot", "v4", "us-central2-b", "--at-end", "burn"), "--at-end 'burn'"),
        (("up", "v6e-8", "--zone", "auto", "--spot"), "no grant covers spot v6e-8"),
        (("up", "v5e-16,v6e-16", "--zone", "us-west4-a", "--spot"), "which only a race asks for"),
        (("up", "--race", "v5e-16,v6e-16", "--zone", "auto", "--spot"), "no grant covers spot v5litepod-16"),
        (("up", "--race", "v5e-16,v6e-16", "--zone", "auto", "--reserved"), "--race and --reserved exclude"),
        (("up", "--race", "v6e-8", "--zone", "auto", "--spot", "--disk", "d"), "--race and --disk exclude"),
    ],
)
def test_what_makes_no_sense_is_refused(session, words, message):
    assert message in session.type(*words, status=2).stderr
