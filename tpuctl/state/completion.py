"""Names in the local store, for completion: read beside whoever writes, never made or brought up to date."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

from tpuctl.lib.codec import parse_json

TIMEOUT_S = 0.2
"""A person waits for the shell: a store that is busy for longer has no names now."""


def recorded_states(path: Path, kind: str) -> dict[str, str]:
    """Names and states of the documents below `kind` (`slices`, `runs`), newest name last; none if the store
    cannot be read."""
    if not path.exists():
        return {}
    query = "SELECT key, data FROM documents WHERE key >= ? AND key < ? ORDER BY key"
    try:
        found = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=TIMEOUT_S)
        try:
            rows = found.execute(query, (f"{kind}/", f"{kind}0")).fetchall()  # "0" comes behind "/"
        finally:
            found.close()
        return {key.partition("/")[2]: str(parse_json(data).get("state", "")) for key, data in rows}
    except (sqlite3.Error, ValueError, AttributeError):
        return {}
