"""Content of objects: files that are complete (fsync, rename) before anything names them, and never change."""

from __future__ import annotations

import base64
import hashlib
import os
import uuid
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from mmap import ACCESS_READ, mmap
from pathlib import Path
from tempfile import TemporaryFile

import google_crc32c

PIECE = 1024**2
"""Bytes that are in memory at once."""
MAX_UNZIPPED = 8 * 1024**3


@dataclass(frozen=True)
class Content:
    """One file of content with what the API says of it. `md5` is empty for content that was put together, of
    `components` objects if it was composed."""

    file: str
    size: int
    md5: str
    crc32c: str
    components: int = 0

    def of_components(self, count: int) -> Content:
        return replace(self, md5="", components=count)


def pieces_of(content: memoryview) -> Iterator[bytes]:
    for start in range(0, len(content), PIECE):
        yield bytes(content[start : start + PIECE])


def unzipped(content: memoryview) -> memoryview:
    """What was compressed with gzip. Raises ValueError for what was not."""
    unzip = zlib.decompressobj(wbits=31)
    with TemporaryFile() as stream:
        for piece in pieces_of(content):
            rest = piece
            while rest and not unzip.eof:
                stream.write(unzip.decompress(rest, PIECE))
                rest = unzip.unconsumed_tail
                if stream.tell() > MAX_UNZIPPED:
                    raise ValueError("too large")
        if not unzip.eof:
            raise ValueError("it ends too early")
        stream.flush()
        return memoryview(mmap(stream.fileno(), 0, access=ACCESS_READ) if stream.tell() else b"")


class Digests:
    """Size, md5Hash and crc32c of what passes, as the API writes them: base64, big-endian."""

    def __init__(self) -> None:
        self.size = 0
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._crc = 0

    def update(self, piece: bytes) -> None:
        self.size += len(piece)
        self._md5.update(piece)
        self._crc = int(google_crc32c.extend(self._crc, piece))

    @property
    def md5(self) -> str:
        return base64.b64encode(self._md5.digest()).decode()

    @property
    def crc32c(self) -> str:
        return base64.b64encode(self._crc.to_bytes(4, "big")).decode()


class ContentFiles:
    """Files below `folder`, named by nobody but the rows of the store."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def save(self, pieces: Iterable[bytes]) -> Content:
        digests = Digests()
        partial = self._folder / f"{uuid.uuid4().hex}.part"
        with partial.open("wb") as stream:
            for piece in pieces:
                stream.write(piece)
                digests.update(piece)
            stream.flush()
            os.fsync(stream.fileno())
        file = partial.rename(partial.with_suffix(""))
        return Content(file.name, digests.size, digests.md5, digests.crc32c)

    def link(self, content: Content) -> Content:
        """The same content under a name of its own, so that either may be removed."""
        name = uuid.uuid4().hex
        os.link(self._folder / content.file, self._folder / name)
        return replace(content, file=name)

    def open(self, name: str) -> memoryview:
        """The content; it stays readable when the file is removed."""
        with (self._folder / name).open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            return memoryview(mmap(stream.fileno(), 0, access=ACCESS_READ) if size else b"")

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def keep_only(self, names: set[str]) -> None:
        """Removes what a crash left without an object."""
        for file in self._folder.iterdir():
            if file.name not in names:
                file.unlink()
