"""The schema of the SQLite store: numbered, append-only. Never edit one that was released; add the next.

`PRAGMA user_version` holds how many were applied.
"""

from __future__ import annotations

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
        "CREATE TABLE documents ("
        " key TEXT PRIMARY KEY,"
        " generation INTEGER NOT NULL,"
        " immutable INTEGER NOT NULL DEFAULT 0,"
        " data TEXT NOT NULL) WITHOUT ROWID",
        "INSERT INTO meta VALUES ('sequence', '0')",
    ),
)
