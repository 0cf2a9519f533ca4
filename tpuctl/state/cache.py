"""What was read of a bucket, by generation: an object that has not changed is not read again.

Losing or damaging this file costs reads, nothing else; several processes may use it at once.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tpuctl.lib.codec import parse_json_texts

KEPT_BYTES = 256 * 2**20
"""A store of years, at one or two kilobytes a document; beyond it what was not used for longest goes."""
DAY_S = 86400
BUSY_TIMEOUT_S = 2.0
VERSION = 2
"""Of the table below, in `PRAGMA user_version`. Another one is thrown away: it only costs reads."""
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS objects (uri TEXT PRIMARY KEY, generation INTEGER, used INTEGER, content TEXT)"
)
"""`used` is a day, so that looking something up writes at most once a day."""


class ObjectCache:
    """A SQLite file at `path`, made if needed, mode 0600. `clock` only tells what was used lately."""

    def __init__(
        self, path: Path, *, kept_bytes: int = KEPT_BYTES, clock: Callable[[], float] = time.time
    ) -> None:
        self._kept_bytes = kept_bytes
        self._clock = clock
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
        if db.execute("PRAGMA user_version").fetchone()[0] != VERSION:
            db.execute("DROP TABLE IF EXISTS objects")
            db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute(_SCHEMA)
        with suppress(sqlite3.OperationalError):  # in use: another process will find it too large as well
            self._trim(db)
        return db

    def _trim(self, db: sqlite3.Connection) -> None:
        """Half of it goes when it is too large, and the file shrinks: that happens once in a long time."""
        size, pages, free = (
            db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
        )
        if size * (pages - free) <= self._kept_bytes:
            return
        db.execute(
            "DELETE FROM objects WHERE uri IN (SELECT uri FROM objects ORDER BY used, rowid"
            " LIMIT (SELECT (count(*) + 1) / 2 FROM objects))"
        )
        db.execute("VACUUM")

    def find(self, wanted: Mapping[str, int]) -> dict[str, dict[str, str]]:
        """The contents of those objects that are known in exactly the wanted generation: the values of each by
        their names, as JSON. Of thousands few are looked into."""
        rows = self._run(
            "SELECT uri, generation, content, used FROM objects WHERE uri IN (SELECT value FROM json_each(?))",
            [json.dumps([*wanted])],
        )
        found: dict[str, dict[str, str]] = {}
        today, stale = self._today(), []
        for uri, generation, content, used in rows:
            if generation != wanted[uri]:
                continue
            try:
                found[uri] = parse_json_texts(content)
            except (ValueError, TypeError):
                continue  # damaged: it is read again
            if used != today:
                stale.append(uri)
        if stale:
            self._run(
                "UPDATE objects SET used = ? WHERE uri IN (SELECT value FROM json_each(?))",
                [today, json.dumps(stale)],
            )
        return found

    def _today(self) -> int:
        return int(self._clock() / DAY_S)

    def keep(self, uri: str, generation: int, content: Mapping[str, Any]) -> None:
        text = json.dumps(content, ensure_ascii=False)
        self._run("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?)", [uri, generation, self._today(), text])

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
