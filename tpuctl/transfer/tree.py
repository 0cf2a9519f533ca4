"""A directory tree as a short text: names, modes, and the sha256 of every content.

What travels to hosts is such a tree and those contents that they lack. The same tree gives the same bytes, so
its own sha256 names it. Names are any bytes that the file system takes, in Python's surrogateescape form.
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


class TreeFile(Struct, frozen=True):
    """`mtime` (seconds since the epoch) only where it is to be kept; code has none, so that it compares."""

    path: str
    mode: int
    blob: Blob
    mtime: int | None = None


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
    return row if entry.mtime is None else [*row, entry.mtime]


def parse_tree(content: bytes) -> tuple[Entry, ...]:
    """ValueError for what `render_tree` did not make."""
    try:
        data = parse_json(content)
        return tuple(_entry(row) for row in data["entries"])
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"not a tree: {error}") from error


def _entry(row: Sequence[Any]) -> Entry:
    kind, path = str(row[0]), str(row[1])
    if kind == "l":
        return TreeLink(path, str(row[2]))
    if kind == "d":
        return TreeFolder(path, int(row[2]))
    if kind != "f":
        raise ValueError(f"not a tree: {path!r} is of kind {kind!r}")
    return TreeFile(path, int(row[2]), Blob(str(row[3]), int(row[4])), int(row[5]) if len(row) > 5 else None)


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
