"""Every way out for a disk that is written, on isolated hosts whose power is cut when their node is deleted.

All that was written is there afterwards, although who wrote it brought nothing to the disk."""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Iterator

import pytest

from tests.support.hosts import wait_until
from tests.support.require import require_isolated_hosts
from tests.support.session import Session, open_session
from tpuctl.sim.server import control

ZONE = "us-central2-b"
UP = ("up", "v4-8", "--spot", "--pay", "--zone", ZONE)
SIZE = 30_000_000
WRITER = f"""
import time
file = open("/mnt/data/set", "wb")
file.write(bytes(range(250)) * {SIZE // 250})
file.flush()
open("/tmp/said", "w").close()
time.sleep(3600)
"""
SUM = hashlib.sha256(bytes(range(250)) * (SIZE // 250)).hexdigest()
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def module_session() -> Iterator[Session]:
    require_isolated_hosts()
    with open_session("--instant", "--hosts", "isolated") as made:
        made.type("sim", "fault", "hard-delete")
        made.type("disk", "create", "data", "--size", "10", "--zone", ZONE)
        yield made


@pytest.fixture
def session(module_session: Session) -> Iterator[Session]:
    """What a program wrote is looked for from another slice."""
    yield module_session
    module_session.type(*UP, "reader", "--disk", "data:rw")
    said = module_session.type("exec", "reader", "--", "sh", "-c", "sha256sum < /mnt/data/set").stdout
    module_session.type("exec", "reader", "--", "rm", "/mnt/data/set")
    module_session.type("down", "reader", "--yes")
    assert SUM in said


def write(session: Session, name: str) -> None:
    """The program has the file open, and goes on."""
    session.start("exec", name, "--", "python3", "-c", WRITER)
    wait_until(lambda: "said" in session.type("exec", name, "--", "ls", "/tmp").stdout, 60.0)


def writers(session: Session, name: str) -> str:
    """What the agent of a host says when it is asked how the host is used."""
    program = "import activity; print(activity.writers())"
    folder = "$(dirname $(find ~/.tpuctl -name activity.py | head -1))"
    words = ("sh", "-c", f"cd {folder} && python3 -c '{program}'")
    return session.type("exec", name, "--", *words).stdout


def test_down(session: Session) -> None:
    session.type(*UP, "dev", "--disk", "data:rw")
    assert "(0, False)" in writers(session, "dev")
    write(session, "dev")
    assert "(1, False)" in writers(session, "dev")
    session.type("down", "dev", "--yes")


def test_down_of_a_node_with_a_disk_that_its_slice_was_never_asked_to_have(session: Session) -> None:
    session.type(*UP, "own")
    session.type("disk", "attach", "data", "--to", "own", "--no-mount")
    there = "while ! ls /dev/sd?; do sleep 0.1; done"
    mount = "sudo mkdir -p /mnt/data && sudo mount $(ls /dev/sd? | tail -1) /mnt/data"
    session.type("exec", "own", "--", "sh", "-c", f"{there}; {mount} && sudo chmod 777 /mnt/data")
    write(session, "own")
    session.type("down", "own", "--yes")


FLEET = """
fleet:
  name: fleet
  slices:
    box: {accelerator: v4-8, zone: ZONE, tier: TIER, pay: true, disk: ["data:rw"]}
""".replace("ZONE", ZONE)


def test_apply_prune(session: Session) -> None:
    file = session.work / "fleet.yaml"
    file.write_text(FLEET.replace("TIER", "spot"))
    session.type("apply", "--file", str(file), "--yes")
    write(session, "box")
    file.write_text("fleet: {name: fleet, slices: {}}\n")
    session.type("apply", "--file", str(file), "--prune", "--yes")


@pytest.mark.long
def test_apply_replace(session: Session) -> None:
    """What comes in its place has it, with all that was written."""
    file = session.work / "fleet.yaml"
    file.write_text(FLEET.replace("TIER", "spot"))
    session.type("apply", "--file", str(file), "--yes")
    write(session, "box")
    [before] = nodes(session)
    file.write_text(FLEET.replace("TIER", "on-demand"))
    session.type("apply", "--file", str(file), "--yes", "--replace")
    [after] = nodes(session)
    assert after != before
    assert SUM in session.type("exec", "box", "--", "sh", "-c", "sha256sum < /mnt/data/set").stdout
    session.type("down", "box", "--yes")


def nodes(session: Session) -> list[str]:
    """TPUs that there are."""
    info = session.sim()
    return sorted(str(each["name"]).rpartition("/")[2] for each in control.state(info)["nodes"])


def pass_until_gone(session: Session, name: str, *, every_s: float) -> None:
    """Passes of a watchdog whose clock moves on in between."""
    end, later_s = time.monotonic() + 120.0, 0.0
    while name in {row["name"] for row in session.json("ls")}:
        assert time.monotonic() < end, session.type("why", name).stdout
        session.type("watch", "once", later_s=later_s)
        later_s += every_s


@pytest.mark.long
def test_the_end_of_its_time(session: Session) -> None:
    session.type(*UP, "old", "--disk", "data:rw", "--ttl", "1h")
    write(session, "old")
    pass_until_gone(session, "old", every_s=1200.0)


@pytest.mark.long
def test_nobody_at_work(session: Session) -> None:
    """Whoever has a file open for writing is at work, so it is closed, and only the host's memory has it."""
    session.type(*UP, "idle", "--disk", "data:rw", "--stop-when-idle", "30m")
    quiet = "echo '0.00 0.00 0.00 1/9 9' > /tmp/quiet && sudo mount --bind /tmp/quiet /proc/loadavg"
    session.type("exec", "idle", "--", "sh", "-c", quiet)
    session.type("exec", "idle", "--", "python3", "-c", WRITER.replace("time.sleep(3600)", ""))
    pass_until_gone(session, "idle", every_s=300.0)


def forget(session: Session, name: str) -> None:
    """The store has no word of a slice any more, as after it was lost and made anew."""
    [path] = (session.root / "state").glob("**/store.sqlite")
    with sqlite3.connect(path) as store:
        store.execute("delete from documents where key = ?", (f"slices/{name}",))


@pytest.mark.long
def test_reap_is_refused_and_says_what_may_be_lost(session: Session) -> None:
    """It knows no hosts to ask, so it deletes for who says that it may be lost: what was synced is there."""
    session.type(*UP, "lost", "--disk", "data:rw")
    write(session, "lost")
    session.type("exec", "lost", "--", "sync", "/mnt/data/set")
    forget(session, "lost")
    refused = session.type("reap", "--yes", status=3)
    assert "only with --force, for its hosts can write data" in " ".join(refused.stdout.split())
    assert nodes(session) == ["lost-1"]
    session.type("reap", "--yes", "--force")
    assert nodes(session) == []
