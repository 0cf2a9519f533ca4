"""Reads the folder that is packed: what is in it, and a shard of it as a stream."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable, Iterator

from tpuctl.datasets.plan import File, Shard, ending, header, in_order, padding
from tpuctl.errors import TpuctlError, UsageError

_READABLE_BY_ALL = 0o444
PIECE = 1 << 20
"""Bytes that are handed on at once; a shard is never in memory."""


def list_files(folder: str) -> Iterator[File]:
    """All files below `folder`: of each folder its files, then its folders. Raises UsageError for what cannot
    be packed."""
    try:
        mode = os.stat(folder).st_mode  # noqa: PTH116 - names of files are text here
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{folder}: {why}", hint="the folder whose files are to be packed") from error
    if not stat.S_ISDIR(mode):
        raise UsageError(f"{folder} is no folder", hint="the folder whose files are to be packed")
    yield from _below(folder, "")


def _below(folder: str, prefix: str) -> Iterator[File]:
    sizes: dict[str, int] = {}
    folders: list[str] = []
    try:
        with os.scandir(f"{folder}/{prefix}") as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                else:
                    sizes[entry.name] = _size(entry)
                _check_name(entry)
    except OSError as error:
        path = error.filename or f"{folder}/{prefix}"
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", hint=f"ls -ld {shlex.quote(path)}"
        ) from error
    for name in in_order(sizes):
        yield f"{prefix}{name}", sizes[name]
    for name in sorted(folders):
        yield from _below(folder, f"{prefix}{name}/")


def _size(entry: os.DirEntry[str]) -> int:
    found = entry.stat()
    if not stat.S_ISREG(found.st_mode):
        kind = "a link to a folder" if stat.S_ISDIR(found.st_mode) else "no regular file"
        raise UsageError(f"{entry.path} is {kind}", hint=f"take it away: rm {shlex.quote(entry.path)}")
    readable = found.st_mode & _READABLE_BY_ALL == _READABLE_BY_ALL
    if not readable and not os.access(entry.path, os.R_OK):
        raise UsageError(f"{entry.path} cannot be read", hint=f"chmod u+r {shlex.quote(entry.path)}")
    return found.st_size


def _check_name(entry: os.DirEntry[str]) -> None:
    try:
        entry.name.encode()
    except UnicodeEncodeError as error:
        shown = os.fsencode(entry.path).decode("utf-8", "backslashreplace")
        why = f"the name {shown} is not UTF-8, which a tar file asks for"
        raise UsageError(why, hint="rename it: mv") from error


def stream_shard(folder: str, shard: Shard, on_piece: Callable[[int, int], None]) -> Iterator[bytes]:
    """The tar file piece by piece; `on_piece` is told bytes and files of each. Raises TpuctlError where a file
    is not as it was when the folder was listed."""
    buffer, used, files = bytearray(), 0, 0
    for name, size in zip(shard.names, shard.sizes, strict=True):
        buffer += header(name, size)
        for content in _contents(f"{folder}/{name}", size):
            buffer += content
            if len(buffer) >= PIECE:
                on_piece(len(buffer), files)
                yield bytes(buffer)
                used, files = used + len(buffer), 0
                buffer.clear()
        buffer += padding(size)
        files += 1
    buffer += ending(used + len(buffer))
    on_piece(len(buffer), files)
    yield bytes(buffer)


def _contents(path: str, size: int) -> Iterator[bytes]:
    left = size
    try:
        # Cheaper than a file object, and one is opened for each of millions of files.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            # One byte more is asked for than there should be; less than that is the end of a file (read(2)).
            while piece := os.read(handle, asked := min(left + 1, PIECE)):
                left -= len(piece)
                if left < 0:
                    break
                yield piece
                if left == 0 and len(piece) < asked:
                    break
        finally:
            os.close(handle)
    except OSError as error:
        raise TpuctlError(
            f"{path} cannot be read: {error.strerror}", hint=f"ls -l {shlex.quote(path)}"
        ) from error
    if left:
        raise TpuctlError(f"{path} changed while it was packed", hint="pack again when nothing writes there")
