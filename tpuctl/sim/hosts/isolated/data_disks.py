"""Data disks of isolated hosts: sparse files behind loop devices, with the names that they have on a TPU VM.

A loop device per host and disk, as every machine has its own view of a disk: file systems on them are real.
What a host has written and not yet brought to the disk is lost when its power is cut or the disk is pulled
out, as it is in the cloud: from that moment the file behind the device is immutable. ext4 heeds that for who
has it open already, too, so that everything fails that the kernel still wants to write. Where the machine has
another file system, the host's own are told to stop, which does the same for what is ext4 or xfs.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import string
import struct
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from tpuctl.errors import TpuctlError
from tpuctl.sim.hosts.backend import HostDisk
from tpuctl.sim.hosts.files import SYSTEM_PATH, set_immutable
from tpuctl.sim.hosts.isolated.loop_devices import attach_loop, clear_loop, grow_loop, is_bound, stop_discards

SETTLE_TIMEOUT_S = 30.0
"""A copy is good when nothing was written to its source meanwhile. With its writers stopped, the kernel still
brings to the disk what they had written: the journal within 5 s, all else as fast as it can."""
TICK_NS = 20_000_000
"""Two changes that are nearer to each other than a tick of the kernel's clock may have the same time."""
RELEASE_TIMEOUT_S = 5.0
"""A loop device goes with its last user; the kernel ends mounts of dead processes a moment later."""
PULL_TIMEOUT_S = 0.2
"""Of a device that is not mounted: long enough for somebody who looks at it, such as udev."""
POLL_S = 0.005
GIB = 1 << 30
# linux/fs.h and fs/ext4/ext4.h, fs/xfs/libxfs/xfs_fs.h: both file systems have the same
_FITHAW = 0xC0045878
_SHUTDOWN = 0x8004587D
_WITHOUT_FLUSH = 2
BY_ID = "dev/disk/by-id"


Pause = Callable[[], AbstractContextManager[None]]


