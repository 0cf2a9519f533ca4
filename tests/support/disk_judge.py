"""Looks on a disk for what writers of `disk_writer` said that they wrote, and says what of it is lost.

Two classes: what was brought to the disk survives everything; every write that returned survives every orderly
story. The disk is looked at where it is mounted, or in the file that is behind a simulated one.
"""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.disk_writer import (
    KINDS,
    RECORD,
    RETURNED,
    SYNCED,
    content_of,
    digest_of,
    line_of,
    record_of,
)

WITHIN_S = 120.0


@dataclass
class Said:
    """What one writer said: the numbers of its items by class, and what it was refused."""

    items: dict[str, set[int]] = field(default_factory=lambda: {RETURNED: set(), SYNCED: set()})
    refused: list[str] = field(default_factory=list)
    begun: bool = False
    ended: bool = False

    def hear(self, number: int, word: str) -> None:
        if word in self.items:
            self.items[word].add(number)
        elif word in {"begun", "ended"}:
            setattr(self, word, True)
        else:
            self.refused.append(word)

    @property
    def synced(self) -> set[int]:
        return set(self.items[SYNCED])

    @property
    def returned(self) -> set[int]:
        """Whatever was brought to the disk had returned."""
        return self.items[RETURNED] | self.items[SYNCED]


class Listener:
    """Hears what writers say, whichever host they are on; it listens until `close`."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("", 0), backlog=64)
        self.port: int = self._socket.getsockname()[1]
        self._said: dict[str, Said] = {}
        self._heard = threading.Condition()
        threading.Thread(target=self._accept, name="disk-listener", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._listen, args=(connection,), daemon=True).start()

    def _listen(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("r") as lines:
                for line in lines:
                    if line.endswith("\n"):
                        self._hear(line)
        except OSError:
            return  # the host is gone, and what it had said was heard

    def _hear(self, line: str) -> None:
        tag, number, word = line.split()
        with self._heard:
            self._said.setdefault(tag, Said()).hear(int(number), word)
            self._heard.notify_all()

    def said(self, tag: str) -> Said:
        """A copy of what was heard until now."""
        with self._heard:
            found = self._said.get(tag, Said())
            items = {word: set(numbers) for word, numbers in found.items.items()}
            return Said(items, list(found.refused), found.begun, found.ended)

    def all_said(self) -> dict[str, Said]:
        with self._heard:
            tags = list(self._said)
        return {tag: self.said(tag) for tag in tags}

    def wait_for(self, tag: str, more: int = 1, *, end: bool = False, within_s: float = WITHIN_S) -> None:
        """Until `more` items than now were written, or the writer has come to its end."""
        until = time.monotonic() + within_s
        goal = len(self.said(tag).returned) + more
        with self._heard:
            while True:
                found = self._said.get(tag, Said())
                if found.ended or (not end and len(found.returned) >= goal):
                    return
                left = until - time.monotonic()
                assert left > 0, (
                    f"{tag} wrote {len(found.returned)} items in {within_s:.0f} s: {found.refused[-3:]}"
                )
                self._heard.wait(left)

    def close(self) -> None:
        # A thread that waits in accept(2) would go on to do so.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@dataclass(frozen=True)
class Lost:
    """The numbers of a writer's items that are not on the disk."""

    tag: str
    synced: tuple[int, ...]
    returned: tuple[int, ...]
    why: str = ""

    def __str__(self) -> str:
        shown = f"{self.tag}: {len(self.synced)} synced and {len(self.returned)} returned items are lost"
        first = ", ".join(str(each) for each in (self.synced or self.returned)[:5])
        return f"{shown} ({first} …) {self.why}".rstrip()


def judge(folder: Path, said: Mapping[str, Said], *, orderly: bool) -> list[Lost]:
    """What of `said` is not in `folder`; unless `orderly`, only what was brought to the disk counts."""
    found = []
    for tag, each in said.items():
        present, why = items_in(folder, tag, each.returned)
        returned = each.returned - present if orderly else set()
        synced = each.synced - present
        if returned or synced:
            found.append(Lost(tag, tuple(sorted(synced)), tuple(sorted(returned)), why))
    return found


