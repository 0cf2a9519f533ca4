"""What is collected until it is written: files in a folder of this machine, what is missing, and the room."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.collect.index import DATA_NAME, INDEX_NAME, Index, Item, Missing, render_data, render_index
from tpuctl.errors import FULL_DISK, TpuctlError
from tpuctl.model.secret_patterns import SecretPatterns
from tpuctl.provenance.bundle import open_bundle
from tpuctl.workers.file_receiver import free_bytes

KEPT_FREE = 64 << 20
"""On this machine's disk."""
HERE = 4
"""One part in so many of the room is for what this machine has."""
LINES_AT_ONCE = 8 << 20
HEAD_BYTES = 1024


class SizeLimits(Struct, frozen=True):
    """How much may come: of what this machine has, and of each host."""

    here_bytes: int
    host_bytes: int


def share_room(limit_bytes: int, free: int, hosts: int) -> SizeLimits:
    """Each file is on this disk twice until the end: where it came to, and in what is written."""
    room = min(limit_bytes, max(0, free - KEPT_FREE) // 2)
    return SizeLimits(room // HERE, (room - room // HERE) // max(1, hosts))


class Collection:
    """`folder` is its own. Nothing that fails ends it: that is missing then, and the index says why."""

    def __init__(
        self,
        folder: Path,
        patterns: SecretPatterns,
        limit_bytes: int,
        hosts: int,
        free: Callable[[Path], int] = free_bytes,
    ) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.room = share_room(limit_bytes, free(folder), hosts)
        self._patterns = patterns
        self._items: list[Item] = []
        self._missing: list[Missing] = []
        self._left: dict[str, dict[str, Any]] = {}

    def keep(
        self,
        path: str,
        content: bytes,
        what: str,
        opens: str,
        *,
        worker: int | None = None,
        attempt: int | None = None,
    ) -> None:
        """A file with this content, without what looks like a secret."""
        target = self.folder / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content if _is_binary(content) else self._redacted(content))
        except OSError as error:
            with suppress(OSError):
                target.unlink()
            self.lacks(what, f"it cannot be written here: {error.strerror}", worker=worker, attempt=attempt)
            return
        self._items.append(Item(path, what, opens, worker, attempt, size_bytes=target.stat().st_size))

    def expect(self, item: Item) -> Path:
        """The place of a folder that others fill; what is there at the end counts."""
        self._items.append(item)
        return self.folder / item.path

    def cut(self, path: str, files: int, size_bytes: int, why: str) -> None:
        """So much of the folder that was expected at `path` does not come."""
        self._left.setdefault(path, {}).update(cut_files=files, cut_bytes=size_bytes, cut_why=why)

    def leave_older(self, path: str, files: int) -> None:
        """So many files of the folder that was expected at `path` are too old to be of the run."""
        self._left.setdefault(path, {}).update(older_files=files)

    def has(self, path: str) -> bool:
        """Whether anything was there for the folder that was expected at `path`, also what was left there."""
        return path in self._left or any(files_below(self.folder / path))

    def lacks(self, what: str, why: str, *, worker: int | None = None, attempt: int | None = None) -> None:
        """Something that is not in it."""
        self._missing.append(Missing(what, why, worker, attempt))

    def _redact(self, item: Item, files: list[Path]) -> None:
        for file in files:
            try:
                self._redact_file(file)
            except OSError as error:
                file.unlink(missing_ok=True)
                why = f"{file.name} cannot be looked through here: {error.strerror}"
                self.lacks(item.what, why, worker=item.worker, attempt=item.attempt)

    def _redact_file(self, file: Path) -> None:
        """In pieces that end with a line; a file without any such thing stays as it is."""
        changed, found = file.with_name(f".{file.name[:100]}.redacted"), False
        try:
            with file.open("rb") as source, changed.open("wb") as target:
                if _is_binary(source.read(HEAD_BYTES)):
                    return
                source.seek(0)
                while data := source.read(LINES_AT_ONCE):
                    data += source.readline(LINES_AT_ONCE)
                    redacted = self._redacted(data)
                    found = found or redacted != data
                    target.write(redacted)
            if found:
                changed.replace(file)
        finally:
            changed.unlink(missing_ok=True)

    def _redacted(self, content: bytes) -> bytes:
        marks = [each.mark.encode("utf-8") for each in self._patterns.values]
        if not any(mark in content for mark in marks):
            return content
        return self._patterns.redact(content.decode("utf-8", "surrogateescape")).encode(
            "utf-8", "surrogateescape"
        )

    def finish(self, index: Index) -> Index:
        """The index with all that is here now, without what looks like a secret."""
        items = []
        for each in self._items:
            self._redact(each, list(files_below(self.folder / each.path)))
            files = list(files_below(self.folder / each.path))
            item = replace(each, files=len(files), **self._left.get(each.path, {}))
            if files or item.cut_files or item.older_files:
                items.append(replace(item, size_bytes=sum(file.stat().st_size for file in files)))
        return replace(index, items=tuple(items), missing=tuple(self._missing))

    def write(self, index: Index, path: Path, flag: str) -> Index:
        """Writes the file; what is in it. Where this machine's disk is full the largest is left out. Raises
        UsageError and TpuctlError."""
        while True:
            try:
                self._write(index, path, flag)
                return index
            except TpuctlError as error:
                cause = error.__cause__
                if not index.items or not isinstance(cause, OSError) or cause.errno not in FULL_DISK:
                    raise
                largest = max(index.items, key=lambda item: item.size_bytes)
                shutil.rmtree(self.folder / largest.path, ignore_errors=True)
                index = index.without({largest.path: "this machine's disk is full"})

    def _write(self, index: Index, path: Path, flag: str) -> None:
        with open_bundle(path, flag, private=True) as bundle:
            bundle.add(INDEX_NAME, self._redacted(render_index(index).encode("utf-8", "replace")))
            data = json.dumps(render_data(index), indent=1, default=str).encode()
            bundle.add(DATA_NAME, self._redacted(data))
            for item in index.items:
                for file in sorted(files_below(self.folder / item.path)):
                    bundle.add_file(file.relative_to(self.folder).as_posix(), file)


def _is_binary(content: bytes) -> bool:
    """What a file is, by its beginning."""
    return b"\0" in content[:HEAD_BYTES]


def files_below(path: Path) -> Iterator[Path]:
    """The regular files at or below a path."""
    if path.is_file() and not path.is_symlink():
        yield path
    elif path.is_dir():
        yield from (each for each in path.rglob("*") if each.is_file() and not each.is_symlink())
