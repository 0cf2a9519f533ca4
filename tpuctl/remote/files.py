"""Local files as trees of contents for copies to workers, and tar streams unpacked for copies from them.

What comes from a host is not trusted: an archive is checked as a whole before the first file is written, and no
file is written through a symbolic link.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from tpuctl.core.tree import Blob, Content, Entry, TreeFile, TreeFolder, TreeLink, render_tree
from tpuctl.errors import NotFoundError, TpuctlError

CHUNK = 1 << 18


def scan(paths: Sequence[Path]) -> Content:
    """The files and directories as one tree, each under its last name. NotFoundError if one lacks.

    Sockets, pipes and devices are left out: they have no content to copy.
    """
    entries: list[Entry] = []
    places: dict[str, Path] = {}
    for path in paths:
        top = top_name(path)
        for found in _walk(path):
            name = top if found == path else f"{top}/{found.relative_to(path).as_posix()}"
            entry = _entry(found, name)
            if isinstance(entry, TreeFile):
                places[entry.blob.sha256] = found
            if entry is not None:
                entries.append(entry)
    return Content(render_tree(entries), lambda sha256: _pieces(places[sha256]))


def top_name(path: Path) -> str:
    """The name that `path` gets on the hosts, also for `.` and `..`."""
    return path.name if path.name not in ("", "..") else path.resolve().name


def _walk(path: Path) -> Iterator[Path]:
    yield path
    if path.is_dir() and not path.is_symlink():
        for child in sorted(path.iterdir()):
            yield from _walk(child)


def _entry(path: Path, name: str) -> Entry | None:
    try:
        status = path.lstat()
        mode = status.st_mode & 0o777
        if path.is_symlink():
            return TreeLink(name, str(path.readlink()))
        if path.is_dir():
            return TreeFolder(name, mode)
        if not path.is_file():
            return None
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return TreeFile(name, mode, Blob(digest, status.st_size), int(status.st_mtime))
    except FileNotFoundError as error:
        raise NotFoundError(f"no such file: {path}") from error


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            yield data


class TarReceiver:
    """Unpacks what a worker sent into `directory`, its one top-level entry as `rename` if given.

    Implements `workflows.copy.Receiver`. Nothing is written before the stream is complete and checked.
    """

    def __init__(self, directory: Path, *, rename: str | None = None) -> None:
        self._directory = directory
        self._rename = rename
        self._spool = tempfile.TemporaryFile()  # noqa: SIM115 - closed by finish or discard

    def write(self, data: bytes) -> None:
        self._spool.write(data)

    def discard(self) -> None:
        self._spool.close()

    def finish(self) -> None:
        """See `Receiver.finish`."""
        self._spool.seek(0)
        try:
            with tarfile.open(fileobj=self._spool, mode="r:") as tar:
                members = [(member, self._place(member)) for member in tar]
                for member, path in members:
                    self._check(member, path)
                self._directory.mkdir(parents=True, exist_ok=True)
                self._extract(tar, members)
        except tarfile.TarError as error:
            raise TpuctlError(f"the host sent no usable archive: {error}") from error
        finally:
            self._spool.close()

    def _place(self, member: tarfile.TarInfo) -> PurePosixPath:
        """Where a member goes, relative to the directory."""
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts:
            raise TpuctlError(f"refused: the host sent a file that leaves the target: {member.name!r}")
        if self._rename is None or not path.parts:
            return path
        return PurePosixPath(self._rename, *path.parts[1:])

    def _check(self, member: tarfile.TarInfo, path: PurePosixPath) -> None:
        if member.issym():
            end = os.path.normpath(path.parent / member.linkname)
            if PurePosixPath(member.linkname).is_absolute() or end.split("/")[0] == "..":
                raise TpuctlError(
                    f"refused: the host sent a link out of the target: {member.name!r} to {member.linkname!r}"
                )
        elif not (member.isfile() or member.isdir() or member.islnk()):
            raise TpuctlError(f"refused: the host sent a device or a pipe: {member.name!r}")

    def _extract(self, tar: tarfile.TarFile, members: list[tuple[tarfile.TarInfo, PurePosixPath]]) -> None:
        root = self._directory.resolve()
        folders: list[tuple[Path, tarfile.TarInfo]] = []
        links: list[Path] = []
        for member, relative in members:
            path = root / relative
            _refuse_links(root, relative if member.isdir() else relative.parent)
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
                folders.append((path, member))
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            _clear(path)
            if member.issym():
                path.symlink_to(member.linkname)
                links.append(path)
            else:
                self._write_file(tar, member, path)
        _remove_escaping(links, root)
        for path, member in reversed(folders):
            if path != root:
                path.chmod(member.mode & 0o777)

    def _write_file(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
        try:
            source = tar.extractfile(member)  # follows a hard link to the member that has the content
        except KeyError as error:
            raise TpuctlError(
                f"refused: {member.name!r} is a hard link to a file outside: {member.linkname!r}"
            ) from error
        if source is None:
            raise TpuctlError(f"refused: the host sent a file without content: {member.name!r}")
        with source, path.open("xb") as target:
            shutil.copyfileobj(source, target, CHUNK)
        path.chmod(member.mode & 0o777)
        os.utime(path, (member.mtime, member.mtime))


def _remove_escaping(links: list[Path], root: Path) -> None:
    """A chain of links, each harmless by itself, can lead out; that shows only when all are there."""
    for link in links:
        if not Path(os.path.realpath(link)).is_relative_to(root):
            link.unlink()
            raise TpuctlError(f"refused: the host sent a link that leaves the target: {link}")


def _clear(path: Path) -> None:
    """Makes way for a file; a directory in its place is an error, not removed."""
    if path.is_dir() and not path.is_symlink():
        raise TpuctlError(f"{path} is a directory; the host sent a file of that name")
    path.unlink(missing_ok=True)


def _refuse_links(root: Path, relative: PurePosixPath) -> None:
    path = root
    for part in relative.parts:
        path = path / part
        if path.is_symlink():
            raise TpuctlError(f"refused: {path} is a symbolic link; files are not written through links")
