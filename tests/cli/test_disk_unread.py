"""A zone that cannot be read: what is there is unknown to every command, and nothing there is touched, nor is
anybody told to delete it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.session import Session, open_session

ZONE, OTHER = "us-central2-b", "us-central1-a"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A master, a clone of it in its zone that a slice has, and one in another zone."""
    with open_session() as made:
        made.type("up", "v4-8", "a", "--spot", "--pay", "--zone", ZONE)
        made.type("disk", "create", "m", "--size", "10", "--zone", ZONE)
        made.type("disk", "clone", "m", "--zone", ZONE)
        made.type("disk", "attach", "m-g1", "--to", "a", "--no-mount")
        made.type("disk", "clone", "m", "--zone", OTHER)
        yield made


@pytest.fixture
def dark(session: Session, request: pytest.FixtureRequest) -> Iterator[str]:
    zone: str = request.param
    session.type("sim", "fault", "--set", "kind=unreachable", "--set", f"zone={zone}", "--set", "times=0")
    yield zone
    session.type("sim", "fault", "--clear")


def rows(session: Session) -> dict[str, dict[str, object]]:
    return {row["name"]: row for row in session.json("disk", "ls")}


@pytest.mark.parametrize("dark", [ZONE], indirect=True)
def test_a_list_says_what_was_not_read(session: Session, dark: str) -> None:
    assert f"not read: {dark}; what is there is unknown" in session.type("disk", "ls").stderr
    found = {name: (row["status"], row["usd_per_month"]) for name, row in rows(session).items()}
    assert found == {"m": ("not read", None), "m-g1": ("not read", None), "m-g2": ("READY", 1.0)}


@pytest.mark.parametrize("dark", [ZONE], indirect=True)
def test_copies_that_were_not_read_are_not_collected(session: Session, dark: str) -> None:
    done = session.type("disk", "gc", "--keep", "0", "--dry-run")
    assert "would delete m-g2" in done.stderr
    assert "m-g1" not in done.stderr
    assert f"not read: {dark}; what is there stays" in done.stderr


@pytest.mark.parametrize("dark", [OTHER], indirect=True)
def test_nothing_is_deleted_or_written_down_in_a_zone_that_was_not_read(session: Session, dark: str) -> None:
    """Neither the copy nor its snapshot, which is in no zone."""
    done = session.type("disk", "gc", "--keep", "0", "--yes")
    assert "nothing to delete" in done.stderr
    session.type("sim", "fault", "--clear")
    assert rows(session)["m-g2"]["status"] == "READY"
    assert session.json("disk", "show", "m")["snapshots"] == ["m-g2-s"]
    up = ("up", "v4-8", "q", "--disk", "m-g1:/mnt/x", "--zone", ZONE, "--spot", "--pay", "--dry-run")
    session.type(*up)


@pytest.mark.parametrize("dark", [OTHER], indirect=True)
def test_reap_and_doctor_say_nothing_about_what_was_not_read(session: Session, dark: str) -> None:
    done = session.type("reap", "--dry-run")
    assert "m-g2" not in done.stderr
    assert "whether they are used is unknown" in " ".join(done.stderr.split())
    assert f"not read: disks in {dark}" in done.stderr
    assert f"disks in {dark}" in session.json("reap", "--dry-run")["not_read"]
    findings = json.loads(session.type("doctor", "--json", status=None).stdout)["findings"]
    found = [each for each in findings if each["check"] == "disks"]
    assert any(f"{dark} could not be read" in each["what"] for each in found)
    assert not any("m-g2" in each["what"] for each in found)


def test_no_command_proposes_to_delete_a_master(session: Session) -> None:
    commands = {row["name"]: row["command"] for row in session.json("reap", "--dry-run")["unused_disks"]}
    assert commands == {"m": "tpuctl disk show m", "m-g2": "tpuctl disk gc --keep 0"}
    findings = json.loads(session.type("doctor", "--json", status=None).stdout)["findings"]
    [found] = [each for each in findings if each["check"] == "disks"]
    assert "disk rm" not in found["fix"]


def test_a_disk_that_somebody_took_meanwhile_keeps_its_record(session: Session) -> None:
    refused = session.type("disk", "rm", "m-g1", "--yes", status=2)
    assert "m-g1 is attached to 1 host: a-1-w-0" in refused.stderr
    assert rows(session)["m-g1"]["status"] == "READY"
    up = ("up", "v4-8", "q", "--disk", "m-g1:/mnt/x", "--zone", ZONE, "--spot", "--pay", "--dry-run")
    session.type(*up)
