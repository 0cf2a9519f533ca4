"""A disk and its copy on one host have the same label, UUID and size: neither is taken for the other, also when
the host booted and its kernel found them in another order. A disk with anything on it is never formatted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.require import require_isolated_hosts
from tests.support.session import Session, open_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SLICES = {"v4-8": ("us-central2-b", "pd-balanced"), "v6e-4": ("us-east5-b", "hyperdisk-balanced")}
"""The second has NVMe disks, which have no names in /dev/disk/by-id."""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    require_isolated_hosts()
    with open_session("--instant", "--hosts", "isolated") as made:
        made.type("sim", "fault", "device-order")
        yield made


def on(session: Session, name: str, command: str) -> str:
    found: Any = json.loads(session.type("exec", name, "--json", "--", "sh", "-c", command).stdout)
    [row] = found
    return str(row["stdout"]).strip()


@pytest.mark.parametrize("kind", SLICES)
def test_neither_is_taken_for_the_other_after_a_boot(session: Session, kind: str) -> None:
    zone, disk_type = SLICES[kind]
    name, disk = kind.partition("-")[0], f"data-{kind.partition('-')[0]}"
    session.type("disk", "create", disk, "--size", "10", "--zone", zone, "--type", disk_type)
    session.type("up", kind, name, "--spot", "--pay", "--zone", zone, "--disk", f"{disk}:/mnt/data")
    on(session, name, "echo old > /mnt/data/word && sync")
    session.type("disk", "clone", disk, "--to", name, "--path", "/mnt/copy")
    on(session, name, "echo new > /mnt/data/word && sync")
    for _ in range(2):
        session.type("sim", "reboot", f"{name}-1")
        session.watch_until(
            lambda: session.type("exec", name, "--", "findmnt", "/mnt/copy", status=None).returncode == 0
        )
        read = "cat /mnt/data/word /mnt/copy/word; touch /mnt/copy/x 2>/dev/null; touch /mnt/data/x && echo ok"
        assert on(session, name, read).split() == ["new", "old", "ok"]


def test_a_disk_that_holds_something_or_is_open_is_not_formatted(session: Session) -> None:
    zone = SLICES["v4-8"][0]
    session.type("disk", "create", "raw", "--size", "10", "--zone", zone)
    session.type("up", "v4-8", "raw", "--spot", "--pay", "--zone", zone)
    session.type("disk", "attach", "raw", "--to", "raw", "--no-mount")
    device = "/dev/disk/by-id/google-persistent-disk-1"
    on(session, "raw", f"echo mine | sudo dd of={device} conv=fsync seek=4096 status=none")
    said = session.type("disk", "mount", "raw", "--to", "raw", status=3).stderr
    assert "not formatted: " in said
    assert "holds something" in said
    assert on(session, "raw", f"sudo dd if={device} skip=4096 count=1 status=none | head -c 4") == "mine"
    on(session, "raw", f"sudo dd if=/dev/zero of={device} conv=fsync seek=4096 count=1 status=none")
    on(
        session,
        "raw",
        f"sudo setsid -f sh -c 'exec 3< {device}; sleep 600' </dev/null >/dev/null 2>&1; sleep 1",
    )
    said = session.type("disk", "mount", "raw", "--to", "raw", status=3).stderr
    assert "has it open" in said
    on(session, "raw", "sudo pkill -x sleep; true")
    session.type("disk", "mount", "raw", "--to", "raw")
