"""Keys of appended entries: the same shape in every store, so that they are known again after a move."""

from __future__ import annotations

import re

from tpuctl.errors import ConflictError

_ENTRY = re.compile(r"(?:^|/)\d{16}(?:-[0-9a-f]{8})?$")


def is_entry(key: str) -> bool:
    """Whether a key was made by `append`, of whichever store: such documents never change."""
    return _ENTRY.search(key) is not None


def check_entry(key: str) -> None:
    """Raises ConflictError for the key of a document, which goes only in a known generation."""
    if not is_entry(key):
        raise ConflictError(f"{key} in the store is no appended entry")