class DiskFiles:
    """The content of disks and snapshots, by key, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, key: str) -> Path:
        return self._folder / f"{key}.img"

    def write(self, key: str, size_gb: int, source: str, stopped: Pause = nullcontext) -> None:
        """See `HostBackend.write_disk`. `stopped`: while nobody writes to the source."""
        path = self.path(key)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if source and not path.exists() and not _copy(self.path(source), path):
            with stopped():
                _copy_settled(self.path(source), path)
        with path.open("ab") as file:
            file.truncate(size_gb * GIB)

    def drop(self, key: str) -> None:
        set_immutable(self.path(key), False)
        self.path(key).unlink(missing_ok=True)

    def seal(self, key: str) -> None:
        """Nothing that is written from now on reaches the content; reads go on."""
        set_immutable(self.path(key), True)

    def release(self, key: str, loop: Path, timeout_s: float) -> None:
        """What was sealed can be written by its next user, once the device is gone that it had. Where somebody
        keeps that, he keeps the old content, and what he writes is lost."""
        path = self.path(key)
        deadline = time.monotonic() + timeout_s
        while (bound := is_bound(loop, path)) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if bound:
            fresh = path.with_suffix(".new")
            _copy_settled(path, fresh)
            set_immutable(path, False)
            fresh.replace(path)
        set_immutable(path, False)


def _copy(source: Path, target: Path) -> bool:
    """Makes a sparse copy of one moment; False, and no copy, where the source was changed meanwhile."""
    began = source.stat().st_mtime_ns
    if time.time_ns() - began < TICK_NS:
        return False
    part = target.with_suffix(".part")
    subprocess.run(["cp", "--sparse=always", source, part], check=True, env={"PATH": SYSTEM_PATH})
    if source.stat().st_mtime_ns != began:
        part.unlink()
        return False
    part.replace(target)
    return True


def _copy_settled(source: Path, target: Path) -> None:
    """As soon as nothing changes. TpuctlError where that does not come to be."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while not _copy(source, target):
        if time.monotonic() > deadline:
            raise TpuctlError(f"the disk was written to for {SETTLE_TIMEOUT_S:.0f} s without a pause")
        time.sleep(POLL_S)


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

    def set(self, root: Path, others: Iterable[Path], disks: Sequence[HostDisk]) -> None:
        """Plugs in what is missing and pulls out what is not in `disks`; `root` is the host's `/`, `others`
        those of its other mount namespaces."""
        for disk in [each for each in self._loops if each not in disks]:
            self._pull(root, others, disk)
        new = [disk for disk in disks if disk not in self._loops]
        taken = set(self._places.values())
        free = [disk.number for disk in new if disk.number not in taken]
        free += [number for number in range(1, len(taken) + len(new) + 1) if number not in {*taken, *free}]
        for disk, place in zip(new, sorted(free[: len(new)]), strict=True):
            self._plug(root, disk, place)

    def _plug(self, root: Path, disk: HostDisk, place: int) -> None:
        loop = attach_loop(self._files.path(disk.key), read_only=disk.read_only)
        self._loops[disk] = loop
        self._places[disk] = place
        name = device_name(place, nvme=disk.nvme)
        node = root / "dev" / name
        node.unlink(missing_ok=True)
        os.mknod(node, stat.S_IFBLK | 0o660, loop.stat().st_rdev)
        if disk.marked:
            by_id = root / BY_ID
            by_id.mkdir(parents=True, exist_ok=True)
            link = by_id / disk.link
            link.unlink(missing_ok=True)
            link.symlink_to(f"../../{name}")

    def _pull(self, root: Path, others: Iterable[Path], disk: HostDisk) -> None:
        """As a cable is pulled: who still uses it gets errors."""
        loop = self._loops.pop(disk)
        mounted = self._stop_writing({disk: loop}, (root, *others))
        (root / "dev" / device_name(self._places.pop(disk), nvme=disk.nvme)).unlink(missing_ok=True)
        (root / BY_ID / disk.link).unlink(missing_ok=True)
        clear_loop(loop)
        if not disk.read_only:
            self._files.release(disk.key, loop, 0.0 if mounted else PULL_TIMEOUT_S)

    def cut(self, roots: Iterable[Path]) -> None:
        """The power fails: nothing more reaches the disks, and who waits for a frozen file system is let go.
        `roots`: `/` of each mount namespace of the host."""
        self._stop_writing(self._loops, roots)

    def _stop_writing(self, loops: Mapping[HostDisk, Path], roots: Iterable[Path]) -> bool:
        """Whether one of them was mounted."""
        for disk, loop in loops.items():
            if not disk.read_only:
                stop_discards(loop)
                self._files.seal(disk.key)
        found = [
            (point, loop.stat().st_rdev)
            for root in roots
            for loop in loops.values()
            for point in _mounted(root, loop.stat().st_rdev)
        ]
        for point, device in found:
            _stop_writing(point, device)
        return bool(found)

    def forget(self) -> None:
        """After the host's processes are dead; what is plugged in next are other devices."""
        for loop in self._loops.values():
            clear_loop(loop)
        for disk, loop in self._loops.items():
            if not disk.read_only:
                self._files.release(disk.key, loop, RELEASE_TIMEOUT_S)
        self._loops.clear()
        self._places.clear()

    def writes(self, key: str) -> bool:
        """Whether the host has this disk and may write to it."""
        return any(disk.key == key and not disk.read_only for disk in self._loops)

    def grow(self, key: str) -> None:
        """The disk is larger; the host sees it."""
        for disk, loop in self._loops.items():
            if disk.key == key:
                grow_loop(loop)

    def thaw(self, root: Path) -> None:
        """Lets go what the host has frozen: nothing else would, once it is unmounted."""
        for loop in self._loops.values():
            device = loop.stat().st_rdev
            for point in _mounted(root, device):
                with suppress(OSError):  # it was not frozen
                    _ioctl(point, _FITHAW, 0, device)

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


def _stop_writing(point: Path, device: int) -> None:
    """The file system does no I/O any more, not even for its journal, and is not frozen either."""
    for request, argument in ((_SHUTDOWN, struct.pack("I", _WITHOUT_FLUSH)), (_FITHAW, 0)):
        try:
            _ioctl(point, request, argument, device)
        except OSError:
            continue  # of a kind that knows no shutdown; or it was not frozen


def _ioctl(path: Path, request: int, argument: int | bytes, device: int | None = None) -> None:
    """`device`: only if the file is on it, as something else may be mounted over it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if device in (None, os.fstat(descriptor).st_dev):
            fcntl.ioctl(descriptor, request, argument)
    finally:
        os.close(descriptor)
