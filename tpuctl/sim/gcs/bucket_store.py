"""The database of Cloud Storage, with its transactions, and the buckets in it.

A content file is complete before the row that names it is committed, and old content is removed after that, so
that a crash leaves at most an unreferenced file.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tpuctl.sim.gcs import buckets as gcs_buckets
from tpuctl.sim.gcs.content import ContentFiles
from tpuctl.sim.gcs.roles import changed_policy, default_policy
from tpuctl.sim.gcs.versions import LIVE, NONCURRENT
from tpuctl.sim.gcs.wire import Data, GcsError, Preconditions

SCHEMA = """
CREATE TABLE IF NOT EXISTS buckets (name TEXT PRIMARY KEY, data TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS versions (
    bucket TEXT NOT NULL, name TEXT NOT NULL, generation INTEGER NOT NULL, state TEXT NOT NULL,
    expires REAL, data TEXT NOT NULL, content TEXT NOT NULL,
    PRIMARY KEY (bucket, name, generation)) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS live ON versions (bucket, name) WHERE state = 'live';
CREATE INDEX IF NOT EXISTS expiry ON versions (expires) WHERE state = 'deleted';
CREATE TABLE IF NOT EXISTS folders (
    bucket TEXT NOT NULL, name TEXT NOT NULL, data TEXT NOT NULL, PRIMARY KEY (bucket, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS managed_folders (
    bucket TEXT NOT NULL, name TEXT NOT NULL, data TEXT NOT NULL, PRIMARY KEY (bucket, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counter (last INTEGER NOT NULL);
INSERT INTO counter SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM counter);
"""
POLICY = "iamPolicy"
"""In the data of a bucket, and never shown with them."""
ANYTHING = Preconditions()


class BucketStore:
    """Thread-safe. Raises GcsError with the API's status for what a caller got wrong."""

    def __init__(self, root: Path, now: Callable[[], float]) -> None:
        self.now = now
        self.files = ContentFiles(root / "content")
        self._lock = threading.RLock()
        self._fresh: list[str] = []
        self._doomed: list[str] = []
        self._db = sqlite3.connect(root / "objects.sqlite", check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.executescript(SCHEMA)
        self.files.keep_only({row[0] for row in self._db.execute("SELECT content FROM versions")})

    @property
    def is_unused(self) -> bool:
        """At most one bucket, with nothing in it."""
        with self._lock:
            buckets, objects = (
                self._db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608 - two constants
                for table in ("buckets", "versions")
            )
        return bool(buckets <= 1 and objects == 0)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing; what is called inside joins. Content goes that has no row afterwards."""
        with self._lock:
            if self._db.in_transaction:
                yield self._db
                return
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                self._remove(self._fresh)
                raise
            else:
                self._db.execute("COMMIT")
                self._remove(self._doomed)
            finally:
                self._fresh, self._doomed = [], []

    def _remove(self, names: list[str]) -> None:
        for name in names:
            self.files.remove(name)

    # Buckets

    def get_bucket(self, name: str) -> Data:
        with self._lock:
            row = self._db.execute("SELECT data FROM buckets WHERE name=?", (name,)).fetchone()
        if row is None:
            raise GcsError(404, "The specified bucket does not exist.", code="NoSuchBucket")
        data: Data = json.loads(row[0])
        return data

    def list_buckets(self) -> list[Data]:
        with self._lock:
            rows = self._db.execute("SELECT data FROM buckets ORDER BY name").fetchall()
        return [json.loads(row[0]) for row in rows]

    def create_bucket(self, asked: Mapping[str, Any], project: str | None) -> Data:
        with self.transaction() as db:
            made = gcs_buckets.new_bucket(asked, project, self.now())
            try:
                db.execute("INSERT INTO buckets VALUES (?, ?)", (made["name"], json.dumps(made)))
            except sqlite3.IntegrityError:
                raise gcs_buckets.taken() from None
        return made

    def _change_bucket(
        self, name: str, change: Callable[[Data], Data], conditions: Preconditions = ANYTHING
    ) -> Data:
        with self.transaction() as db:
            old = self.get_bucket(name)
            conditions.check(old)
            data = change(old)
            db.execute("UPDATE buckets SET data=? WHERE name=?", (json.dumps(data), name))
        return data

    def update_bucket(self, name: str, patch: Mapping[str, Any], conditions: Preconditions) -> Data:
        return self._change_bucket(
            name, lambda old: gcs_buckets.changed_bucket(old, patch, self.now()), conditions
        )

    def find_policy(self, name: str) -> Data | None:
        """Who may do what with the bucket, where somebody has said so."""
        with self._lock:
            row = self._db.execute("SELECT data FROM buckets WHERE name=?", (name,)).fetchone()
        policy: Data | None = json.loads(row[0]).get(POLICY) if row else None
        return policy

    def set_policy(self, name: str, asked: Mapping[str, Any]) -> Data:
        """Does not change the bucket's metageneration."""

        def change(data: Data) -> Data:
            number = int(data.get(POLICY, {}).get("change", 1)) + 1
            policy = changed_policy(data.get(POLICY) or default_policy(data), asked, number)
            return {**data, POLICY: {**policy, "change": number}}

        policy: Data = self._change_bucket(name, change)[POLICY]
        return policy

    def lock_bucket(self, name: str, conditions: Preconditions) -> Data:
        """For good: its retention policy can only grow from now on."""
        return self._change_bucket(name, lambda old: gcs_buckets.locked_bucket(old, self.now()), conditions)

    def delete_bucket(self, name: str, conditions: Preconditions) -> None:
        """Soft-deleted versions go with it: soft-deleted buckets are not simulated."""
        with self.transaction() as db:
            conditions.check(self.get_bucket(name))
            for state in (LIVE, NONCURRENT):
                if db.execute(
                    "SELECT 1 FROM versions WHERE bucket=? AND state=? LIMIT 1", (name, state)
                ).fetchone():
                    more = " You must delete all versions in the bucket." if state == NONCURRENT else ""
                    raise GcsError(409, f"The bucket you tried to delete is not empty.{more}")
            rows = db.execute("SELECT content FROM versions WHERE bucket=?", (name,)).fetchall()
            self._doomed += [row[0] for row in rows]
            for table in ("versions", "folders", "managed_folders"):
                db.execute(f"DELETE FROM {table} WHERE bucket=?", (name,))  # noqa: S608 - constants
            db.execute("DELETE FROM buckets WHERE name=?", (name,))
