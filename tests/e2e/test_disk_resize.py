"""`disk resize` on isolated hosts: the file system grows with its disk, under a program that writes, and what
was cut off goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.require import can_grow_ext4, require_isolated_hosts, require_tool
from tests.support.session import Session, open_session

ZONE = "us-central2-b"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
WRITER = (
    "while :; do head -c 9999 /dev/urandom > /mnt/data/now && mv /mnt/data/now /mnt/data/last; sleep 0.1; done"
)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A box whose disk has an XFS, which grows in every container, made and mounted by hand."""
    require_isolated_hosts()
    require_tool("mkfs.xfs")
    with open_session("--instant", "--hosts", "isolated") as made:
        made.type("up", "v4-8", "dev", "--spot", "--pay", "--zone", ZONE)
        made.type("disk", "create", "data", "--size", "10", "--zone", ZONE)
        made.type("disk", "attach", "data", "--to", "dev", "--no-mount")
        made.on(
            "dev",
            "sudo mkfs.xfs -q -f /dev/sdb && sudo mkdir -p /mnt/data && sudo mount /dev/sdb /mnt/data",
        )
        made.on("dev", "sudo chmod 777 /mnt/data && echo kept > /mnt/data/kept && sync")
        yield made


def size_gib(session: Session) -> int:
    """Of the file system, which is a little smaller than its disk."""
    [said] = session.on("dev", "df -B1 --output=size /mnt/data | tail -1")
    return round(int(said) / (1 << 30))


def test_a_file_system_grows_under_a_program_that_writes_to_it(session: Session) -> None:
    started = f"setsid -f sh -c '{WRITER}' </dev/null >/dev/null 2>&1"
    session.type("exec", "dev", "--", "sudo", "sh", "-c", started)
    session.on("dev", "for n in $(seq 600); do test -e /mnt/data/last && exit; sleep 0.1; done; exit 1")
    assert size_gib(session) == 10
    done = session.type("disk", "resize", "data", "--size", "20", "--yes")
    assert "data has 20 GiB, and so has its file system on dev" in done.stderr
    assert size_gib(session) == 20
    assert session.on("dev", "cat /mnt/data/kept") == ["kept\n"]
    [before] = session.on("dev", "stat -c %Y%i /mnt/data/last")
    goes_on = f"test $(stat -c %Y%i /mnt/data/last) != {before.strip()}"
    session.on("dev", f"for n in $(seq 600); do {goes_on} && exit; sleep 0.1; done; exit 1")
    again = session.json("disk", "resize", "data", "--size", "20", "--yes")
    assert (again["size_gib"], again["grown_on"]) == (20, "dev")


@pytest.mark.parametrize(("at", "size"), [(2, 22), (4, 24)])
def test_what_was_cut_off_is_finished_by_the_same_command(session: Session, at: int, size: int) -> None:
    words = ("disk", "resize", "data", "--size", str(size), "--yes")
    assert session.type_killed(at, "after", *words).returncode != 0
    done = session.type(*words)
    assert f"data has {size} GiB, and so has its file system on dev" in done.stderr
    assert size_gib(session) == size
    [row] = session.json("disk", "ls")
    assert row["size_gib"] == size


def test_a_disk_that_gcloud_enlarged_gets_its_file_system_by_the_same_command(session: Session) -> None:
    [row] = session.json("disk", "ls")
    more = row["size_gib"] + 2
    path = f"/compute/v1/projects/sim-project/zones/{ZONE}/disks/data/resize"
    session.ask("POST", path, {"sizeGb": str(more)})
    session.type("disk", "resize", "data", "--size", str(more), "--yes")
    assert size_gib(session) == more


def test_what_nobody_has_mounted_grows_at_its_next_mount(session: Session) -> None:
    session.type("disk", "create", "idle", "--size", "10", "--zone", ZONE)
    said = session.type("disk", "resize", "idle", "--size", "11", "--yes").stderr
    assert "idle has 11 GiB; its file system grows when it is mounted next" in " ".join(said.split())
    session.type("disk", "attach", "idle", "--to", "dev", "--no-mount")
    said = session.type("disk", "resize", "idle", "--size", "12", "--yes").stderr
    assert "idle has 12 GiB; its file system grows when it is mounted next" in " ".join(said.split())
    session.type("disk", "mount", "idle", "--to", "dev")
    if can_grow_ext4():
        session.type("disk", "umount", "idle", "--to", "dev")
        session.type("disk", "resize", "idle", "--size", "14", "--yes")
        session.type("disk", "mount", "idle", "--to", "dev")
        [shown] = session.on("dev", "df -B1 --output=size /mnt/idle | tail -1")
        assert round(int(shown) / (1 << 30)) == 14
    session.type("disk", "detach", "idle", "--to", "dev")


def test_what_cannot_grow_says_so_with_what_to_type(session: Session) -> None:
    """An ext4 grows under programs only for who has CAP_SYS_RESOURCE, which a container may lack."""
    session.type("disk", "create", "plain", "--size", "10", "--zone", ZONE)
    session.type("disk", "attach", "plain", "--to", "dev")
    words = ("disk", "resize", "plain", "--size", "12", "--yes")
    done = session.type(*words, status=None)
    said = " ".join(done.stderr.split())
    if can_grow_ext4():
        assert "plain has 12 GiB, and so has its file system on dev" in said
    else:
        assert done.returncode != 0
        assert "plain has 12 GiB, its file system on dev has not" in said
        assert "tpuctl disk resize plain --size 12 --yes" in said
    assert session.json("disk", "show", "plain")["size_gib"] == 12
