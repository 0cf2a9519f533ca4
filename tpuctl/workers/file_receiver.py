"""Where what one worker sends comes to lie: each file appears whole and checked, never through a link.

What has arrived of a file is kept under a hidden name beside the target, so that the same copy goes on there.
Only the worker can tell whether that is still the beginning of its file: it is asked with the digest of it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from msgspec import Struct

from tpuctl.errors import ConflictError, TpuctlError
from tpuctl.lib.text import sized
from tpuctl.transfer.frames import CHANGED, Begin, End, Frame, GivenUp, Piece, Want
from tpuctl.transfer.tree import Entry, TreeFile, TreeFolder, TreeLink
from tpuctl.workers.file_list import UnreadFile

if TYPE_CHECKING:
    from hashlib import _Hash

CHUNK = 1 << 20
LOOK_EVERY = 64 << 20
"""After so many bytes the room is looked at again: others write there, too."""
KEPT_FREE = 16 << 20
"""What a copy leaves free on this machine's disk, for everything else that writes there."""
PARTS = ".tpuctl-part."


class Room(Struct, frozen=True):
    """How much is still to come to a place, and what is free in the file system that `path` shares with all
    places of the same `device`."""

    path: str
    device: int
    need: int
    free: int


def judge_room(rooms: Mapping[str, Room]) -> None:
    """TpuctlError where what comes from all workers, by label, does not fit."""
    for device in {room.device for room in rooms.values()}:
        here = {label: room for label, room in rooms.items() if room.device == device}
        need, free = sum(room.need for room in here.values()), min(room.free for room in here.values())
        if need and need + KEPT_FREE > free:
            most = max(here, key=lambda label: here[label].need)
            share = f", {sized(here[most].need)} of it from {most}" if len(here) > 1 else ""
            raise TpuctlError(
                f"no room in {here[most].path}: {sized(need)} are to come{share}, and {sized(free)} are free",
                hint="free some there, copy to another place, or from fewer workers with --worker",
            )


class _Arriving(Struct):
    """The file that comes just now."""

    want: Want
    begin: Begin
    check: _Hash
    file: BinaryIO | None
    """None while the file in its place is the right one."""
    count: int
    looked_at: int


