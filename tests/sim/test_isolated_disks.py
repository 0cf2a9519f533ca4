"""Data disks of isolated hosts: file systems that outlive hosts, follow copies and show what a cut leaves."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.test_isolated_hosts import Fleet, eventually
from tests.support.require import require_isolated_hosts
from tpuctl.errors import TpuctlError
from tpuctl.sim.hosts.backend import HostDisk
from tpuctl.sim.hosts.isolated import data_disks
from tpuctl.sim.hosts.isolated.backend import IsolatedHosts
from tpuctl.sim.hosts.isolated.loop_devices import BLOCK_DEVICES

RW = HostDisk("master", 1, read_only=False, nvme=False)
CLONE = HostDisk("clone", 2, read_only=True, nvme=False)
DEVICE = "/dev/disk/by-id/google-persistent-disk-1"
MKFS = f"sudo mkfs.ext4 -q -L data {DEVICE}"


@pytest.fixture(scope="module", autouse=True)
def _possible() -> None:
    require_isolated_hosts()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    (tmp_path / "h").mkdir()
    hosts = IsolatedHosts(tmp_path / "h", world_id=f"disks-{os.getpid()}")
    try:
        fleet = Fleet(hosts, tmp_path)
        hosts.write_disk("master", 1)
        hosts.set_disks("node/1", {0: [RW]})
        yield fleet
    finally:
        hosts.close()
    loops = [file.read_text() for file in BLOCK_DEVICES.glob("loop*/loop/backing_file")]
    assert not [each for each in loops if str(tmp_path) in each]


def mounted(fleet: Fleet) -> None:
    fleet.ssh(f"{MKFS} && sudo mkdir -p /mnt/d && sudo mount {DEVICE} /mnt/d && sudo chmod 777 /mnt/d")


def superblock(fleet: Fleet, device: str, worker: int = 0) -> str:
    return fleet.ssh(f"sudo dumpe2fs -h {device} 2>/dev/null", worker)


def test_a_disk_is_on_the_hosts_that_have_it_and_on_no_other(fleet: Fleet) -> None:
    assert fleet.ssh(f"readlink -f {DEVICE}") == "/dev/sdb"
    assert fleet.ssh("sudo blockdev --getsize64 /dev/sdb") == str(1 << 30)
    assert fleet.ssh("ls /dev/disk/by-id 2>/dev/null || echo none", 1) == "none"


def test_a_clone_of_a_clean_disk_is_mounted_read_only_on_many_hosts(fleet: Fleet) -> None:
    mounted(fleet)
    fleet.ssh("echo one > /mnt/d/file && sudo fsfreeze -f /mnt/d")
    fleet.hosts.write_disk("clone", 1, "master")
    fleet.ssh("sudo fsfreeze -u /mnt/d && echo two > /mnt/d/file")
    fleet.hosts.set_disks("node/1", {0: [RW, CLONE], 1: [CLONE]})
    assert "needs_recovery" not in superblock(fleet, "/dev/sdc")
    for worker in (0, 1):
        fleet.ssh("sudo mkdir -p /mnt/c && sudo mount -o ro /dev/sdc /mnt/c", worker)
        assert fleet.ssh("cat /mnt/c/file", worker) == "one"
        assert "Read-only" in fleet.ssh("sudo touch /mnt/c/x 2>&1 || true", worker)
    blkid = "sudo blkid -o value -s UUID -s LABEL"
    assert fleet.ssh(f"{blkid} /dev/sdb") == fleet.ssh(f"{blkid} /dev/sdc")
    with pytest.raises(AssertionError, match="write-protected"):
        fleet.ssh("sudo mount -o remount,rw /mnt/c", 1)


def test_a_clone_of_a_disk_that_was_only_synced_by_its_writer_needs_recovery(fleet: Fleet) -> None:
    mounted(fleet)
    fleet.ssh("dd if=/dev/urandom of=/mnt/d/file bs=64k count=8 conv=fsync 2>/dev/null")
    fleet.hosts.write_disk("clone", 1, "master")
    fleet.hosts.set_disks("node/1", {0: [RW], 1: [CLONE]})
    assert "needs_recovery" in superblock(fleet, "/dev/sdc", 1)
    with pytest.raises(AssertionError, match=r"mount\(2\)|wrong fs|cannot mount|read-only"):
        fleet.ssh("sudo mkdir -p /mnt/c && sudo mount -o ro /dev/sdc /mnt/c", 1)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_host_whose_power_is_cut_leaves_a_dirty_journal(fleet: Fleet, frozen: bool) -> None:
    mounted(fleet)
    fleet.ssh("dd if=/dev/urandom of=/mnt/d/file bs=64k count=8 conv=fsync 2>/dev/null")
    if frozen:
        fleet.ssh("sudo fsfreeze -f /mnt/d; (nohup sh -c 'echo x > /mnt/d/blocked' >/dev/null 2>&1 &)")
    fleet.hosts.stop("node/1")
    fleet.hosts.start("node/1")
    fleet.hosts.set_disks("node/1", {0: [RW]})
    fleet.accept("ada")
    assert ("needs_recovery" in superblock(fleet, DEVICE)) is not frozen
    fleet.ssh(f"sudo mkdir -p /mnt/d && sudo mount {DEVICE} /mnt/d && sync && test -s /mnt/d/file")


def test_a_host_that_is_shut_down_in_order_leaves_a_clean_disk(fleet: Fleet) -> None:
    mounted(fleet)
    fleet.ssh("echo kept > /mnt/d/file")
    fleet.hosts.shutdown("node/1", 5.0)
    fleet.hosts.stop("node/1")
    fleet.hosts.start("node/1")
    fleet.hosts.set_disks("node/1", {0: [RW]})
    fleet.accept("ada")
    assert "needs_recovery" not in superblock(fleet, DEVICE)
    fleet.ssh(f"sudo mount {DEVICE} /mnt/d")
    assert fleet.ssh("cat /mnt/d/file") == "kept"


def test_content_outlives_the_node(fleet: Fleet) -> None:
    mounted(fleet)
    fleet.ssh("echo kept > /mnt/d/file && sudo umount /mnt/d")
    fleet.hosts.set_disks("node/1", {})
    assert fleet.ssh("ls /dev/sdb 2>/dev/null || echo none") == "none"
    fleet.hosts.set_disks("node/1", {1: [RW]})
    fleet.ssh(f"sudo mkdir -p /mnt/d && sudo mount {DEVICE} /mnt/d", 1)
    assert fleet.ssh("cat /mnt/d/file", 1) == "kept"


def test_a_disk_that_is_pulled_out_gives_errors(fleet: Fleet) -> None:
    mounted(fleet)
    fleet.hosts.set_disks("node/1", {})
    with pytest.raises(AssertionError, match=r"Input/output error|I/O error"):
        fleet.ssh("touch /mnt/d/x")


def test_a_disk_grows_on_a_host_that_has_it(fleet: Fleet) -> None:
    mounted(fleet)
    fleet.hosts.write_disk("master", 2)
    assert fleet.ssh("sudo blockdev --getsize64 /dev/sdb") == str(2 << 30)
    # Not while it is mounted: a container may lack CAP_SYS_RESOURCE.
    fleet.ssh("sudo umount /mnt/d && sudo e2fsck -fp /dev/sdb >/dev/null && sudo resize2fs /dev/sdb 2>&1")
    assert superblock(fleet, "/dev/sdb").count("524288") == 1


def test_disks_are_nvme_namespaces_where_the_machine_is_such(fleet: Fleet) -> None:
    fleet.hosts.set_disks("node/1", {0: [HostDisk("master", 1, read_only=False, nvme=True, marked=False)]})
    assert fleet.ssh("ls /dev/nvme*") == "/dev/nvme0n2"
    assert fleet.ssh("ls /dev/disk/by-id") == ""


def test_devices_have_each_others_names_in_another_order_and_their_own_marks(fleet: Fleet) -> None:
    one, two = RW, HostDisk("two", 2, read_only=False, nvme=False)
    nameless = HostDisk("three", 3, read_only=False, nvme=False, marked=False)
    for disk in (two, nameless):
        fleet.hosts.write_disk(disk.key, 1)
    fleet.hosts.set_disks("node/1", {})
    fleet.hosts.set_disks("node/1", {0: [two, one, nameless]})
    marks = "cd /dev/disk/by-id && for each in *; do echo $each $(readlink $each); done"
    shown = ["google-persistent-disk-1 ../../sdc", "google-persistent-disk-2 ../../sdb"]
    assert fleet.ssh(marks).splitlines() == shown
    assert fleet.ssh("ls /dev/sd*").split() == ["/dev/sdb", "/dev/sdc", "/dev/sdd"]
    fleet.hosts.set_disks("node/1", {0: [one, nameless]})
    assert fleet.ssh("ls /dev/sd*").split() == ["/dev/sdc", "/dev/sdd"]
    fleet.hosts.set_disks("node/1", {0: [one, two, nameless]})
    assert fleet.ssh(marks).splitlines() == shown


def test_a_copy_takes_no_more_room_than_what_was_written(fleet: Fleet, tmp_path: Path) -> None:
    fleet.hosts.write_disk("large", 1000)
    used = subprocess.run(["du", "-sk", tmp_path / "h"], capture_output=True, text=True, check=True).stdout
    assert int(used.split()[0]) < 100_000


def test_a_loop_device_does_not_keep_that_it_was_read_only(fleet: Fleet) -> None:
    fleet.hosts.set_disks("node/1", {})
    for _ in range(3):  # the machine gives the same device again, unless somebody else takes it
        fleet.hosts.set_disks("node/1", {0: [HostDisk("master", 1, read_only=True, nvme=False)]})
        fleet.ssh("sudo blockdev --setro /dev/sdb")
        fleet.hosts.set_disks("node/1", {0: [RW]})
        assert fleet.ssh("sudo blockdev --getro /dev/sdb") == "0"
        fleet.ssh(
            "sudo dd if=/dev/zero of=/dev/sdb bs=4k count=1 conv=fsync 2>&1 && sudo blockdev --setro /dev/sdb"
        )


def test_a_read_only_disk_refuses_writes_whatever_its_host_believes(fleet: Fleet) -> None:
    fleet.ssh("echo kept | sudo dd of=/dev/sdb conv=fsync 2>/dev/null")
    fleet.hosts.set_disks("node/1", {0: [HostDisk("master", 1, read_only=True, nvme=False)]})
    before = fleet.ssh("sudo head -c 1M /dev/sdb | sha256sum")
    fleet.ssh("sudo blockdev --setrw /dev/sdb")
    with pytest.raises(AssertionError, match=r"Input/output error|not permitted"):
        fleet.ssh("sudo dd if=/dev/urandom of=/dev/sdb bs=4k count=8 conv=fsync")
    fleet.hosts.set_disks("node/1", {1: [RW]})
    assert fleet.ssh("sudo head -c 1M /dev/sdb | sha256sum", 1) == before


BUSY = """
import os, sqlite3, sys
database = sqlite3.connect("/mnt/d/rows.db", isolation_level=None)
database.execute("pragma journal_mode=wal")
database.execute("pragma synchronous=full")
database.execute("create table rows (number integer primary key, text)")
lines = os.open("/mnt/d/lines", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
folder = os.open("/mnt/d", os.O_RDONLY)
said = os.open("said", os.O_WRONLY | os.O_CREAT)
for number in range(10**9):
    text = (b"%012d" % number) * 100 + b"\\n"
    os.write(lines, text)
    os.fsync(lines)
    with open(f"/mnt/d/{number}.new", "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"/mnt/d/{number}.new", f"/mnt/d/{number % 100}.file")
    os.fsync(folder)
    database.execute("insert into rows values (?, ?)", (number, text))
    os.pwrite(said, b"%012d" % number, 0)
"""
"""Lines, files and rows, all brought to the disk without a pause; says in its home which number is there."""
CHECK = """
import sqlite3, sys
least = int(sys.argv[1])
line = lambda number: (b"%012d" % number) * 100 + b"\\n"
lines = open("/mnt/c/lines", "rb").read().splitlines(keepends=True)
assert len(lines) > least, (len(lines), least)
assert all(text == line(number) for number, text in enumerate(lines[: least + 1]))
database = sqlite3.connect("/mnt/c/rows.db")
assert database.execute("pragma integrity_check").fetchone() == ("ok",)
rows = database.execute("select * from rows order by number")
assert [n for n, text in rows if text == line(n)][: least + 1] == list(range(least + 1))
for number in range(max(0, least - 99), least + 1):
    text = open(f"/mnt/c/{number % 100}.file", "rb").read()
    assert text == line(int(text[:12])) and int(text[:12]) >= number, (number, text[:12])
print("whole")
"""


def said(fleet: Fleet) -> int:
    return int(fleet.ssh("cat said 2>/dev/null || true") or 0)


def test_a_copy_under_a_busy_writer_is_of_one_moment_and_has_all_that_was_synced(fleet: Fleet) -> None:
    mounted(fleet)
    fleet.ssh(f"cat > busy.py <<'END'\n{BUSY}\nEND\nsetsid python3 busy.py > log 2>&1 < /dev/null &")
    fleet.ssh(f"cat > check.py <<'END'\n{CHECK}\nEND", 1)
    for number in range(2):
        before = said(fleet)
        eventually(lambda before=before: said(fleet) > before + 20, 60)  # type: ignore[misc]
        least = said(fleet)
        fleet.hosts.write_disk(f"copy{number}", 1, "master")
        fleet.hosts.set_disks(
            "node/1", {0: [RW], 1: [HostDisk(f"copy{number}", 1, read_only=False, nvme=False)]}
        )
        assert "needs_recovery" in superblock(fleet, "/dev/sdb", 1)
        fleet.ssh("sudo mkdir -p /mnt/c && sudo mount /dev/sdb /mnt/c", 1)
        assert fleet.ssh(f"sudo python3 check.py {least}", 1) == "whole"
        fleet.ssh("sudo umount /mnt/c && sudo e2fsck -fn /dev/sdb", 1)
        eventually(lambda least=least: said(fleet) > least, 60)  # type: ignore[misc]  # the writer goes on


def test_a_disk_that_never_rests_is_not_copied(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every look at it found that it was changed just now."""
    monkeypatch.setattr(data_disks, "SETTLE_TIMEOUT_S", 0.5)
    monkeypatch.setattr(data_disks, "TICK_NS", 10**18)
    with pytest.raises(TpuctlError, match="without a pause"):
        fleet.hosts.write_disk("clone", 1, "master")
    fleet.ssh("true")  # programs go on
    monkeypatch.undo()
    fleet.hosts.write_disk("clone", 1, "master")
    fleet.hosts.set_disks("node/1", {0: [RW, CLONE]})
