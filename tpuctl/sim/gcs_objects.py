"""Buckets and objects on disk: metadata in SQLite, content in files.

A content file is complete (fsync, rename) before the row that names it is committed, and old content is
removed after that, so that a crash leaves at most an unreferenced file.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import google_crc32c

from tpuctl.sim.gcs_wire import GcsError, ObjectName, Preconditions, timestamp

SCHEMA = """
CREATE TABLE IF NOT EXISTS buckets (name TEXT PRIMARY KEY, data TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS objects (
    bucket TEXT NOT NULL, name TEXT NOT NULL, data TEXT NOT NULL, content TEXT NOT NULL,
    PRIMARY KEY (bucket, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counter (last INTEGER NOT NULL);
INSERT INTO counter SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM counter);
"""
WRITABLE = ("contentType", "contentEncoding", "contentLanguage", "contentDisposition", "cacheControl",
            "metadata", "customTime", "storageClass", "temporaryHold", "eventBasedHold")  # fmt: skip

Data = dict[str, Any]


def merge(old: Mapping[str, Any], patch: Mapping[str, Any]) -> Data:
    """JSON merge patch (RFC 7396), which GCS applies for PATCH."""
    merged = dict(old)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            below = merged.get(key)
            merged[key] = merge(below if isinstance(below, dict) else {}, value)
        else:
            merged[key] = value
    return merged


def digests(content: bytes) -> tuple[str, str]:
    """md5Hash and crc32c as the API writes them: base64, big-endian."""
    md5 = hashlib.md5(content, usedforsecurity=False).digest()
    crc = int(google_crc32c.value(content)).to_bytes(4, "big")
    return base64.b64encode(md5).decode(), base64.b64encode(crc).decode()


class ObjectStore:
    """Thread-safe. Raises GcsError with the API's status for what a caller got wrong."""

    def __init__(self, root: Path, now: Callable[[], float]) -> None:
        self._now = now
        self._content = root / "content"
        self._content.mkdir(parents=True, exist_ok=True)
        self._lock = threading.RLock()
        self._db = sqlite3.connect(root / "objects.sqlite", check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.executescript(SCHEMA)
        self._drop_orphans()

    def _drop_orphans(self) -> None:
        """Content that a crash left without an object."""
        named = {row[0] for row in self._db.execute("SELECT content FROM objects")}
        for file in self._content.iterdir():
            if file.name not in named:
                file.unlink()

    @property
    def is_unused(self) -> bool:
        """At most one bucket, with nothing in it."""
        with self._lock:
            buckets, objects = (
                self._db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608 - two constants
                for table in ("buckets", "objects")
            )
        return bool(buckets <= 1 and objects == 0)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    # Buckets

    def get_bucket(self, name: str) -> Data:
        with self._lock:
            row = self._db.execute("SELECT data FROM buckets WHERE name=?", (name,)).fetchone()
        if row is None:
            raise GcsError(404, "The specified bucket does not exist.")
        data: Data = json.loads(row[0])
        return data

    def list_buckets(self) -> list[Data]:
        with self._lock:
            rows = self._db.execute("SELECT data FROM buckets ORDER BY name").fetchall()
        return [json.loads(row[0]) for row in rows]

    def create_bucket(self, data: Data) -> Data:
        stamp = timestamp(self._now())
        location = str(data.get("location") or "US").upper()  # shown in capitals whatever was asked
        made = {
            "kind": "storage#bucket",
            "storageClass": "STANDARD",
            **data,
            "location": location,
            "locationType": "multi-region" if location in ("US", "EU", "ASIA") else "region",
            "id": data["name"],
            "metageneration": "1",
            "etag": "CAE=",
            "timeCreated": stamp,
            "updated": stamp,
        }
        with self._transaction() as db:
            try:
                db.execute("INSERT INTO buckets VALUES (?, ?)", (data["name"], json.dumps(made)))
            except sqlite3.IntegrityError:
                raise GcsError(
                    409, "Your previous request to create the named bucket succeeded and you already own it."
                ) from None
        return made

    def update_bucket(self, name: str, patch: Mapping[str, Any], conditions: Preconditions) -> Data:
        with self._transaction() as db:
            old = self.get_bucket(name)
            conditions.check(old)
            fixed = {key: old[key] for key in ("name", "id", "kind", "timeCreated", "location")}
            metageneration = int(old["metageneration"]) + 1
            data = {
                **merge(old, patch),
                **fixed,
                "metageneration": str(metageneration),
                "etag": _etag(metageneration),
                "updated": timestamp(self._now()),
            }
            db.execute("UPDATE buckets SET data=? WHERE name=?", (json.dumps(data), name))
        return data

    def delete_bucket(self, name: str, conditions: Preconditions) -> None:
        with self._transaction() as db:
            conditions.check(self.get_bucket(name))
            if db.execute("SELECT 1 FROM objects WHERE bucket=? LIMIT 1", (name,)).fetchone():
                raise GcsError(409, "The bucket you tried to delete is not empty.")
            db.execute("DELETE FROM buckets WHERE name=?", (name,))

    # Objects

    def write(
        self, where: ObjectName, content: bytes, fields: Mapping[str, Any], conditions: Preconditions
    ) -> Data:
        """A new generation of the object; 412 when the conditions do not hold, 400 for a wrong digest."""
        md5, crc = digests(content)
        for key, actual in (("md5Hash", md5), ("crc32c", crc)):
            if fields.get(key, actual) != actual:
                raise GcsError(400, f"Provided {key} {fields[key]} doesn't match calculated {actual}.")
        file = self._save(content)
        try:
            with self._transaction() as db:
                bucket = self.get_bucket(where.bucket)
                old = self._find(where)
                conditions.check(old[0] if old else None)
                self._check_retention(bucket, old[0] if old else None)
                data = self._new_object(where, fields, bucket)
                data |= {"size": str(len(content)), "md5Hash": md5, "crc32c": crc}
                db.execute(
                    "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?)",
                    (where.bucket, where.name, json.dumps(data), file.name),
                )
        except BaseException:
            file.unlink()
            raise
        if old:
            (self._content / old[1]).unlink(missing_ok=True)
        return data

    def get(self, where: ObjectName, conditions: Preconditions) -> Data:
        """The object's metadata; 404, 412 or 304."""
        return self._get(where, conditions, reading=True)[0]

    def read(self, where: ObjectName, conditions: Preconditions) -> tuple[Data, bytes]:
        with self._lock:
            data, content = self._get(where, conditions, reading=True)
            file = (self._content / content).open("rb")
        with file:
            return data, file.read()

    def update(self, where: ObjectName, patch: Mapping[str, Any], conditions: Preconditions) -> Data:
        """Changes metadata (merge patch): a new metageneration of the same generation."""
        wanted = {key: value for key, value in patch.items() if key in WRITABLE}
        with self._transaction() as db:
            old, content = self._get(where, conditions)
            metageneration = int(old["metageneration"]) + 1
            data = {
                **merge(old, wanted),
                "metageneration": str(metageneration),
                "etag": _etag(int(old["generation"]), metageneration),
                "updated": timestamp(self._now()),
            }
            db.execute(
                "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?)",
                (where.bucket, where.name, json.dumps(data), content),
            )
        return data

    def delete(self, where: ObjectName, conditions: Preconditions) -> None:
        with self._transaction() as db:
            old, content = self._get(where, conditions)
            self._check_retention(self.get_bucket(where.bucket), old)
            db.execute("DELETE FROM objects WHERE bucket=? AND name=?", (where.bucket, where.name))
        (self._content / content).unlink(missing_ok=True)

    def names(self, bucket: str, *, start: str = "") -> list[tuple[str, str]]:
        """Name and stored metadata (JSON) of the bucket's objects from `start` on, in GCS's order: by UTF-8."""
        self.get_bucket(bucket)
        query = "SELECT name, data FROM objects WHERE bucket=? AND name>=? ORDER BY name"
        with self._lock:
            return self._db.execute(query, (bucket, start)).fetchall()

    def check_write(self, where: ObjectName, conditions: Preconditions) -> None:
        """What `write` would refuse now, without writing."""
        with self._lock:
            self.get_bucket(where.bucket)
            old = self._find(where)
            conditions.check(old[0] if old else None)

    def _check_retention(self, bucket: Data, old: Data | None) -> None:
        """403 for an object that the bucket's retention policy still protects."""
        span = int((bucket.get("retentionPolicy") or {}).get("retentionPeriod", 0))
        if old is None or not span:
            return
        until = datetime.fromisoformat(old["timeCreated"]).timestamp() + span
        if until > self._now():
            raise GcsError(
                403,
                f"Object '{old['bucket']}/{old['name']}' is subject to bucket's retention policy or object "
                f"retention and cannot be deleted or overwritten until {timestamp(until)}",
            )

    def _find(self, where: ObjectName) -> tuple[Data, str] | None:
        row = self._db.execute(
            "SELECT data, content FROM objects WHERE bucket=? AND name=?", (where.bucket, where.name)
        ).fetchone()
        return (json.loads(row[0]), row[1]) if row else None

    def _get(self, where: ObjectName, conditions: Preconditions, *, reading: bool = False) -> tuple[Data, str]:
        with self._lock:
            self.get_bucket(where.bucket)
            found = self._find(where)
        wanted = conditions.generation
        if found is None or (wanted is not None and int(found[0]["generation"]) != wanted):
            raise GcsError(404, f"No such object: {where.bucket}/{where.name}")
        conditions.check(found[0], reading=reading)
        return found

    def _new_object(self, where: ObjectName, fields: Mapping[str, Any], bucket: Data) -> Data:
        now = self._now()
        generation = self._next_generation(now)
        stamp = timestamp(now)
        chosen = {key: fields[key] for key in WRITABLE if fields.get(key) is not None}
        return {
            "kind": "storage#object",
            "contentType": "application/octet-stream",
            "storageClass": bucket.get("storageClass", "STANDARD"),
            **chosen,
            "id": f"{where.bucket}/{where.name}/{generation}",
            "name": where.name,
            "bucket": where.bucket,
            "generation": str(generation),
            "metageneration": "1",
            "etag": _etag(generation, 1),
            "timeCreated": stamp,
            "updated": stamp,
            "timeStorageClassUpdated": stamp,
            "timeFinalized": stamp,
        }

    def _next_generation(self, now: float) -> int:
        """Microseconds, as GCS does, but unique and growing whatever the clock does."""
        last = int(self._db.execute("SELECT last FROM counter").fetchone()[0])
        generation = max(int(now * 1_000_000), last + 1)
        self._db.execute("UPDATE counter SET last=?", (generation,))
        return generation

    def _save(self, content: bytes) -> Path:
        file = self._content / uuid.uuid4().hex
        partial = file.with_suffix(".part")
        with partial.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        return partial.rename(file)


def _etag(*numbers: int) -> str:
    return base64.b64encode(b"".join(number.to_bytes(8, "big") for number in numbers)).decode()
