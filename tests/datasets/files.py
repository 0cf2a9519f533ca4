"""What is in tar files, read by Python's tarfile."""

from __future__ import annotations

import io
import tarfile


def unpack(content: bytes) -> dict[str, bytes]:
    """Contents by names."""
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        found = {info.name: tar.extractfile(info) for info in tar}
        return {name: file.read() for name, file in found.items() if file is not None}
