"""The immutable attribute of files, as `chattr +i` sets it."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from pathlib import Path

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
