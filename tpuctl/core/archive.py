"""A deterministic .tar.gz of a few small files, so that the same content has the same digest."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping


def render_archive(files: Mapping[str, bytes]) -> bytes:
    """An archive of `files` (name → content), sorted, without times or owners."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(files):
            member = tarfile.TarInfo(name)
            member.size = len(files[name])
            member.mode = 0o644
            tar.addfile(member, io.BytesIO(files[name]))
    return gzip.compress(raw.getvalue(), mtime=0)
