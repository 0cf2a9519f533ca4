"""Zones and sizes that tpuctl's tables do not have: a warning and a try, and never a dead end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.session import REAL_PACE, Session, open_session
from tpuctl.model.shipped_files import read_table


def disagreeing_table(folder: Path) -> str:
    """A cloud that has v6e in a zone and v4 in a size that tpuctl never heard of, and v5e in one zone less."""
    table = yaml.safe_load(read_table("accelerators.yaml"))
    generations = table["generations"]
    generations["v6e"]["zones"]["documented"]["europe-north9-q"] = ["*"]
    generations["v4"]["sizes"]["v4-24"] = [12, 3, 4, "2x2x3"]
    del generations["v5e"]["zones"]["documented"]["us-south1-a"]
    generations["v5e"]["zones"]["listed"].remove("us-south1-a")
    path = folder / "cloud.yaml"
    path.write_text(json.dumps(table))
    return str(path)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    table = disagreeing_table(tmp_path_factory.mktemp("table"))
    with open_session(*REAL_PACE, "--catalog", table) as opened:
        yield opened


def plain(text: str) -> str:
    return " ".join(text.split())


def creates(session: Session) -> int:
    return sum(entry["method"].endswith(".create") for entry in session.sim_journal())


def test_a_zone_that_only_the_api_knows_is_told_and_used(session: Session) -> None:
    up = session.type("up", "v6e-8", "north", "--zone", "europe-north9-q", "--spot", "--pay")
    assert "no table has v6e-8 in europe-north9-q; the API lists it" in plain(up.stderr)
    assert session.json("status", "north")["state"] == "ready"
    session.type("down", "north", "--yes")


def test_a_zone_that_no_list_has_for_the_type_is_tried_and_the_cloud_decides(session: Session) -> None:
    up = session.type("up", "v4-8", "odd", "--zone", "us-east1-d", "--spot", "--pay", status=2)
    told = plain(up.stderr)
    assert (
        "no table has v4-8 in us-east1-d, nor does the API list it (known: us-central2-b); asking anyway"
        in told
    )
    assert "could not be found in the zonal accelerator configurations" in told
    session.type("down", "odd", "--yes")


def test_a_zone_of_the_table_that_the_cloud_does_not_have_ends_with_its_own_words(session: Session) -> None:
    up = session.type("up", "v5e-8", "gone", "--zone", "us-south1-a", "--spot", "--pay", status=2)
    assert 'could not be found in the zonal accelerator configurations for "us-south1-a"' in plain(up.stderr)
    session.type("down", "gone", "--yes")


def test_a_size_that_only_the_api_knows_is_told_and_comes_up_with_its_hosts(session: Session) -> None:
    up = session.type("up", "v4-24", "twelve", "--zone", "us-central2-b", "--spot", "--pay")
    assert "no table has v4-24 in us-central2-b; the API lists it" in plain(up.stderr)
    assert len(session.json("status", "twelve")["workers"]) == 3
    for words in (("ls",), ("quota",), ("up", "twelve", "--pay"), ("doctor",)):
        session.type(*words)
    session.type("down", "twelve", "--yes")


def test_a_size_that_nobody_knows_is_refused_with_its_neighbours(session: Session) -> None:
    before = creates(session)
    refused = session.type("up", "v4-9", "--zone", "us-central2-b", "--spot", "--pay", status=2)
    assert "did you mean v4-8 or v4-16?" in plain(refused.stderr)
    assert creates(session) == before


def test_a_zone_that_the_api_does_not_know_is_refused_before_anything_is_asked_for(session: Session) -> None:
    before = creates(session)
    refused = session.type("up", "v4-8", "--zone", "us-central2-z", "--spot", "--pay", status=2)
    assert "the API knows no zone 'us-central2-z'" in plain(refused.stderr)
    assert "--zone us-central2-b" in refused.stderr
    assert creates(session) == before


def test_a_zone_outside_the_grant_still_needs_pay(session: Session) -> None:
    session.type("grant", "add", "64", "spot", "v6e", "us-east1-d", "--ends", "2090-01-01")
    before = creates(session)
    refused = session.type("up", "v6e-8", "--zone", "europe-north9-q", "--spot", status=2)
    assert "not covered" in plain(refused.stderr)
    assert creates(session) == before


def test_an_api_that_cannot_be_asked_is_no_reason_to_refuse(session: Session) -> None:
    session.type("sim", "fault", "no-permission", "--set", "name=tpu.acceleratortypes.list")
    try:
        dry = session.type("up", "v6e-8", "--zone", "europe-north9-q", "--spot", "--pay", "--dry-run")
    finally:
        session.type("sim", "fault", "--clear")
    told = plain(dry.stderr)
    assert "the API could not be asked about it" in told
    assert "would ask for" in dry.stdout


def test_flex_start_where_no_table_has_it_is_tried(session: Session) -> None:
    words = ("--zone", "us-east1-d", "--flex-start", "--run-duration", "2h", "--pay", "--dry-run")
    dry = session.type("up", "v6e-8", *words)
    assert "no table has flex-start of v6e-8 in us-east1-d; asking anyway" in plain(dry.stderr)


def test_a_fleet_file_takes_zones_beyond_the_tables_and_names_the_line_of_a_slip(session: Session) -> None:
    file = session.work / "tpuctl.yaml"
    north = "    n: {accelerator: v6e-8, tier: spot, zone: europe-north9-q, pay: true}\n"
    file.write_text(f"fleet:\n  name: lab\n  slices:\n{north}")
    try:
        diff = session.type("diff", status=10)
        assert "the API lists it" in plain(diff.stderr)
        file.write_text(file.read_text().replace("europe-north9-q", "europe-nowhere9-q"))
        slip = session.type("diff", status=2)
        assert "tpuctl.yaml:4:" in slip.stderr
        assert "the API knows no zone" in plain(slip.stderr)
    finally:
        file.unlink()


def test_a_table_that_is_none_is_refused_before_the_simulator_starts(tmp_path: Path) -> None:
    with open_session(*REAL_PACE) as session:
        session.type("sim", "down")
        (session.work / "bad.yaml").write_text("generations: [1]\n")
        refused = session.type("sim", "up", "--catalog", "bad.yaml", status=2)
        assert "is no table of accelerators" in plain(refused.stderr)
        session.type("sim", "up", "--instant")