def free_bytes(path: Path) -> int:
    """What this user may still write in the file system of a directory."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


class FileReceiver:
    """The target of one worker; every failure is a TpuctlError.

    `ours` false: the directory `place` is the user's own and keeps its mode. `free` tells the room there is.
    """

    def __init__(self, place: Path, *, ours: bool = True, free: Callable[[Path], int] = free_bytes) -> None:
        self._place = place
        self._ours = ours
        self._free = free
        self._parts = place.parent / f"{PARTS}{_short(place.name)}"
        self._lock: BinaryIO | None = None
        self._found: Sequence[Entry] = ()
        self._wanted: list[Want] = []
        self._checks: dict[str, _Hash] = {}
        self._missing: dict[str, GivenUp | None] = {}
        self._made: list[Path] = []
        self._arriving: _Arriving | None = None

    def plan(self, found: Sequence[Entry]) -> None:
        """Takes the list of what comes, and looks at what lies here, which may take long."""
        try:
            self._look(found)
        except OSError as error:  # such as a name that is too long for this file system
            raise _cannot_write(self._place, error) from error

    def _look(self, found: Sequence[Entry]) -> None:
        self._found = found
        self._refuse_links("")
        if self._place.is_dir() and not any(isinstance(e, TreeFolder) and not e.path for e in found):
            raise TpuctlError(f"{self._place} is a directory; the host sent a file")
        self._claim()
        self._missing = {entry.path: None for entry in found if isinstance(entry, TreeFile)}
        for entry in found:
            if isinstance(entry, TreeFile):
                self._wanted.append(self._want(entry))

    def room(self) -> Room:
        """What is still to come, and the room that there is for it."""
        have = sum(want.have for want in self._wanted)
        need = sum(entry.blob.size for entry in self._found if isinstance(entry, TreeFile)) - have
        try:
            return Room(str(self._place), self._parts.stat().st_dev, need, self._free(self._parts))
        except OSError as error:
            raise _cannot_write(self._place, error) from error

    def wants(self) -> tuple[Want, ...]:
        """The files to ask for now: those that are not here, unless asking again is of no use."""
        again = []
        for want in self._wanted:
            failed = self._missing.get(want.name)
            if want.name in self._missing and (failed is None or failed.code == CHANGED):
                part = self._part(want.name)
                again.append(want if failed is None else self._want_part(want.name, _size(part)))
        self._wanted = again
        return tuple(again)

    def take(self, frame: Frame) -> None:
        """The next frame of the answer to `wants`."""
        if isinstance(frame, Begin):
            self._begin(frame)
        elif isinstance(frame, Piece):
            self._add(frame.data)
        elif isinstance(frame, End):
            self._end(frame)
        elif isinstance(frame, GivenUp):
            self._drop()
            self._missing[self._want_of(frame.number).name] = frame

    def finish(self) -> tuple[UnreadFile, ...]:
        """All files were sent: adds directories, links and modes. Says which files could not be had."""
        self._make_folders_and_links()
        if self._lock is not None and not self._missing:
            shutil.rmtree(self._parts, ignore_errors=True)
        self._made.clear()
        self.close()
        return tuple(
            UnreadFile(name, "it was not sent" if gone is None else gone.message)
            for name, gone in self._missing.items()
        )

    def close(self) -> None:
        """Lets go; what has arrived of an unfinished file stays for the next time."""
        self._drop()
        if self._lock is not None:
            self._lock.close()
            self._lock = None
            if self._parts.is_dir() and [path.name for path in self._parts.iterdir()] == ["lock"]:
                shutil.rmtree(self._parts)
            for folder in self._made:
                with suppress(OSError):  # something came into it
                    folder.rmdir()

    # ------------------------------------------------------------ what lies here

    def _claim(self) -> None:
        """Two copies to one place at once would write into each other's files."""
        try:
            self._made = [path for path in self._parts.parents if not path.exists()]
            self._parts.mkdir(parents=True, exist_ok=True)
            if self._parts.is_symlink():
                raise TpuctlError(f"refused: {self._parts} is a symbolic link; remove it")
            self._lock = _open_here(self._parts / "lock", "wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(self._lock.fileno()), (self._parts / "lock").stat()):
                raise BlockingIOError  # the holder has just finished and removed it
        except BlockingIOError as error:
            raise ConflictError(
                f"another tpuctl copies to {self._place}", hint="wait for it, or copy to another directory"
            ) from error
        except OSError as error:
            raise _cannot_write(self._parts, error) from error

    def _want(self, entry: TreeFile) -> Want:
        """What has arrived of the file goes first: it is newer than what lies in its place.

        Nothing behind a link is looked at: the worker would learn its digest, and set its mode.
        """
        self._refuse_links(entry.path.rpartition("/")[0])
        count = _size(self._part(entry.path))
        if 0 < count <= entry.blob.size:
            return self._want_part(entry.path, count)
        path = self._path(entry.path)
        if path.is_symlink() or not path.is_file() or path.stat().st_size != entry.blob.size:
            return Want(entry.path)
        return Want(entry.path, entry.blob.size, self._hash(entry.path, path, entry.blob.size), whole=True)

    def _want_part(self, name: str, count: int) -> Want:
        if not count:
            return Want(name)
        return Want(name, count, self._hash(name, self._part(name), count))

    def _hash(self, name: str, path: Path, count: int) -> str:
        check = self._checks[name] = hashlib.sha256()
        try:
            with path.open("rb") as file:
                while data := file.read(min(CHUNK, count)):
                    check.update(data)
                    count -= len(data)
        except OSError as error:
            raise TpuctlError(f"cannot read {path}: {error.strerror}") from error
        return check.hexdigest()

    def _path(self, name: str) -> Path:
        return self._place / name if name else self._place

    def _part(self, name: str) -> Path:
        return self._parts / _short(name)

    # ------------------------------------------------------------ files as they come

    def _want_of(self, number: int) -> Want:
        if not 0 <= number < len(self._wanted):
            raise TpuctlError("refused: the host sent a file that nobody asked for")
        return self._wanted[number]

    def _begin(self, begin: Begin) -> None:
        want = self._want_of(begin.number)
        if self._arriving is not None or begin.start not in (0, want.have) or begin.size < begin.start:
            raise TpuctlError(f"refused: the host sent {want.name!r} out of order")
        kept = begin.start > 0
        check = self._checks[want.name].copy() if kept else hashlib.sha256()
        file = None
        if not (kept and want.whole):
            self._check_room(begin.size - begin.start)
            file = self._open_part(want.name, begin.start)
        self._arriving = _Arriving(want, begin, check, file, begin.start, begin.start)

    def _check_room(self, need: int) -> None:
        """The worker may send more than its list said, and others write here, too."""
        try:
            free = self._free(self._parts)
        except OSError as error:
            raise _cannot_write(self._place, error) from error
        if need + KEPT_FREE > free:
            raise TpuctlError(
                f"no room in {self._place}: {sized(need)} are to come, and {sized(free)} are free; free some "
                "there, and the same command again goes on"
            )

    def _open_part(self, name: str, start: int) -> BinaryIO:
        path = self._part(name)
        try:
            file = _open_here(path, "r+b" if start else "wb")
            file.truncate(start)
            file.seek(start)
        except OSError as error:
            raise _cannot_write(path, error) from error
        return file

    def _add(self, data: bytes) -> None:
        now = self._arriving
        if now is None or now.file is None or now.count + len(data) > now.begin.size:
            raise TpuctlError("refused: the host sent more than it announced")
        try:
            now.file.write(data)
        except OSError as error:
            raise _cannot_write(self._place, error) from error
        now.check.update(data)
        now.count += len(data)
        if now.count - now.looked_at >= LOOK_EVERY:
            now.looked_at = now.count
            self._check_room(0)

    def _end(self, end: End) -> None:
        now = self._arriving
        if now is None or now.begin.number != end.number:
            raise TpuctlError("refused: the host ended a file that it did not begin")
        self._drop()
        if now.count != now.begin.size or now.check.hexdigest() != end.sha256:
            self._part(now.want.name).unlink(missing_ok=True)
            raise TpuctlError(
                f"{now.want.name or self._place.name} arrived damaged; what came of it is removed"
            )
        path = self._path(now.want.name)
        try:
            source = path if now.file is None else self._part(now.want.name)
            source.chmod(now.begin.mode)
            os.utime(source, ns=(now.begin.mtime_ns, now.begin.mtime_ns))
            if now.file is not None:
                self._make_way(now.want.name)
                source.replace(path)
        except OSError as error:
            raise _cannot_write(path, error) from error
        self._missing.pop(now.want.name, None)

    def _drop(self) -> None:
        if self._arriving is not None and self._arriving.file is not None:
            self._arriving.file.close()
        self._arriving = None

    # ------------------------------------------------------------ places

    def _make_way(self, name: str) -> None:
        """The directories above, which are real ones; a directory in the place itself is not removed."""
        self._refuse_links(name.rpartition("/")[0])
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):  # a read-only directory of an earlier copy; `finish` sets modes
            path.parent.chmod(0o700)
        if path.is_dir() and not path.is_symlink():
            raise TpuctlError(f"{path} is a directory; the host sent a file of that name")

    def _refuse_links(self, name: str) -> None:
        parts = name.split("/") if name else []
        for count in range(len(parts) + 1):
            path = self._place.joinpath(*parts[:count])
            if path.is_symlink():
                raise TpuctlError(f"refused: {path} is a symbolic link; files are not written through links")

    def _make_folders_and_links(self) -> None:
        folders = [entry for entry in self._found if isinstance(entry, TreeFolder)]
        links = [entry for entry in self._found if isinstance(entry, TreeLink)]
        try:
            for folder in folders:
                self._refuse_links(folder.path)
                self._path(folder.path).mkdir(parents=True, exist_ok=True)
            for link in links:
                self._make_link(link)
            self._remove_escaping(links)
            for folder in reversed(folders):
                if folder.path or self._ours:
                    self._path(folder.path).chmod(folder.mode)
        except OSError as error:
            raise _cannot_write(self._place, error) from error

    def _make_link(self, link: TreeLink) -> None:
        path, part = self._path(link.path), self._part(link.path)
        if path.is_symlink() and str(path.readlink()) == link.target:
            return
        self._make_way(link.path)
        part.unlink(missing_ok=True)
        part.symlink_to(link.target)
        part.replace(path)

    def _remove_escaping(self, links: Sequence[TreeLink]) -> None:
        """A chain of links, each harmless by itself, can lead out; that shows only when all are there."""
        root = os.path.realpath(self._place)
        paths = [self._path(link.path) for link in links]
        out = [path for path in paths if not Path(os.path.realpath(path)).is_relative_to(root)]
        for path in out:
            path.unlink()
        if out:
            raise TpuctlError(f"refused: the host sent a link that leaves the target: {out[0]}")


def _short(name: str) -> str:
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:24]


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() and not path.is_symlink() else 0


def _open_here(path: Path, mode: str) -> BinaryIO:
    """As `open` for bytes; OSError where a link lies."""
    handle = os.open(path, (os.O_RDWR if "+" in mode else os.O_WRONLY | os.O_CREAT) | os.O_NOFOLLOW, 0o666)
    file = cast("BinaryIO", os.fdopen(handle, mode))
    if "w" in mode:
        file.truncate(0)
    return file


def _cannot_write(path: Path, error: OSError) -> TpuctlError:
    return TpuctlError(f"cannot write {path}: {error.strerror or error}")
