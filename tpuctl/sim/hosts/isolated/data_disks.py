"""Data disks of isolated hosts: sparse files behind loop devices, with the names that they have on a TPU VM.

A loop device per host and disk, as every machine has its own view of a disk: file systems on them are real.
What a host has written and not yet brought to the disk is lost when its power is cut, as it is in the cloud.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import string
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tpuctl.errors import TpuctlError
from tpuctl.sim.hosts.backend import HostDisk
from tpuctl.sim.hosts.isolated.loop_devices import clear_loop
from tpuctl.sim.hosts.isolated.requirements import SYSTEM_PATH

COPY_TRIES = 20
"""A copy is good when nothing was written to its source meanwhile; a busy writer pauses between its syncs."""
GIB = 1 << 30
# linux/fs.h and fs/ext4/ext4.h, fs/xfs/libxfs/xfs_fs.h: both file systems have the same
_FITHAW = 0xC0045878
_SHUTDOWN = 0x8004587D
_WITHOUT_FLUSH = 2
_LOOP_SET_CAPACITY = 0x4C07
BY_ID = "dev/disk/by-id"


class DiskFiles:
    """The content of disks and snapshots, by key, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, key: str) -> Path:
        return self._folder / f"{key}.img"

    def write(self, key: str, size_gb: int, source: str) -> None:
        """See `HostBackend.write_disk`."""
        path = self.path(key)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if source and not path.exists():
            _copy(self.path(source), path)
        with path.open("ab") as file:
            file.truncate(size_gb * GIB)

    def drop(self, key: str) -> None:
        self.path(key).unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    """A sparse copy of one moment, as far as that can be had."""
    for _ in range(COPY_TRIES):
        before = source.stat().st_mtime_ns
        subprocess.run(["cp", "--sparse=always", source, target], check=True, env={"PATH": SYSTEM_PATH})
        if source.stat().st_mtime_ns == before:
            return


def device_name(number: int, *, nvme: bool) -> str:
    """Below `/dev`: `sdb` for the first data disk, or `nvme0n2`, as users of TPU VMs report."""
    return f"nvme0n{number + 1}" if nvme else f"sd{_letters(number)}"


def _letters(number: int) -> str:
    """a … z, aa … as the kernel counts SCSI disks."""
    head, last = divmod(number, 26)
    return ("" if head == 0 else _letters(head - 1)) + string.ascii_lowercase[last]


class HostDisks:
    """The devices of one host. `running` hosts alone have any; not thread-safe."""

    def __init__(self, files: DiskFiles) -> None:
        self._files = files
        self._loops: dict[HostDisk, Path] = {}
        self._places: dict[HostDisk, int] = {}
        """Which device each is: its own number, unless it was found out of order."""

    def set(self, root: Path, disks: Sequence[HostDisk]) -> None:
        """Plugs in what is missing and pulls out what is not in `disks`; `root` is the host's `/`."""
        for disk in [each for each in self._loops if each not in disks]:
            self._pull(root, disk)
        new = [disk for disk in disks if disk not in self._loops]
        taken = set(self._places.values())
        free = [disk.number for disk in new if disk.number not in taken]
        free += [number for number in range(1, len(taken) + len(new) + 1) if number not in {*taken, *free}]
        for disk, place in zip(new, sorted(free[: len(new)]), strict=True):
            self._plug(root, disk, place)

    def _plug(self, root: Path, disk: HostDisk, place: int) -> None:
        path = self._files.path(disk.key)
        words = ["losetup", "--find", "--show", *(["--read-only"] if disk.read_only else []), str(path)]
        done = subprocess.run(words, capture_output=True, text=True, env={"PATH": SYSTEM_PATH})
        if done.returncode != 0:
            raise TpuctlError(f"no loop device for a simulated disk: {done.stderr.strip()}")
        loop = Path(done.stdout.strip())
        self._loops[disk] = loop
        self._places[disk] = place
        name = device_name(place, nvme=disk.nvme)
        node = root / "dev" / name
        node.unlink(missing_ok=True)
        os.mknod(node, stat.S_IFBLK | 0o660, loop.stat().st_rdev)
        if disk.marked:
            by_id = root / BY_ID
            by_id.mkdir(parents=True, exist_ok=True)
            link = by_id / f"google-persistent-disk-{disk.number}"
            link.unlink(missing_ok=True)
            link.symlink_to(f"../../{name}")

    def _pull(self, root: Path, disk: HostDisk) -> None:
        """As a cable is pulled: who still has it mounted gets errors."""
        loop = self._loops.pop(disk)
        for point in _mounted(root, loop.stat().st_rdev):
            _stop_writing(point)
        (root / "dev" / device_name(self._places.pop(disk), nvme=disk.nvme)).unlink(missing_ok=True)
        (root / BY_ID / f"google-persistent-disk-{disk.number}").unlink(missing_ok=True)
        clear_loop(loop)

    def cut(self, root: Path) -> None:
        """The power fails: nothing more reaches the disks, and who waits for a frozen file system is let go."""
        for loop in self._loops.values():
            for point in _mounted(root, loop.stat().st_rdev):
                _stop_writing(point)

    def forget(self) -> None:
        """After the host's processes are dead; what is plugged in next are other devices."""
        for loop in self._loops.values():
            clear_loop(loop)
        self._loops.clear()
        self._places.clear()

    def grow(self, key: str) -> None:
        """The disk is larger; the host sees it."""
        for disk, loop in self._loops.items():
            if disk.key == key:
                _ioctl(loop, _LOOP_SET_CAPACITY, 0)

    def mount_points(self, root: Path) -> list[str]:
        """Where the host has them mounted, the deepest first."""
        found = [
            str(point.relative_to(root))
            for loop in self._loops.values()
            for point in _mounted(root, loop.stat().st_rdev)
        ]
        return [f"/{each}" for each in sorted(found, key=len, reverse=True)]


def _mounted(root: Path, device: int) -> Iterator[Path]:
    """Where the host has a device mounted; see proc(5) for the octal escapes."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = (root.parent / "mountinfo").read_text().splitlines()
    except OSError:
        return
    for fields in (line.split() for line in lines):
        if fields[2] == number:
            point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4])
            yield root / point.lstrip("/")


def _stop_writing(point: Path) -> None:
    """The file system does no I/O any more, not even for its journal, and is not frozen either."""
    for request, argument in ((_SHUTDOWN, struct.pack("I", _WITHOUT_FLUSH)), (_FITHAW, 0)):
        try:
            _ioctl(point, request, argument)
        except OSError:
            continue  # of a kind that knows no shutdown; or it was not frozen


def _ioctl(path: Path, request: int, argument: int | bytes) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, request, argument)
    finally:
        os.close(descriptor)
