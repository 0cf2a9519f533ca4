"""A disk leaves a host when nothing there uses it any more, wherever it is mounted; on isolated hosts.

What was written is there afterwards, on another slice, or the command refused and named who has it open.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.require import require_isolated_hosts
from tests.support.session import Session, open_session

ZONE = "us-central2-b"
pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """Two slices of one host each, and a disk between them."""
    require_isolated_hosts()
    with open_session("--instant", "--hosts", "isolated") as made:
        for name in ("one", "two"):
            made.type("up", "v4-8", name, "--spot", "--pay", "--zone", ZONE)
        made.type("disk", "create", "data", "--size", "10", "--zone", ZONE)
        yield made


@pytest.fixture
def attached(session: Session) -> Iterator[Session]:
    """The disk is at /mnt/data of slice one; afterwards it is nowhere."""
    session.type("disk", "attach", "data", "--to", "one")
    yield session
    session.on("one", "sudo pkill -x sleep; while pgrep -x sleep; do sleep 0.1; done")
    for row in session.json("disk", "ls"):
        for user in row["used_by"]:
            session.type("disk", "detach", row["name"], "--to", user.partition("-")[0])


def written(session: Session, path: str = "/mnt/data") -> str:
    """Bytes that are in the memory of slice one's host, as their sum."""
    [said] = session.on("one", f"head -c 3000000 /dev/urandom > {path}/set && sha256sum < {path}/set")
    return said


def there(session: Session) -> str:
    """The sum of what the other slice finds."""
    session.type("disk", "attach", "data", "--to", "two")
    [said] = session.on("two", "sha256sum < /mnt/data/set")
    return said


BIND = "sudo mkdir -p /mnt/bind && sudo mount --bind /mnt/data /mnt/bind"
PRIVATE = "unshare -m --propagation private sh -c"
UNSHARED = f"sudo setsid -f {PRIVATE} 'exec sleep 3600' </dev/null >/dev/null 2>&1"


@pytest.mark.parametrize("keep", [BIND, UNSHARED], ids=["a bind mount", "another namespace"])
def test_a_disk_that_is_mounted_elsewhere_too_leaves_with_all_that_was_written(
    attached: Session, keep: str
) -> None:
    attached.on("one", keep)
    before = written(attached)
    attached.type("disk", "detach", "data", "--to", "one")
    assert attached.on("one", "grep -c /mnt/ /proc/mounts || true") == ["0\n"]
    assert there(attached) == before


def test_a_disk_that_was_mounted_by_hand_leaves_with_all_that_was_written(session: Session) -> None:
    """Another file system at another path, without the label that tpuctl gives."""
    session.type("disk", "create", "raw", "--size", "10", "--zone", ZONE)
    session.type("disk", "attach", "raw", "--to", "one", "--no-mount")
    mount = "sudo mkdir -p /mnt/my && sudo mount /dev/sdb /mnt/my && sudo chmod 777 /mnt/my"
    session.on("one", f"sudo mkfs.ext4 -q /dev/sdb && {mount}")
    before = written(session, "/mnt/my")
    session.type("disk", "detach", "raw", "--to", "one")
    assert session.on("one", "grep -c /mnt/ /proc/mounts || true") == ["0\n"]
    session.type("disk", "attach", "raw", "--to", "one", "--no-mount")
    assert session.on("one", f"{mount} && sha256sum < /mnt/my/set") == [before]
    session.type("disk", "detach", "raw", "--to", "one")


def begin(session: Session, command: str, user: str = "root") -> None:
    """A program of slice one that goes on, once it has begun and made /tmp/begun. Of another user than that who
    logs in: whose programs end with the command that began them."""
    session.on("one", "sudo rm -f /tmp/begun; sudo chmod 777 /mnt/data")
    session.on("one", f"sudo -u {user} setsid -f {command} </dev/null >/dev/null 2>&1")
    session.on("one", "n=0; until test -e /tmp/begun; do sleep 0.1; n=$((n+1)); test $n -lt 600; done")


STAYS = "touch /tmp/begun; exec sleep 3600"
USES = {
    "an open file": ("nobody", f"sh -c 'exec 3>/mnt/data/open; {STAYS}'", "has /mnt/data/open open"),
    "a folder": ("nobody", f"sh -c 'cd /mnt/data; {STAYS}'", "is in /mnt/data"),
    "a file in another namespace": (
        "root",
        f"{PRIVATE} 'mount --bind /mnt/data /srv; exec 3>/srv/open; {STAYS}'",
        "has /srv/open open",
    ),
}


@pytest.mark.parametrize("use", USES)
def test_who_uses_a_disk_is_named_and_left_alone(attached: Session, use: str) -> None:
    user, command, said = USES[use]
    begin(attached, command, user)
    before = written(attached)
    for verb in ("detach", "umount"):
        refused = attached.type("disk", verb, "data", "--to", "one", status=3)
        told = " ".join(refused.stderr.split())
        assert "disk data is in use: worker 0: " in told
        assert f" sleep of {user} {said}" in told
        [kill] = [line.split(" -- ")[1] for line in refused.stderr.splitlines() if " -- sudo kill " in line]
    assert attached.on("one", "sha256sum < /mnt/data/set; pgrep -x sleep | wc -l") == [f"{before}1\n"]
    attached.on("one", f"{kill}; while pgrep -x sleep; do sleep 0.1; done")
    attached.type("disk", "detach", "data", "--to", "one")
    assert there(attached) == before


def test_a_loop_device_over_a_file_of_a_disk_is_named(attached: Session) -> None:
    attached.on("one", "truncate -s 20M /mnt/data/image")
    [loop] = attached.on("one", "sudo losetup -f --show /mnt/data/image")
    refused = attached.type("disk", "detach", "data", "--to", "one", status=3)
    assert f"{loop.strip()} is made of a file there" in " ".join(refused.stderr.split())
    assert f"-- sudo losetup -d {loop.strip()}" in refused.stderr
    attached.on("one", f"sudo losetup -d {loop}")
    attached.type("disk", "detach", "data", "--to", "one")
