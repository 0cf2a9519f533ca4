"""Loop devices are the machine's, also when a simulated host attached them: they outlive its namespaces."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tpuctl.errors import TpuctlError
from tpuctl.sim.hosts.files import SYSTEM_PATH

BLOCK_DEVICES = Path("/sys/block")
# linux/loop.h
_LOOP_CLR_FD = 0x4C01
_LOOP_GET_STATUS64 = 0x4C05
_STATUS_SIZE = 232


_LOOP_SET_CAPACITY = 0x4C07
_BLKROSET = 0x125D
_MAJOR = 7
NODES = 128
"""A free loop device is the machine's next one, and other simulators on it have many."""
ATTACH_TRIES = 20
RETRY_S = 0.05


def make_nodes(folder: Path) -> None:
    """Device files for hosts, to be copied."""
    folder.mkdir(mode=0o700)
    for number in range(NODES):
        os.mknod(folder / f"loop{number}", stat.S_IFBLK | 0o660, os.makedev(_MAJOR, number))


def attach_loop(file: Path, *, read_only: bool) -> Path:
    """A loop device for a file. TpuctlError if there is none to be had.

    Another simulator may take the one that was free a moment ago. A device keeps it from its last user that it
    is read-only, and then takes the next file as such, too, without a word.
    """
    words = ["losetup", "--find", "--show", *(["--read-only"] if read_only else []), str(file)]
    said = ""
    for _ in range(ATTACH_TRIES):
        done = subprocess.run(words, capture_output=True, text=True, env={"PATH": SYSTEM_PATH})
        said = done.stderr.strip() or "it cannot be written"
        device = Path(done.stdout.strip())
        if done.returncode == 0 and (read_only or _is_writable(device)):
            _set_discards(device, on=True)
            return device
        if done.returncode == 0:
            clear_loop(device)
        time.sleep(RETRY_S)
    raise TpuctlError(f"no loop device for a simulated disk: {said}")


def _is_writable(device: Path) -> bool:
    return (BLOCK_DEVICES / device.name / "ro").read_text().strip() == "0"


def stop_discards(device: Path) -> None:
    """No block is discarded any more. The driver punches holes into its file without a look at the flags of
    that: the kernel discards what a transaction freed also where that never reached the disk."""
    _set_discards(device, on=False)


def _set_discards(device: Path, *, on: bool) -> None:
    queue = BLOCK_DEVICES / device.name / "queue"
    most, grain = (int((queue / name).read_text()) for name in ("discard_max_hw_bytes", "discard_granularity"))
    with suppress(OSError):  # in a container /sys may be read-only
        (queue / "discard_max_bytes").write_text(str(most - most % grain if on and grain else 0))


def grow_loop(device: Path) -> None:
    """The file behind it is larger."""
    with _opened(device) as descriptor:
        fcntl.ioctl(descriptor, _LOOP_SET_CAPACITY, 0)


@contextmanager
def _opened(device: Path) -> Iterator[int]:
    descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def attached_loops() -> dict[Path, tuple[int, int]]:
    """Device → device number and inode of the file behind it."""
    found = {}
    for backing in BLOCK_DEVICES.glob("loop*/loop"):
        device = Path("/dev") / backing.parent.name
        status = bytearray(_STATUS_SIZE)
        try:
            with _opened(device) as descriptor:
                fcntl.ioctl(descriptor, _LOOP_GET_STATUS64, status)
        except OSError:
            continue  # detached meanwhile, or not for us
        number, inode = struct.unpack_from("QQ", status)
        found[device] = (number, inode)
    return found


def is_bound(device: Path, file: Path) -> bool:
    """Whether `file` is behind the loop device, which somebody else may have by now."""
    try:
        seen = file.stat()
    except FileNotFoundError:
        return False
    return attached_loops().get(device) == (seen.st_dev, seen.st_ino)


def detach_loops(folder: Path) -> None:
    """Frees the loop devices of files in `folder`; one that is still mounted goes with its last user.

    A path would say nothing: it is that of a mount namespace which may be gone. Files of an overlay show the
    inode of their upper layer, and a device number of the overlay's own, whose major is 0.
    """
    loops = attached_loops()
    if not loops or not folder.is_dir():
        return
    own = folder.stat().st_dev
    inodes = {entry.inode() for place, _, _ in os.walk(folder) for entry in os.scandir(place)}
    for device, (number, inode) in loops.items():
        if inode in inodes and (number == own or os.major(number) == 0):
            clear_loop(device)


def clear_loop(device: Path) -> None:
    """Frees a loop device, at once or when its last user is gone."""
    try:
        with _opened(device) as descriptor:
            fcntl.ioctl(descriptor, _LOOP_CLR_FD)
            fcntl.ioctl(descriptor, _BLKROSET, struct.pack("i", 0))
    except OSError as error:
        if error.errno != errno.ENXIO:  # somebody was faster
            raise
