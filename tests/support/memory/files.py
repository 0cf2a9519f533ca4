"""The files of a host in memory: what `cp` puts and takes there, with modes, times and symbolic links."""

from __future__ import annotations

import posixpath
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

    def survey(self, top: str) -> list[tuple[str, Entry]]:
        """What lies at a path, by its name below it. FileNotFoundError if there is nothing."""
        top = posixpath.normpath(top)
        paths = [*([top] if top in self._entries else []), *self.below(top)]
        if not paths:
            raise FileNotFoundError(top)
        found: dict[str, Entry] = {}
        for path in paths:
            name = "" if path == top else posixpath.relpath(path, top)
            parents = [""] + [name[:at] for at in range(len(name)) if name[at] == "/"]
            for parent in parents if name else ():
                found.setdefault(parent, Entry("d", 0o755))
            found[name] = self._entries[path]
        return list(found.items())
