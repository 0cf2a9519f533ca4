"""What was read of a bucket, by generation: an object that has not changed is not read again.

Losing or damaging this file costs reads, nothing else; several processes may use it at once.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

KEPT_OBJECTS = 100_000
"""More than a store of years holds; beyond it the oldest go."""
BUSY_TIMEOUT_S = 2.0
AT_ONCE = 400
"""Names in one query; SQLite allows 999 variables in old versions."""

_SCHEMA = "CREATE TABLE IF NOT EXISTS objects (uri TEXT PRIMARY KEY, generation INTEGER, content TEXT)"


class ObjectCache:
    """A SQLite file at `path`, made if needed, mode 0600."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        self._path = path
        self._mutex = threading.Lock()
        self._db: sqlite3.Connection | None = self._open()

    def _open(self) -> sqlite3.Connection | None:
        """None when the file cannot be used: everything is then read from the bucket."""
        try:
            return self._prepare()
        except sqlite3.DatabaseError:
            self._path.unlink(missing_ok=True)
        try:
            return self._prepare()
        except sqlite3.DatabaseError:
            return None

    def _prepare(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA synchronous = OFF")
        db.execute(_SCHEMA)
        db.execute("DELETE FROM objects WHERE rowid <= (SELECT max(rowid) FROM objects) - ?", (KEPT_OBJECTS,))
        return db

    def find(self, wanted: Mapping[str, int]) -> dict[str, dict[str, Any]]:
        """The contents of those objects that are known in exactly the wanted generation."""
        found: dict[str, dict[str, Any]] = {}
        uris = list(wanted)
        for start in range(0, len(uris), AT_ONCE):
            some = uris[start : start + AT_ONCE]
            marks = ",".join("?" * len(some))
            rows = self._run(f"SELECT uri, generation, content FROM objects WHERE uri IN ({marks})", some)  # noqa: S608 - only question marks
            found |= {
                uri: json.loads(content) for uri, generation, content in rows if wanted[uri] == generation
            }
        return found

    def keep(self, uri: str, generation: int, content: Mapping[str, Any]) -> None:
        text = json.dumps(content, ensure_ascii=False)
        self._run("INSERT OR REPLACE INTO objects VALUES (?, ?, ?)", [uri, generation, text])

    def forget(self, uri: str) -> None:
        self._run("DELETE FROM objects WHERE uri = ?", [uri])

    def close(self) -> None:
        with self._mutex:
            if self._db is not None:
                self._db.close()
                self._db = None

    def _run(self, statement: str, values: list[Any]) -> list[tuple[Any, ...]]:
        """Rows of a statement; none when the cache cannot be used just now."""
        with self._mutex:
            if self._db is None:
                return []
            try:
                return self._db.execute(statement, values).fetchall()
            except sqlite3.DatabaseError:
                return []
