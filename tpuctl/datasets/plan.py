"""Which file goes into which shard, what a shard is byte by byte, and the manifest of a pack.

The layout is that of webdataset (https://github.com/webdataset/webdataset#the-webdataset-format): plain tar
files in which the files of one sample stand one after the other, their names being equal up to the first dot.
The same files make the same bytes: names in order, and nothing of owners or times.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from tpuctl.errors import UsageError
from tpuctl.lib.codec import from_data, parse_json
from tpuctl.lib.names import check_bucket_name
from tpuctl.lib.text import sized

FORMAT = "tpuctl-pack/1"
MANIFEST = "manifest.json"
MEGABYTE = 1_000_000
SHARD_MB = 150
"""Shards of 100 to 200 MB: large enough to be read at full speed, and enough of them for many readers."""
FULLEST = 4 / 3
"""A shard is full from its size on, and takes no sample that brings it beyond this times its size."""
_LONGEST_PLAIN_NAME = tarfile.LENGTH_NAME
_LARGEST_PLAIN_FILE = 8**11
"""Bytes; from here on a header of ustar has no place for the size (POSIX.1, pax, ustar Interchange Format)."""
_PLAIN = tarfile.TarInfo("").tobuf(tarfile.PAX_FORMAT)
_PLAIN_SUM = int(_PLAIN[148:154], 8) - 11 * ord("0")
_BEFORE_SIZE = [_PLAIN[length:124] for length in range(_LONGEST_PLAIN_NAME + 1)]
_BEFORE_SUM, _AFTER_SUM = _PLAIN[135:148], _PLAIN[154:]
_NAME = re.compile(rb"[^\0]+")
_matched = re.Match.group

File = tuple[str, int]
"""Name below the folder, with slashes, and size in bytes."""


class Shard(Struct, frozen=True):
    """What goes into one tar file; `size` is that of the tar file, in bytes. `listing`: the names of its files,
    each with a NUL behind it, because millions of strings take five times the memory."""

    index: int
    listing: bytes
    sizes: Sequence[int]
    samples: int
    size: int

    @property
    def name(self) -> str:
        return f"shard-{self.index:06d}.tar"

    @property
    def names(self) -> list[str]:
        return self.listing.decode().split("\0")[:-1]

    @property
    def files(self) -> int:
        return len(self.sizes)

    @property
    def content_bytes(self) -> int:
        return sum(self.sizes)

    def each(self) -> Iterator[tuple[bytes, int]]:
        """Name and size of one file after the other."""
        return zip(map(_matched, _NAME.finditer(self.listing)), self.sizes, strict=True)


class PackedShard(Struct, frozen=True):
    """A shard as the manifest has it; `crc32c` as Cloud Storage writes it, big-endian in base64."""

    name: str
    size: int
    files: int
    samples: int
    sha256: str
    crc32c: str


class Manifest(Struct, frozen=True):
    """What a pack is. Not `complete`: it is being made, and its shards are not known yet. `listing_sha256` is
    over names and sizes of all files, so that a pack is continued with the same folder only."""

    format: str
    complete: bool
    listing_sha256: str
    shard_mb: int
    files: int
    samples: int
    content_bytes: int
    shard_count: int
    shards: tuple[PackedShard, ...] = ()


class PackPlan(Struct, frozen=True):
    """All shards of a folder. `odd`: files without key or extension, which readers of webdataset pass over."""

    shards: Sequence[Shard]
    listing_sha256: str
    shard_mb: int
    odd: int

    def manifest(self, packed: Sequence[PackedShard] = ()) -> Manifest:
        """The manifest before there are shards, and with all of them."""
        return Manifest(
            format=FORMAT,
            complete=bool(packed),
            listing_sha256=self.listing_sha256,
            shard_mb=self.shard_mb,
            files=sum(each.files for each in self.shards),
            samples=sum(each.samples for each in self.shards),
            content_bytes=sum(each.content_bytes for each in self.shards),
            shard_count=len(self.shards),
            shards=tuple(packed),
        )


def sample_key(name: str) -> str:
    """What the files of one sample have in common: the name up to the first dot after the last slash."""
    folder, slash, base = name.rpartition("/")
    key = base.partition(".")[0]
    return f"{folder}{slash}{key}" if key else name


def in_order(names: Iterable[str]) -> list[str]:
    """The files of one folder so that those of a sample stand together."""
    # As by (sample_key(name), name), in half the time: a NUL is in no name and before all that may be.
    return sorted(names, key=lambda name: name if name[0] == "." else name.replace(".", "\0", 1))


def plan_pack(files: Iterable[File], shard_mb: int = SHARD_MB) -> PackPlan:
    """`files` come folder by folder, each in order. No sample is split; one that is larger than a shard has a
    shard for itself."""
    listing, odd = hashlib.sha256(), 0
    shards: list[Shard] = []
    filling = _Filling(shards, shard_mb * MEGABYTE)
    for name, size in files:
        folder, slash, base = name.rpartition("/")
        key, dot, _ = base.partition(".")
        odd += not (key and dot)
        raw = name.encode()
        listing.update(b"%d %b\0" % (size, raw))
        filling.add(folder + slash + key if key else name, raw, size)
    filling.close()
    return PackPlan(shards, listing.hexdigest(), shard_mb, odd)


class _Filling:
    """Puts files into `shards`, sample by sample; written for millions of them."""

    def __init__(self, shards: list[Shard], full: int) -> None:
        self._shards = shards
        self._full = full
        self._key: str | None = None
        self._names, self._sizes, self._space = bytearray(), array("Q"), 0
        self._begin()

    def _begin(self) -> None:
        self._shard_names, self._shard_sizes, self._samples, self._used = bytearray(), array("Q"), 0, 0

    def add(self, key: str, raw: bytes, size: int) -> None:
        if key != self._key:
            self._end_sample()
            self._key = key
        self._names += raw
        self._names.append(0)
        self._sizes.append(size)
        head = tarfile.BLOCKSIZE if _is_plain(raw, size) else len(header(raw, size))
        self._space += head + size + -size % tarfile.BLOCKSIZE

    def _end_sample(self) -> None:
        full = self._used >= self._full or self._used + self._space > self._full * FULLEST
        if self._samples and full:
            self._end_shard()
        if self._sizes:
            self._shard_names += self._names
            self._shard_sizes.extend(self._sizes)
            self._samples += 1
            self._used += self._space
            self._names.clear()
            del self._sizes[:]
            self._space = 0

    def _end_shard(self) -> None:
        size = self._used + len(ending(self._used))
        names, sizes = bytes(self._shard_names), self._shard_sizes
        self._shards.append(Shard(len(self._shards), names, sizes, self._samples, size))
        self._begin()

    def close(self) -> None:
        self._end_sample()
        if self._samples:
            self._end_shard()


def header(raw: bytes, size: int) -> bytes:
    """What stands before the content of a file: what tarfile makes, for usual names at a tenth of its time."""
    if not _is_plain(raw, size):
        info = tarfile.TarInfo(raw.decode())
        info.size = size
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
    octal = b"%011o" % size
    checksum = _PLAIN_SUM + sum(raw) + sum(octal)
    return b"%b%b%b%b%06o%b" % (raw, _BEFORE_SIZE[len(raw)], octal, _BEFORE_SUM, checksum, _AFTER_SUM)


def _is_plain(raw: bytes, size: int) -> bool:
    return len(raw) <= _LONGEST_PLAIN_NAME and size < _LARGEST_PLAIN_FILE and raw.isascii()


def padding(size: int) -> bytes:
    """What fills the last block of a file."""
    return bytes(-size % tarfile.BLOCKSIZE)


def ending(used: int) -> bytes:
    """What ends a tar file: two empty blocks, and more up to a whole record."""
    return bytes(2 * tarfile.BLOCKSIZE + -(used + 2 * tarfile.BLOCKSIZE) % tarfile.RECORDSIZE)


def parse_place(uri: str, *, whole_bucket: bool = False) -> str:
    """`uri` without a slash at its end. Raises UsageError for what is no `gs://BUCKET/PREFIX`."""
    bucket, _, prefix = uri.removeprefix("gs://").rstrip("/").partition("/")
    if not uri.startswith("gs://") or not bucket or not (prefix or whole_bucket):
        hint = f"write it as gs://BUCKET{'[/PREFIX]' if whole_bucket else '/PREFIX'}"
        raise UsageError(f"{uri!r} is no prefix in a bucket", hint=hint)
    check_bucket_name(bucket)
    return f"gs://{bucket}/{prefix}".rstrip("/")


def render_manifest(manifest: Manifest) -> bytes:
    """As JSON for people, too."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def parse_manifest(content: bytes) -> Manifest | None:
    """None for what is no manifest of a pack."""
    try:
        data: Any = parse_json(content)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            return None
        return from_data(Manifest, data)
    except ValueError:
        return None


def difference(expected: PackedShard, size: int, crc32c: str) -> str | None:
    """In what an object differs from its line in the manifest, by what the bucket says of it."""
    if size != expected.size:
        return f"it has {sized(size)} instead of {sized(expected.size)}"
    if crc32c != expected.crc32c:
        return f"its crc32c is {crc32c or 'unknown'} instead of {expected.crc32c}"
    return None


def describe(manifest: Manifest) -> Mapping[str, Any]:
    """A pack in one row."""
    return {
        "complete": manifest.complete,
        "shards": manifest.shard_count,
        "files": manifest.files,
        "samples": manifest.samples,
        "content_bytes": manifest.content_bytes,
        "listing_sha256": manifest.listing_sha256,
    }
