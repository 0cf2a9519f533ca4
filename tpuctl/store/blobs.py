"""Content by its sha256, one file each: `blobs/aa/<sha256>`."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path

from tpuctl.errors import NotFoundError, TpuctlError

_DIGEST = re.compile(r"[0-9a-f]{64}")


class BlobFiles:
    """Blobs below `root`. A blob appears whole or not at all, also after a crash."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        path = self._path(digest)
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists() or not _matches(path, digest):
            write_atomically(path, content)
        return digest

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

    def has(self, digest: str) -> bool:
        return self._path(digest).is_file()

    def digests(self) -> list[str]:
        """The sha256 of every blob, in order."""
        return sorted(path.name for path in self._root.glob("??/*") if _DIGEST.fullmatch(path.name))

    def _path(self, digest: str) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise NotFoundError(f"{digest!r} is not the sha256 of a blob")
        return self._root / digest[:2] / digest


def write_atomically(path: Path, content: bytes) -> None:
    """Temporary file, fsync, rename; mode 0600 in directories of mode 0700."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".tmp-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _matches(path: Path, digest: str) -> bool:
    return hashlib.sha256(path.read_bytes()).hexdigest() == digest
