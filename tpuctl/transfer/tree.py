"""A directory tree as a short text: names, modes, and the sha256 of every content.

What travels to hosts is such a tree and those contents that they lack. The same tree gives the same bytes, so
its own sha256 names it. Names are any bytes that the file system takes, in Python's surrogateescape form.

Hosts list what they have by the same entries, with empty digests: nothing was read yet. Nothing of that is
trusted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from tpuctl.lib.codec import parse_json
from tpuctl.model.hosts import Blob as Blob

SCHEMA = 1
PLAIN_MODE = 0o644
MAX_NUMBER = (1 << 63) - 1
"""Sizes and times in ns are signed 64-bit numbers to every file system."""
MAX_NAME = 4096
"""PATH_MAX of Linux (limits.h)."""


class TreeFile(Struct, frozen=True):
    """`mtime_ns` only where it is to be kept; code has none, so that it compares."""

    path: str
    mode: int
    blob: Blob
    mtime_ns: int | None = None


class TreeLink(Struct, frozen=True):
    path: str
    target: str


class TreeFolder(Struct, frozen=True):
    path: str
    mode: int


Entry = TreeFile | TreeLink | TreeFolder
ReadBlob = Callable[[str], Iterable[bytes]]
"""The content with a given sha256, in pieces."""


class Content(Struct, frozen=True):
    """A tree and a way to read what is in it."""

    tree: bytes
    read: ReadBlob

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.tree).hexdigest()


def render_tree(entries: Iterable[Entry]) -> bytes:
    """The tree as JSON, in the order of the paths."""
    rows = [_row(entry) for entry in sorted(entries, key=lambda entry: entry.path)]
    return json.dumps({"schema": SCHEMA, "entries": rows}, separators=(",", ":")).encode()


def _row(entry: Entry) -> list[Any]:
    if isinstance(entry, TreeLink):
        return ["l", entry.path, entry.target]
    if isinstance(entry, TreeFolder):
        return ["d", entry.path, entry.mode]
    row = ["f", entry.path, entry.mode, entry.blob.sha256, entry.blob.size]
    return row if entry.mtime_ns is None else [*row, entry.mtime_ns]


def parse_tree(content: bytes) -> tuple[Entry, ...]:
    """ValueError for what `render_tree` did not make."""
    try:
        data = parse_json(content)
        return tuple(parse_entry(row) for row in data["entries"])
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"not a tree: {error}") from error


def parse_entry(row: Sequence[Any]) -> Entry:
    """ValueError and the like for a row that stands for nothing that a file system takes."""
    kind, path = str(row[0]), _parse_name(row[1])
    if kind == "l":
        return TreeLink(path, _parse_name(row[2]))
    mode = int(row[2]) & 0o777
    if kind == "d":
        return TreeFolder(path, mode)
    if kind != "f":
        raise ValueError(f"{path!r} is of kind {kind!r}")
    mtime_ns = parse_time(row[5]) if len(row) > 5 else None
    return TreeFile(path, mode, Blob(str(row[3]), parse_size(row[4])), mtime_ns)


def _parse_name(name: Any) -> str:
    """ValueError for what stands for no bytes, or that no system call takes."""
    if not isinstance(name, str):
        raise ValueError(f"{name!r} is no name")
    if "\0" in name:
        raise ValueError(f"{name!r} holds a NUL")
    if len(name.encode("utf-8", "surrogateescape")) > MAX_NAME:
        raise ValueError(f"{name[:80]!r}… is longer than any path")
    return name


def parse_size(value: Any) -> int:
    """Of a file. ValueError."""
    size = int(value)
    if not 0 <= size < MAX_NUMBER:
        raise ValueError(f"{size} is no size of a file")
    return size


def parse_time(value: Any) -> int:
    """A time of change that `utime` takes."""
    return max(-MAX_NUMBER, min(MAX_NUMBER, int(value)))


def list_blobs(entries: Iterable[Entry]) -> tuple[Blob, ...]:
    """Every content once, in order of first appearance: hosts number them in the same way."""
    return tuple(dict.fromkeys(entry.blob for entry in entries if isinstance(entry, TreeFile)))


def select_lacking(blobs: Sequence[Blob], bits: str) -> frozenset[Blob]:
    """The ones whose bit is set in `bits`, a hexadecimal number. ValueError if it is none."""
    number = int(bits or "0", 16)
    return frozenset(blob for index, blob in enumerate(blobs) if number >> index & 1)


def make_tree(files: Mapping[str, bytes | Blob], read: ReadBlob = lambda _: []) -> Content:
    """A tree of a few files: small ones held in memory, and blobs that `read` gets."""
    held = {hashlib.sha256(data).hexdigest(): data for data in files.values() if not isinstance(data, Blob)}

    def blob_of(data: bytes | Blob) -> Blob:
        return data if isinstance(data, Blob) else Blob(hashlib.sha256(data).hexdigest(), len(data))

    tree = render_tree(TreeFile(name, PLAIN_MODE, blob_of(data)) for name, data in files.items())
    return Content(tree, lambda sha256: [held[sha256]] if sha256 in held else read(sha256))
