"""Hosts that boot again have lost the mounts of their disks: they come back, and nothing runs without them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.hosts import wait_until
from tests.support.require import require_isolated_hosts
from tests.support.session import Session, open_session
from tests.support.soak import soak

ZONE = "us-central2-b"
UP = ("--spot", "--pay", "--zone", ZONE)
READ = "print('seen', open('/mnt/data/word').read().strip())\n"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A slice that writes a disk, and one of two hosts that reads a copy of it."""
    require_isolated_hosts()
    with open_session("--instant", "--hosts", "isolated") as made:
        made.type("disk", "create", "data", "--size", "10", "--zone", ZONE)
        # Nodes of queues, spot nodes and those of several hosts cannot be stopped.
        made.type("up", "v4-8", "dev", "--direct", "--on-demand", *UP[1:], "--disk", "data")
        made.on("dev", "echo first > /mnt/data/word && sync")
        made.type("up", "v4-16", "big", *UP)
        made.type("disk", "clone", "data", "--to", "big")
        (made.work / "read.py").write_text(READ)
        yield made


def mounted(session: Session, slice_name: str) -> list[str]:
    return session.on(slice_name, "findmnt -no FSTYPE /mnt/data || echo none")


def until_answers(session: Session, slice_name: str) -> None:
    """Hosts that boot take some time until they let somebody in."""
    wait_until(lambda: session.type("exec", slice_name, "--", "true", status=None).returncode == 0)


def stop_and_start(session: Session, node: str) -> None:
    """As `gcloud compute tpus tpu-vm stop` and `start` do."""
    path = f"/v2/projects/sim-project/locations/{ZONE}/nodes/{node}"
    for verb, after in (("stop", "STOPPED"), ("start", "READY")):
        session.ask("POST", f"{path}:{verb}", {})
        wait_until(lambda after=after: session.ask("GET", path)["state"] == after)  # type: ignore[misc]


def reboot(session: Session, node: str) -> None:
    session.type("sim", "reboot", node)


@pytest.mark.parametrize(
    ("how", "lose"),
    [
        ("watch", reboot),
        ("up", stop_and_start),
        ("run", stop_and_start),
        *(soak(*pair) for pair in (("watch", stop_and_start), ("up", reboot), ("run", reboot))),
    ],
)
def test_disks_come_back_before_anything_runs(session: Session, how: str, lose: Any) -> None:
    lose(session, "dev-1")
    reboot(session, "big-1")
    for name in ("dev", "big"):
        until_answers(session, name)
    if how == "watch":
        session.type("watch", "once")
        session.watch_until(lambda: states(session) == {"ready"})
    elif how == "up":
        for name in ("dev", "big"):
            session.type("up", name)
    else:
        for name in ("dev", "big"):
            done = session.type("run", "--on", name, "--no-checkpoint", "read.py")
            assert "seen first" in done.stdout
    assert mounted(session, "dev") == ["ext4\n"]
    assert mounted(session, "big") == ["ext4\n"] * 2
    assert session.on("big", "cat /mnt/data/word; touch /mnt/data/x 2>/dev/null; true") == ["first\n"] * 2


def states(session: Session) -> set[str]:
    return {row["state"] for row in session.json("ls")}


def test_the_manifest_says_what_was_seen(session: Session) -> None:
    session.type("run", "--on", "big", "--no-checkpoint", "--name", "seen", "read.py")
    [attempt] = session.json("manifest", "seen")["attempts"]
    [disk] = attempt["disks"]
    uuids = set(session.on("big", "sudo blkid -p -s UUID -o value $(findmnt -no SOURCE /mnt/data)"))
    assert (disk["name"], disk["seen_by"], {disk["fs_uuid"] + "\n"}) == ("data-g1", 2, uuids)
    assert [row["disk /mnt/data"] for row in attempt["hosts"]] == ["data-g1"] * 2
    assert "disks" in {row["check"] for row in attempt["checks"]}


def test_no_run_starts_where_something_else_is_at_the_place_of_a_disk(session: Session) -> None:
    reboot(session, "dev-1")
    until_answers(session, "dev")
    session.type("up", "dev")
    session.on("dev", "sudo umount /mnt/data && sudo mount -t tmpfs none /mnt/data")
    words = ("run", "--on", "dev", "--no-checkpoint", "--name", "none", "read.py")
    assert "something else is mounted on /mnt/data" in session.type(*words, status=1).stderr
    assert session.on("dev", "sudo umount /mnt/data; ls -A /mnt/data") == [""]
    attempts = session.json("manifest", "none")["attempts"]
    assert "started" not in {row["event"] for attempt in attempts for row in attempt["timeline"]}
    assert "seen first" in session.type("run", "--on", "dev", "--no-checkpoint", "read.py").stdout
