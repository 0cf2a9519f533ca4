"""Content by its sha256, one file each: `blobs/aa/<sha256>`. The age of a file is the age of its content."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import nullcontext, suppress
from pathlib import Path

from tpuctl.engine.ports import StoredBlob
from tpuctl.errors import NotFoundError, TpuctlError
from tpuctl.lib.files import TEMPORARY, Guard, write_private

_DIGEST = re.compile(r"[0-9a-f]{64}")
TRIMMED_TO = 0.8
"""A cache that is too large is cut to this part of its limit, so that not every new content cuts it again."""


class BlobFiles:
    """Blobs below `root`. A blob appears whole or not at all, also after a crash.

    `guard` excludes other users of the directory for the moment in which a file gets or loses its name; a
    cache, which nobody relies on, needs none.
    """

    def __init__(self, root: Path, guard: Guard = nullcontext) -> None:
        self._root = root
        self._guard = guard

    def put(self, content: bytes) -> str:
        """Stores the content, or makes the file that holds it already young again."""
        digest = hashlib.sha256(content).hexdigest()
        path = self._path(digest)
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.renew(digest) or not _matches(path, digest):
            write_private(path, content, guard=self._guard)
        return digest

    def renew(self, digest: str) -> bool:
        """Makes a blob young again; False when there is none."""
        with self._guard():
            try:
                os.utime(self._path(digest))
            except FileNotFoundError:
                return False
        return True

    def get(self, digest: str) -> bytes:
        """NotFoundError if missing, TpuctlError if the content no longer matches."""
        path = self._path(digest)
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise NotFoundError(f"the store has no blob {digest}") from error
        if hashlib.sha256(content).hexdigest() != digest:
            raise TpuctlError(
                f"the blob {digest} was damaged on disk", hint=f"remove {path}; its run cannot restart from it"
            )
        return content

    def find(self, digest: str) -> bytes | None:
        """The content, or None where it is missing, damaged or unreadable: enough for a cache."""
        try:
            return self.get(digest)
        except (TpuctlError, OSError):
            return None

    def written_at(self, digest: str) -> float | None:
        """When the blob was last stored, by the file system's clock; None when there is none."""
        try:
            return self._path(digest).stat().st_mtime
        except FileNotFoundError:
            return None

    def list(self) -> list[StoredBlob]:
        """Every blob, by digest."""
        found = []
        for path in self._root.glob("??/*"):
            if _DIGEST.fullmatch(path.name):
                with suppress(FileNotFoundError):
                    status = path.stat()
                    found.append(StoredBlob(path.name, status.st_size, status.st_mtime_ns, status.st_mtime))
        return sorted(found, key=lambda blob: blob.sha256)

    def remove(self, blob: StoredBlob) -> bool:
        """Removes the blob unless it was stored again since it was listed; says whether it is gone."""
        path = self._path(blob.sha256)
        with self._guard():
            try:
                if path.stat().st_mtime_ns != blob.version:
                    return False
                path.unlink()
            except FileNotFoundError:
                return True
        return True

    def clear_leftovers(self, before: float) -> int:
        """Removes files that a crash left half-written before that time; how many there were."""
        stale = [path for path in self._root.glob(f"??/{TEMPORARY}*") if _mtime(path, before) < before]
        for path in stale:
            path.unlink(missing_ok=True)
        return len(stale)

    def trim(self, limit: int) -> None:
        """Cuts a cache of more than `limit` bytes: what was not used for longest goes first."""
        blobs = self.list()
        total = sum(blob.size for blob in blobs)
        if total <= limit:
            return
        for blob in sorted(blobs, key=lambda each: each.version):
            if total <= limit * TRIMMED_TO:
                return
            if self.remove(blob):
                total -= blob.size

    def _path(self, digest: str) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise NotFoundError(f"{digest!r} is not the sha256 of a blob")
        return self._root / digest[:2] / digest


def _matches(path: Path, digest: str) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == digest
    except FileNotFoundError:
        return False


def _mtime(path: Path, otherwise: float) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return otherwise
