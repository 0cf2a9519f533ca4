"""What a writer finds on its disks after the end of a host: everything after an orderly one, what it brought to
the disk after a cut."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.test_isolated_hosts import Fleet, eventually
from tests.support.require import require_heeded_immutability, require_isolated_hosts
from tpuctl.sim.hosts.backend import HostDisk
from tpuctl.sim.hosts.files import memory_of
from tpuctl.sim.hosts.isolated.backend import IsolatedHosts

SHOWN, OWN, RAW = (HostDisk(name, n, read_only=False, nvme=False) for n, name in enumerate(("a", "b", "c"), 1))
DISKS = {0: [SHOWN, OWN, RAW]}
DEVICES = ("sdb", "sdc", "sdd")
BLOCK = 1 << 16

WRITER = f"""
import os, signal, sys, time
place, count, polite = sys.argv[1:]
if not int(polite):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
raw = place.startswith("/dev/")
synced = os.open(place if raw else place + "/synced", os.O_WRONLY | (0 if raw else os.O_CREAT))
os.write(synced, b"synced".ljust({BLOCK}, b"."))
os.fsync(synced)
if not raw:
    os.fsync(os.open(place, os.O_RDONLY))
returned = synced if raw else os.open(place + "/returned", os.O_WRONLY | os.O_CREAT)
said = os.open(count, os.O_WRONLY | os.O_CREAT)
for number in range(10**9):
    os.pwrite(returned, b"%012d" % number, {BLOCK})
    os.pwrite(said, b"%012d" % number, 0)
    time.sleep(0.002)
"""
"""Brings one thing to the disk, then counts there without doing so, and says in its home each number that it
has written. It dies of SIGTERM if it is polite."""


@pytest.fixture(scope="module", autouse=True)
def _possible() -> None:
    require_isolated_hosts()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    (tmp_path / "h").mkdir()
    hosts = IsolatedHosts(tmp_path / "h", world_id=f"power-{os.getpid()}")
    try:
        fleet = Fleet(hosts, tmp_path)
        for disk in DISKS[0]:
            hosts.write_disk(disk.key, 1)
        places = (tmp_path, memory_of(f"power-{os.getpid()}"))
        [content] = [file for place in places for file in place.rglob(f"{RAW.key}.img")]
        require_heeded_immutability(content.parent)
        hosts.set_disks("node/1", DISKS)
        for device in ("sdb", "sdc"):
            fleet.ssh(f"sudo mkfs.ext4 -q -E lazy_itable_init=1 /dev/{device}")
        yield fleet
    finally:
        hosts.close()


def write(fleet: Fleet, *, polite: bool = True) -> None:
    """On each disk: one is mounted for all, one in a mount namespace of its own, one has no file system."""
    fleet.ssh(
        f"cat > w.py <<'END'\n{WRITER}\nEND\nsudo mkdir -p /mnt/sdb /mnt/sdc && sudo mount /dev/sdb /mnt/sdb"
    )
    before = {"sdc": "mount /dev/sdc /mnt/sdc && "}
    for device in DEVICES:
        place = "/dev/sdd" if device == "sdd" else f"/mnt/{device}"
        line = f"{before.get(device, '')}exec python3 w.py {place} $PWD/{device} {int(polite)}"
        # The kernel refuses a namespace now and then.
        inside = f"until unshare -m true; do sleep 0.1; done; exec unshare -m sh -c {shlex.quote(line)}"
        fleet.ssh(f"sudo setsid sh -c {shlex.quote(inside)} > log-{device} 2>&1 < /dev/null &")
    eventually(lambda: min(said(fleet).values()) > 10, 60)
    assert fleet.ssh("grep -c /mnt/sdc /proc/mounts || true") == "0"


def said(fleet: Fleet) -> dict[str, int]:
    """What each writer counted to."""
    shown = fleet.ssh("for each in sdb sdc sdd; do cat $each 2>/dev/null || echo 0; echo; done").split()
    return dict(zip(DEVICES, map(int, shown), strict=True))


def found(fleet: Fleet, worker: int = 0) -> dict[str, int]:
    """What each writer counted to by what is on its disk, on the next host that has it. What it synced is
    there."""
    fleet.hosts.set_disks("node/1", {worker: DISKS[0]})
    for device in DEVICES[:2]:
        fleet.ssh(f"sudo mkdir -p /mnt/{device} && sudo mount /dev/{device} /mnt/{device}", worker)
    read = f"""sudo python3 -c 'import os, sys
for place in ("/mnt/sdb/", "/mnt/sdc/", "/dev/sdd"):
    synced, returned = [place] * 2 if place == "/dev/sdd" else [place + "synced", place + "returned"]
    assert open(synced, "rb").read(6) == b"synced"
    file = open(returned, "rb") if os.path.exists(returned) else None
    print(int(((file and file.seek({BLOCK}) and file.read(12)) or b"").strip(bytes(1)) or 0))'"""
    return dict(zip(DEVICES, map(int, fleet.ssh(read, worker).split()), strict=True))


def expect_lost(fleet: Fleet, worker: int = 0) -> None:
    """Of numbers that were said, the last ones: something else on this machine may sync all disks any time."""
    there, heard = found(fleet, worker), said(fleet)
    assert [device for device in DEVICES if there[device] >= heard[device]] == [], (there, heard)


def back(fleet: Fleet) -> None:
    fleet.hosts.stop("node/1", [0])
    fleet.hosts.start("node/1")
    fleet.accept("ada")


def test_an_orderly_end_keeps_every_write_that_returned(fleet: Fleet) -> None:
    write(fleet)
    fleet.hosts.shutdown("node/1", 60.0, [0])
    back(fleet)
    there, heard = found(fleet), said(fleet)
    assert [device for device in DEVICES if there[device] < heard[device]] == [], (there, heard)


def test_a_cut_keeps_what_was_brought_to_the_disk_and_loses_the_rest(fleet: Fleet) -> None:
    write(fleet)
    back(fleet)
    expect_lost(fleet)


def test_who_does_not_end_within_the_window_loses_what_it_did_not_sync(fleet: Fleet) -> None:
    write(fleet, polite=False)
    fleet.hosts.shutdown("node/1", 0.5, [0])
    back(fleet)
    expect_lost(fleet)


def test_a_disk_that_is_pulled_out_has_what_was_synced_and_nothing_that_is_written_later(fleet: Fleet) -> None:
    write(fleet)
    fleet.hosts.set_disks("node/1", {})
    fleet.ssh("sudo sh -c 'echo late > /mnt/sdb/late' 2>/dev/null; true")
    fleet.ssh("sudo pkill -f '[w].py'; sudo umount /mnt/sdb; true")
    expect_lost(fleet, 1)
    assert fleet.ssh("ls /mnt/sdb/late 2>/dev/null || true", 1) == ""
