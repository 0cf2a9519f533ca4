"""The files of a host in memory: what `cp` puts and takes there, with modes, times and symbolic links."""

from __future__ import annotations

import io
import posixpath
import tarfile
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """`kind`: "f", "l" (then `content` is the target) or "d"."""

    kind: str
    mode: int = 0o644
    content: bytes = b""
    mtime: int = 0


class InTheWayError(Exception):
    """Something of another kind lies where an entry belongs."""


class Files:
    """Absolute paths; folders above a file exist by themselves."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def find(self, path: str) -> Entry | None:
        return self._entries.get(posixpath.normpath(path))

    def read(self, path: str) -> bytes:
        """FileNotFoundError if there is no such file."""
        entry = self.find(path)
        if entry is None or entry.kind != "f":
            raise FileNotFoundError(path)
        return entry.content

    def is_folder(self, path: str) -> bool:
        path = posixpath.normpath(path)
        entry = self._entries.get(path)
        return entry.kind == "d" if entry is not None else bool(self.below(path))

    def below(self, path: str) -> list[str]:
        prefix = posixpath.normpath(path).rstrip("/") + "/"
        return sorted(each for each in self._entries if each.startswith(prefix))

    def put(self, path: str, entry: Entry) -> None:
        """Replaces what is there. InTheWayError where a folder would give way, or a file is used as one."""
        path = posixpath.normpath(path)
        if entry.kind != "d" and self.is_folder(path):
            raise InTheWayError(f"{path} is a directory")
        parent = posixpath.dirname(path)
        while parent != "/":
            found = self._entries.get(parent)
            if found is not None and found.kind != "d":
                what = "a symbolic link" if found.kind == "l" else "not a directory"
                raise InTheWayError(f"{parent} is {what}")
            parent = posixpath.dirname(parent)
        self._entries[path] = entry

    def pack(self, folder: str, name: str) -> bytes:
        """`tar -C folder -cf - name`. FileNotFoundError if it is not there."""
        top = posixpath.normpath(posixpath.join(folder, name))
        paths = [top] if top in self._entries else []
        paths += self.below(top)
        if not paths:
            raise FileNotFoundError(name)
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as archive:
            if top not in self._entries:
                self._add(archive, name, Entry("d", 0o755))
            for path in paths:
                inside = posixpath.relpath(path, top)
                self._add(archive, name if inside == "." else f"{name}/{inside}", self._entries[path])
        return out.getvalue()

    @staticmethod
    def _add(archive: tarfile.TarFile, name: str, entry: Entry) -> None:
        info = tarfile.TarInfo(name)
        info.mode, info.mtime = entry.mode, entry.mtime
        if entry.kind == "l":
            info.type, info.linkname = tarfile.SYMTYPE, entry.content.decode("utf-8", "surrogateescape")
            archive.addfile(info)
        elif entry.kind == "d":
            info.type = tarfile.DIRTYPE
            archive.addfile(info)
        else:
            info.size = len(entry.content)
            archive.addfile(info, io.BytesIO(entry.content))
