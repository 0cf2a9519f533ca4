"""Device stacks made and taken away, and file systems grown, inside a kernel that can do all of it: run by
test_device_stacks.py. Its last word is `found`."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grow  # type: ignore[import-not-found]  # modules of the agent
import vacate_root  # type: ignore[import-not-found]
from disk_stack import number, stack  # type: ignore[import-not-found]

TEXT = b"written " * 100_000
SDB = number(os.makedev(98, 16))
DATA, ARRAY = "/mnt/data", "/dev/md0"


def sh(command: str) -> str:
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.stdout}{done.stderr}")
    return done.stdout


def mapper(name: str, below: str) -> None:
    """All of another device."""
    sectors = int(sh(f"blockdev --getsz {below}"))
    sh(f"echo 0 {sectors} linear {below} 0 | dmsetup create {name} && dmsetup mknodes")


def array(level: str) -> None:
    sh(f"test -e {ARRAY} || mknod -m 600 {ARRAY} b 9 0")
    sh(f"mdadm --build {ARRAY} --force --level={level} --raid-devices=1 /dev/sdb")


def file_system(device: str) -> None:
    """Mounted, with a file that only the memory of this kernel has."""
    sh(f"mkfs.ext4 -q {device} && mkdir -p {DATA} && mount {device} {DATA}")
    Path(DATA, "set").write_bytes(TEXT)


def swap(device: str) -> None:
    sh(f"mkswap {device} && swapon {device}")


def of_mappers() -> None:
    """With a file system, and on that another one in a file, and swap."""
    mapper("one", "/dev/sdb")
    mapper("two", "/dev/mapper/one")
    file_system("/dev/mapper/two")
    sh(f"truncate -s 20M {DATA}/image && mkfs.ext4 -q {DATA}/image && mkdir -p /mnt/in")
    sh(f"mount -o loop {DATA}/image /mnt/in && echo in > /mnt/in/word")
    sh(f"dd if=/dev/zero of={DATA}/swap bs=1M count=16 2>/dev/null && chmod 600 {DATA}/swap")
    swap(f"{DATA}/swap")


def of_a_striped_array() -> None:
    array("0")
    file_system(ARRAY)


def of_swap_on_a_linear_array() -> None:
    array("linear")
    swap(ARRAY)


def of_swap() -> None:
    swap("/dev/sdb")


CASES = [of_mappers, of_a_striped_array, of_swap_on_a_linear_array, of_swap]


def opens_alone() -> str:
    try:
        os.close(os.open("/dev/sdb", os.O_RDONLY | os.O_EXCL))
    except OSError as error:
        return os.strerror(error.errno or 0)
    return "yes"


def ask(purpose: str) -> dict[str, Any]:
    """What a host answers about the disk, with what keeps it in use."""
    device = {"path": "/dev/sdb", "device": SDB, "disk": "data"}
    request = {"purpose": purpose, "devices": [device], "grace_s": 1.0, "patience_s": 300.0, "seconds": 300}
    told = vacate_root.main(request)
    answers = told["disks"] or [{"proved": False, "why": told["state"], "holders": []}]
    holders = sorted({(str(each["what"]), str(each["path"])) for each in answers[0]["holders"]})
    return {"proved": answers[0]["proved"], "why": answers[0]["why"], "holders": holders}


def whole() -> bool:
    """Whether a fresh look finds the file that was written."""
    sh("mkdir -p /mnt/look && mount -o ro /dev/sdb /mnt/look")
    try:
        return Path("/mnt/look/set").read_bytes() == TEXT
    finally:
        sh("umount /mnt/look")


def lives(case: Callable[[], None]) -> dict[str, Any]:
    """One stack: made, asked for, and taken away."""
    case()
    has_files = os.path.ismount(DATA)
    before, alone = stack(SDB), opens_alone()
    left = ask("leave")
    stays = stack(SDB) == before and os.path.ismount(DATA) == has_files
    deleted = ask("delete")
    return {
        "alone": alone,
        "leave": left,
        "stays": stays,
        "delete": deleted,
        "alone after": opens_alone(),
        "stack after": len(stack(SDB)),
        "swaps after": len(Path("/proc/swaps").read_text().splitlines()) - 1,
        "whole": whole() if has_files else True,
    }


def grows() -> dict[str, Any]:
    """An ext4 while a program writes to it: its disk is a loop device whose file becomes larger."""
    sh("truncate -s 100M /run/disk && losetup /dev/loop7 /run/disk")
    sh("mkfs.ext4 -q /dev/loop7 && mkdir -p /mnt/grown && mount /dev/loop7 /mnt/grown")
    busy = "while :; do head -c 100000 /dev/zero > /mnt/grown/new; mv /mnt/grown/new /mnt/grown/last; done"
    writer = subprocess.Popen(["sh", "-c", busy], start_new_session=True)
    try:
        before = os.statvfs("/mnt/grown")
        sh("truncate -s 200M /run/disk && losetup --set-capacity /dev/loop7")
        told = grow.main({"path": "/mnt/grown", "size": 200 << 20})
        again = grow.main({"path": "/mnt/grown", "size": 200 << 20})
        after, goes_on = os.statvfs("/mnt/grown"), writer.poll() is None
    finally:
        os.killpg(writer.pid, signal.SIGKILL)  # with the program that it runs just now
        writer.wait()
    sizes = [each.f_blocks * each.f_frsize >> 20 for each in (before, after)]
    sh("n=0; until umount /mnt/grown; do sleep 0.1; n=$((n+1)); test $n -lt 100; done")
    sh("e2fsck -fn /dev/loop7")
    return {"told": told, "again": again, "mib": sizes, "goes_on": goes_on}


def tried(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return work()
    except Exception:  # noqa: BLE001 - whatever it is, the test is to see it
        return {"error": traceback.format_exc()}


os.mknod("/dev/sdb", stat.S_IFBLK | 0o600, os.makedev(98, 16))
found: dict[str, Any] = {"grows": tried(grows)}
for each in CASES:
    found[each.__name__] = tried(lambda each=each: lives(each))  # type: ignore[misc]
