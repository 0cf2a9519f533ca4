"""Reads the folder that is packed: what is in it, and a shard of it as a stream."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable, Iterator

from tpuctl.datasets.plan import File, Shard, ending, header, in_order, padding
from tpuctl.errors import TpuctlError, UsageError

_READABLE_BY_ALL = 0o444
_ASKED = stat.S_IFMT(0xFFFF) | _READABLE_BY_ALL
_USUAL = stat.S_IFREG | _READABLE_BY_ALL
PIECE = 1 << 18
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
                name = entry.name
                if not name.isascii():
                    _check_name(entry)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(name)
                    continue
                found = entry.stat()
                if found.st_mode & _ASKED != _USUAL:
                    _check_file(entry, found.st_mode)
                sizes[name] = found.st_size
    except OSError as error:
        path = error.filename or f"{folder}/{prefix}"
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", hint=f"ls -ld {shlex.quote(path)}"
        ) from error
    for name in in_order(sizes):
        yield f"{prefix}{name}", sizes[name]
    for name in sorted(folders):
        yield from _below(folder, f"{prefix}{name}/")


def _check_file(entry: os.DirEntry[str], mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = "a link to a folder" if stat.S_ISDIR(mode) else "no regular file"
        raise UsageError(f"{entry.path} is {kind}", hint=f"take it away: rm {shlex.quote(entry.path)}")
    if not os.access(entry.path, os.R_OK):
        raise UsageError(f"{entry.path} cannot be read", hint=f"chmod u+r {shlex.quote(entry.path)}")


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
    root = os.fsencode(folder) + b"/"
    parts: list[bytes] = []
    used = whole = files = 0
    for name, size in shard.each():
        path = root + name
        head = header(name, size)
        parts.append(head)
        used += len(head)
        for content in (_content(path, size),) if size < PIECE else _contents(path, size):
            parts.append(content)
            used += len(content)
            if used >= PIECE:
                on_piece(used, files)
                yield b"".join(parts)
                whole += used
                used = files = 0
                parts.clear()
        fill = padding(size)
        parts.append(fill)
        used += len(fill)
        files += 1
    parts.append(ending(whole + used))
    on_piece(used + len(parts[-1]), files)
    yield b"".join(parts)


_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def _content(path: bytes, size: int) -> bytes:
    """Of a small file, in three calls to the system: there are millions of them."""
    try:
        handle = os.open(path, _FLAGS)
        try:
            # One byte more is asked for than there should be; less than that is the end of a file (read(2)).
            content = os.read(handle, size + 1)
        finally:
            os.close(handle)
    except OSError as error:
        raise _unreadable(path, error) from error
    # A file system may hand out less at once than it has.
    return content if len(content) == size else b"".join(_contents(path, size))


def _contents(path: bytes, size: int) -> Iterator[bytes]:
    left = size
    try:
        handle = os.open(path, _FLAGS)
        try:
            while piece := os.read(handle, min(left + 1, PIECE)):
                left -= len(piece)
                if left < 0:
                    break
                yield piece
        finally:
            os.close(handle)
    except OSError as error:
        raise _unreadable(path, error) from error
    if left:
        raise TpuctlError(
            f"{os.fsdecode(path)} changed while it was packed", hint="pack again when nothing writes there"
        )


def _unreadable(path: bytes, error: OSError) -> TpuctlError:
    shown = os.fsdecode(path)
    return TpuctlError(f"{shown} cannot be read: {error.strerror}", hint=f"ls -l {shlex.quote(shown)}")
