"""What takes the tar streams of `pull` in tests."""

from __future__ import annotations

import io
import tarfile


class Kept:
    """Takes a tar stream and keeps what is in it."""

    def __init__(self) -> None:
        self.data = b""
        self.names: dict[str, bytes | str] = {}

    def write(self, data: bytes) -> None:
        self.data += data

    def finish(self) -> None:
        with tarfile.open(fileobj=io.BytesIO(self.data)) as archive:
            for member in archive.getmembers():
                content = archive.extractfile(member) if member.isfile() else None
                self.names[member.name.removeprefix("./")] = content.read() if content else member.linkname

    def discard(self) -> None:
        self.names = {}
