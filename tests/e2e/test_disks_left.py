"""Every way out for a disk that is written, on isolated hosts whose power is cut when their node is deleted.

All that was written is there afterwards, although who wrote it brought nothing to the disk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from tests.support.hosts import wait_until
from tests.support.require import require_isolated_hosts
from tests.support.session import Session, open_session

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
    mount = "sudo mkdir -p /mnt/data && sudo mount $(ls /dev/sd? | tail -1) /mnt/data"
    session.type("exec", "own", "--", "sh", "-c", f"{mount}; sudo chmod 777 /mnt/data")
    write(session, "own")
    session.type("down", "own", "--yes")


FLEET = """
fleet:
  name: fleet
  slices:
    box: {accelerator: v4-8, zone: ZONE, tier: spot, pay: true, disk: ["data:rw"]}
"""


def test_apply_prune(session: Session) -> None:
    file = session.work / "fleet.yaml"
    file.write_text(FLEET.replace("ZONE", ZONE))
    session.type("apply", "--file", str(file), "--yes")
    write(session, "box")
    file.write_text("fleet: {name: fleet, slices: {}}\n")
    session.type("apply", "--file", str(file), "--prune", "--yes")