def items_in(folder: Path, tag: str, wanted: set[int]) -> tuple[set[int], str]:
    """Those of `wanted` that are whole in `folder`, and why nothing could be read."""
    kind = tag.partition("-")[0]
    assert kind in KINDS, tag
    look = {"sqlite": _rows, "rename": _current, "files": _small_files, "mmap": _records}.get(kind, _lines)
    if not wanted:
        return set(), ""
    try:
        return look(folder, tag, wanted), ""
    except (OSError, sqlite3.Error) as error:
        return set(), f"{type(error).__name__}: {error}"


def _lines(folder: Path, tag: str, wanted: set[int]) -> set[int]:
    lines = set((folder / f"{tag}.lines").read_bytes().splitlines(keepends=True))
    return {number for number in wanted if line_of(tag, number) in lines}


def _rows(folder: Path, tag: str, wanted: set[int]) -> set[int]:
    """Of a copy: opening it writes, and the disk may be read-only."""
    with tempfile.TemporaryDirectory() as place:
        for each in folder.glob(f"{tag}.db*"):
            (Path(place) / each.name).write_bytes(each.read_bytes())
        with closing(sqlite3.connect(Path(place) / f"{tag}.db")) as database:
            [(health,)] = database.execute("pragma integrity_check(1)").fetchall()
            if health != "ok":
                raise sqlite3.DatabaseError(health)
            rows = dict(database.execute("select number, digest from items").fetchall())
    return {number for number in wanted if rows.get(number) == digest_of(tag, number)}


def _current(folder: Path, tag: str, wanted: set[int]) -> set[int]:
    """Who was replaced is not lost."""
    content = (folder / f"{tag}.current").read_bytes()
    number = int(content.split(b" ", 2)[1]) if content.count(b" ") > 1 else 0
    if content != line_of(tag, number) * 500:
        return set()
    return {each for each in wanted if each <= number}


def _small_files(folder: Path, tag: str, wanted: set[int]) -> set[int]:
    found = set()
    for number in wanted:
        file = folder / f"{tag}.files" / f"{number:05d}"
        if file.is_file() and file.read_bytes() == content_of(tag, number):
            found.add(number)
    return found


def _records(folder: Path, tag: str, wanted: set[int]) -> set[int]:
    content = (folder / f"{tag}.map").read_bytes()
    return {each for each in wanted if content[each * RECORD : (each + 1) * RECORD] == record_of(tag, each)}


def judge_image(image: Path, said: Mapping[str, Said], *, orderly: bool) -> list[Lost]:
    """The same of the file behind a simulated disk that no host has; takes root. It is looked at as a copy: the
    journal of a disk that was cut off is replayed."""
    with mounted_copy(image) as folder:
        return judge(folder, said, orderly=orderly)


@contextmanager
def mounted_copy(image: Path) -> Iterator[Path]:
    """A folder in which a copy of `image` is mounted."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-judge-", dir=image.parent) as place:
        copy, point = Path(place) / "copy.img", Path(place) / "disk"
        point.mkdir()
        subprocess.run(["cp", "--sparse=always", image, copy], check=True)
        shown = subprocess.run(
            ["blkid", "-p", "-s", "TYPE", "-o", "value", copy], capture_output=True, text=True
        )
        # The master of an XFS copy may be mounted, and both have one UUID.
        options = "loop,nouuid" if shown.stdout.strip() == "xfs" else "loop"
        done = subprocess.run(["mount", "-o", options, copy, point], capture_output=True, text=True)
        assert done.returncode == 0, f"{image.name} cannot be mounted: {done.stderr.strip()}"
        try:
            yield point
        finally:
            subprocess.run(["umount", point], check=True)


def as_json(said: Mapping[str, Said]) -> str:
    """What failed tests print."""
    rows: dict[str, Any] = {
        tag: {"synced": len(each.synced), "returned": len(each.returned), "refused": each.refused[-5:]}
        for tag, each in said.items()
    }
    return json.dumps(rows, indent=1)
