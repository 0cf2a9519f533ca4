"""Disks in the fleet file: `disk` of a slice, applied on isolated hosts with real file systems."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.require import require_isolated_hosts
from tests.support.session import Session, open_session

ZONE = "us-central2-b"
DEV = {"accelerator": "v4-8", "disk": ["data"], "tier": "spot", "zone": ZONE, "pay": True}
BIG = {"accelerator": "v4-16", "disk": ["data-g1:/srv/data"], "tier": "spot", "zone": ZONE, "pay": True}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    require_isolated_hosts()
    with open_session("--instant", "--hosts", "isolated") as made:
        made.type("disk", "create", "data", "--size", "10", "--zone", ZONE)
        yield made


def apply(session: Session, status: int = 0, **slices: object) -> str:
    fleet = {"fleet": {"name": "lab", "slices": slices}}
    (session.work / "tpuctl.yaml").write_text(json.dumps(fleet))
    return session.type("apply", "--yes", status=status).stderr


def on(session: Session, name: str, command: str) -> set[str]:
    done = session.type("exec", name, "--json", "--", "sh", "-c", command)
    found = json.loads(done.stdout)
    return {row["stdout"] for row in (found if isinstance(found, list) else found["workers"])}


@pytest.mark.parametrize(
    ("slices", "said"),
    [
        ({"dev": DEV, "two": DEV}, "fleet.slices.two: disk data is written by slice dev"),
        ({"two": {**DEV, "disk": ["none"]}}, "no disk called none"),
        ({"two": {**BIG, "disk": ["data"]}}, "data is a master, and one host writes to it"),
    ],
)
def test_a_disk_that_a_slice_of_the_file_cannot_have_is_refused(
    session: Session, slices: dict[str, object], said: str
) -> None:
    before = len(session.sim_journal())
    assert said in apply(session, status=2, **slices)
    assert len(session.sim_journal()) == before


def test_a_fleet_file_brings_slices_up_with_their_disks(session: Session) -> None:
    apply(session, dev=DEV)
    on(session, "dev", "echo first > /mnt/data/word && sync")
    session.type("disk", "clone", "data", "--zone", ZONE)
    apply(session, dev=DEV, big=BIG)
    assert on(session, "big", "cat /srv/data/word; ! touch /srv/data/x 2>/dev/null") == {"first\n"}
    shown = session.json("status", "big")
    assert (shown["state"], shown["options"]) == ("ready", {"disks": "data-g1 at /srv/data (ro)"})
    before = len(session.sim_journal())
    apply(session, dev=DEV, big=BIG)
    assert len(session.sim_journal()) == before
