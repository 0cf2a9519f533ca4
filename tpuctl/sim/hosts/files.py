"""Where simulated hosts have files in memory, and removing files of theirs without ever following a mount into
somebody else's data."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import stat
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tpuctl.errors import TpuctlError

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MOUNTINFO = Path("/proc/self/mountinfo")
MEMORY = Path("/dev/shm")  # noqa: S108 - a file system in memory, not a place for temporary files


def wheel_cache(name: str) -> Path:
    """Where simulated hosts share downloaded wheels; it outlives the simulator, as a package cache should."""
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "tpuctl" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def tag_of(world_id: str) -> str:
    """What names of this world's links contain; with it they fit the kernel's 15 bytes."""
    return hashlib.sha256(world_id.encode()).hexdigest()[:8]


def memory_of(world_id: str) -> Path:
    """What files of a world are in memory."""
    return MEMORY / f"tpuctl-{tag_of(world_id)}"


def mounts_below(folder: Path) -> list[Path]:
    """Mount points in `folder`, deepest first; see proc(5) for the octal escapes."""
    found = []
    for line in MOUNTINFO.read_text().splitlines():
        raw = line.split()[4]
        point = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), raw))
        if point.is_relative_to(folder):
            found.append(point)
    return sorted(found, key=lambda point: len(point.parts), reverse=True)


def _unmount(point: Path) -> None:
    for command in (["umount", "-l"], ["fusermount3", "-uz"], ["fusermount", "-uz"]):
        program = shutil.which(command[0])
        if program and subprocess.run([program, *command[1:], point], capture_output=True).returncode == 0:
            return


# linux/fs.h
_GETFLAGS = 0x80086601
_SETFLAGS = 0x40086602
_IMMUTABLE = 0x10


def set_immutable(path: Path, wanted: bool) -> None:
    """Of a file or folder; nothing else has it. Where the file system knows no such thing, nothing changes."""
    try:
        if stat.S_IFMT(path.lstat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return  # it is gone
    try:
        (flags,) = struct.unpack("l", fcntl.ioctl(descriptor, _GETFLAGS, bytes(8)))
        changed = flags | _IMMUTABLE if wanted else flags & ~_IMMUTABLE
        if changed != flags:
            fcntl.ioctl(descriptor, _SETFLAGS, struct.pack("l", changed))
    except OSError:
        return  # of a kind that has no attributes
    finally:
        os.close(descriptor)


def _force(remove: Callable[..., Any], path: str, _info: Any) -> None:
    """Directories without write permission hinder removal, and what is immutable; anything else that is missing
    is fine."""
    parent = Path(path).parent
    try:
        for each in (parent, Path(path)):
            set_immutable(each, False)
        parent.chmod(0o700)
        if not Path(path).is_symlink():
            Path(path).chmod(0o700)
        if remove in (os.open, os.scandir, os.lstat):
            shutil.rmtree(path, ignore_errors=True)
        else:
            remove(path)
    except FileNotFoundError:
        return


def wipe(folder: Path) -> None:
    """Removes `folder` and everything in it. TpuctlError if something is mounted there and stays so."""
    if not folder.exists():
        return
    for point in mounts_below(folder):
        _unmount(point)
    left = mounts_below(folder)
    if left:
        raise TpuctlError(
            f"simulated host storage is still mounted on {left[0]}; it was not removed",
            hint=f"umount {left[0]} && rm -r {folder}",
        )
    shutil.rmtree(folder, onerror=_force)
