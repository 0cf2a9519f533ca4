"""A disk leaves a host when nothing there uses it any more, wherever it is mounted; on isolated hosts.

What was written is there afterwards, on another slice, or the command refused and named who has it open.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.test_disk_journey import on
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
    for row in session.json("disk", "ls"):
        for user in row["used_by"]:
            session.type("disk", "detach", row["name"], "--to", user.partition("-")[0])


def written(session: Session, path: str = "/mnt/data") -> str:
    """Bytes that are in the memory of slice one's host, as their sum."""
    [said] = on(session, "one", f"head -c 3000000 /dev/urandom > {path}/set && sha256sum < {path}/set")
    return said


def there(session: Session) -> str:
    """The sum of what the other slice finds."""
    session.type("disk", "attach", "data", "--to", "two")
    [said] = on(session, "two", "sha256sum < /mnt/data/set")
    return said


BIND = "sudo mkdir -p /mnt/bind && sudo mount --bind /mnt/data /mnt/bind"
UNSHARED = "sudo setsid -f unshare -m --propagation private sh -c 'touch /tmp/begun; exec sleep 3600'"


@pytest.mark.parametrize("keep", [BIND, f"{UNSHARED} </dev/null >/dev/null 2>&1"], ids=["bind", "namespace"])
def test_a_disk_that_is_mounted_elsewhere_too_leaves_with_all_that_was_written(
    attached: Session, keep: str
) -> None:
    on(attached, "one", keep)
    before = written(attached)
    attached.type("disk", "detach", "data", "--to", "one")
    assert on(attached, "one", "grep -c /mnt/ /proc/mounts || true") == ["0\n"]
    assert there(attached) == before
