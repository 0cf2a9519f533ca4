"""Loop devices are the machine's, also when a simulated host attached them: they outlive its namespaces."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BLOCK_DEVICES = Path("/sys/block")
# linux/loop.h
_LOOP_CLR_FD = 0x4C01
_LOOP_GET_STATUS64 = 0x4C05
_STATUS_SIZE = 232


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
    except OSError as error:
        if error.errno != errno.ENXIO:  # somebody was faster
            raise
