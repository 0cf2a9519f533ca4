"""Versions of objects: metadata in SQLite, content in files.

A version is live, or noncurrent (a bucket with versioning keeps what was overwritten or deleted), or
soft-deleted (kept for the time that the bucket's policy says, to be restored).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tpuctl.sim.gcs import buckets as gcs_buckets
from tpuctl.sim.gcs import lifecycle as gcs_lifecycle
from tpuctl.sim.gcs.bucket_store import BucketStore
from tpuctl.sim.gcs.content import Content
from tpuctl.sim.gcs.versions import (
    DELETED,
    HOLDS,
    LIVE,
    NONCURRENT,
    WRITABLE,
    Version,
    check_digests,
    check_metadata,
    check_protection,
    new_version,
)
from tpuctl.sim.gcs.wire import Data, GcsError, ObjectName, Preconditions, etag, seconds_of, timestamp

PURGED_AT_ONCE = 100
LIFECYCLE_EVERY_S = 60.0
"""The real one looks about once a day."""
BATCH = 500
DELETE_VERSION = "DELETE FROM versions WHERE bucket=? AND name=? AND generation=?"


class ObjectStore(BucketStore):
    """Thread-safe. Raises GcsError with the API's status for what a caller got wrong."""

    def __init__(self, root: Path, now: Callable[[], float]) -> None:
        super().__init__(root, now)
        self._looked = now()

    def follow_lifecycle(self) -> list[tuple[Data, float]]:
        """Does what the rules of buckets say, if the last look is a while ago: those buckets, and the time."""
        with self.transaction():
            now = self.now()
            if abs(now - self._looked) < LIFECYCLE_EVERY_S:
                return []
            self._looked = now
            ruled = [bucket for bucket in self.list_buckets() if gcs_lifecycle.rules_of(bucket)]
            for bucket in ruled:
                self._apply_rules(bucket, now)
        return [(bucket, now) for bucket in ruled]

    def _apply_rules(self, bucket: Data, now: float) -> None:
        """Versions under a hold or a retention policy stay: deletion is tried again at the next look."""
        rows = self._db.execute(
            "SELECT state, data, content FROM versions WHERE bucket=? AND state != ? "
            "ORDER BY name, generation DESC",
            (bucket["name"], DELETED),
        ).fetchall()
        name, newer = "", 0
        for state, text, content in rows:
            version = Version(state, json.loads(text), content)
            newer = newer + 1 if version.where.name == name else 0
            name = version.where.name
            if any(gcs_lifecycle.actions_on(bucket, version.data, newer, now, gcs_lifecycle.DELETE)):
                with suppress(GcsError):
                    (self._retire if state == LIVE else self._discard)(bucket, version)
                continue
            classes = gcs_lifecycle.actions_on(bucket, version.data, newer, now, gcs_lifecycle.SET_CLASS)
            for action in classes:
                if action["storageClass"] != version.data["storageClass"]:
                    changed = {
                        "storageClass": action["storageClass"],
                        "timeStorageClassUpdated": timestamp(now),
                    }
                    self._insert(Version(state, {**version.data, **changed}, content))
                break

    # Reading

    def get(self, where: ObjectName, conditions: Preconditions, *, deleted: bool = False) -> Data:
        """Metadata of the version that `conditions` select; 404, 412 or 304. `deleted`: a soft-deleted one."""
        return self._get(where, conditions, reading=True, deleted=deleted).data

    def read(self, where: ObjectName, conditions: Preconditions) -> tuple[Data, memoryview]:
        with self._lock:
            found = self._get(where, conditions, reading=True)
            return found.data, self.files.open(found.content)

    def rows(
        self, bucket: str, states: tuple[str, ...], start: tuple[str, int]
    ) -> Iterator[tuple[str, int, str]]:
        """Name, generation and metadata (JSON) of the bucket's versions after `start`, in GCS's order: by
        UTF-8, then by generation."""
        self.get_bucket(bucket)
        # One object may have a million soft-deleted versions: the index of live ones serves a plain list.
        which = " OR ".join(f"state='{state}'" for state in states)
        query = (
            f"SELECT name, generation, data FROM versions WHERE bucket=? AND ({which}) "  # noqa: S608 - constants
            "AND (name, generation) > (?, ?) AND (expires IS NULL OR expires > ?) "
            "ORDER BY name, generation LIMIT ?"
        )
        while True:
            with self._lock:
                found = self._db.execute(query, (bucket, *start, self.now(), BATCH)).fetchall()
            yield from found
            if len(found) < BATCH:
                return
            start = (found[-1][0], found[-1][1])

    def check_write(self, where: ObjectName, conditions: Preconditions) -> None:
        """What `write` would refuse now, without writing."""
        with self._lock:
            bucket = self.get_bucket(where.bucket)
            old = self._live(where)
            conditions.check(old.data if old else None)
            check_protection(bucket, old, self.now(), archived=gcs_buckets.is_versioned(bucket))

    def folder_rows(self, bucket: str, start: str, table: str) -> Iterator[tuple[str, str]]:
        """Name and metadata (JSON) of the bucket's folders in that table, from `start` on, by UTF-8."""
        with self._lock:
            query = f"SELECT name, data FROM {table} WHERE bucket=? AND name>=? ORDER BY name"  # noqa: S608
            yield from self._db.execute(query, (bucket, start)).fetchall()

    # Writing

    def make_folders(self, bucket: str, names: Iterable[str], table: str = "folders") -> int:
        """Those that are not there yet, in that table; how many."""
        stamp, made = timestamp(self.now()), 0
        kind = "storage#folder" if table == "folders" else "storage#managedFolder"
        with self.transaction() as db:
            for name in names:
                data = {
                    **{"kind": kind, "id": f"{bucket}/{name}", "name": name, "bucket": bucket},
                    **{"metageneration": "1", "createTime": stamp, "updateTime": stamp},
                }
                query = f"INSERT OR IGNORE INTO {table} VALUES (?, ?, ?)"  # noqa: S608 - of two constants
                made += db.execute(query, (bucket, name, json.dumps(data))).rowcount
        return made

    def write(
        self, where: ObjectName, content: Content, fields: Mapping[str, Any], conditions: Preconditions
    ) -> Data:
        """A new generation of the object with `content`, which is the store's from now on; 412 when the
        conditions do not hold, 403 when what is there is protected, 400 for a wrong digest."""
        with self.transaction() as db:
            self._fresh.append(content.file)
            check_digests(fields, content)
            check_metadata(fields)
            gcs_buckets.refuse_undone(fields, "object")
            gcs_buckets.check_storage_class(fields.get("storageClass"))
            bucket = self.get_bucket(where.bucket)
            self._purge(db)
            old = self._live(where)
            conditions.check(old.data if old else None)
            if old:
                self._retire(bucket, old)
            made = new_version(where, fields, bucket, content, self._next_generation(), self.now())
            self._insert(made)
            if is_hierarchical(bucket):
                self.make_folders(where.bucket, above(where.name))
        return made.data

    def update(
        self, where: ObjectName, patch: Mapping[str, Any], conditions: Preconditions, *, whole: bool = False
    ) -> Data:
        """Changes metadata (merge patch, or with `whole` all of it): a new metageneration of the same
        generation."""
        check_metadata(patch)
        gcs_buckets.refuse_undone(patch, "object")
        gcs_buckets.check_storage_class(patch.get("storageClass"))
        wanted = {key: value for key, value in patch.items() if key in WRITABLE}
        if whole:
            wanted = {key: wanted.get(key) for key in WRITABLE if key != "storageClass"}
        with self.transaction():
            old = self._get(where, conditions)
            metageneration = int(old.data["metageneration"]) + 1
            data = {
                **gcs_buckets.merge(old.data, wanted),
                "metageneration": str(metageneration),
                "etag": etag(int(old.data["generation"]), metageneration),
                "updated": timestamp(self.now()),
            }
            self._insert(Version(old.state, data, old.content))
        return data

    def delete(self, where: ObjectName, conditions: Preconditions) -> None:
        """Without a generation the live version, which a bucket with versioning keeps as a noncurrent one."""
        with self.transaction() as db:
            bucket = self.get_bucket(where.bucket)
            self._purge(db)
            found = self._get(where, conditions)
            if conditions.generation is None:
                self._retire(bucket, found)
            else:
                self._discard(bucket, found)

    def copy(
        self,
        source: ObjectName,
        source_conditions: Preconditions,
        target: ObjectName,
        fields: Mapping[str, Any],
        conditions: Preconditions,
    ) -> Data:
        """The same content under another name, with the source's metadata unless `fields` has some."""
        with self.transaction():
            found = self._get(source, source_conditions, reading=True)
            return self._write_again(found, target, fields, conditions)

    def move(
        self,
        source: ObjectName,
        source_conditions: Preconditions,
        target: ObjectName,
        conditions: Preconditions,
    ) -> Data:
        """Renames in one step."""
        with self.transaction():
            found = self._get(source, source_conditions)
            if source == target:
                raise GcsError(400, "The source and the destination of a move are the same object.")
            moved = self._write_again(found, target, {}, conditions)
            self._retire(self.get_bucket(source.bucket), found)
        return moved

    def restore(self, where: ObjectName, generation: int, conditions: Preconditions) -> Data:
        """A new live object from a soft-deleted version, which stays until its time is over."""
        with self.transaction():
            found = self._get(where, Preconditions(generation=generation), deleted=True)
            return self._write_again(found, where, {}, conditions)

    def _write_again(
        self, found: Version, target: ObjectName, fields: Mapping[str, Any], conditions: Preconditions
    ) -> Data:
        content = self.files.link(found.stored)
        kept = {key: value for key, value in found.data.items() if key in WRITABLE and key not in HOLDS}
        return self.write(target, content, fields or kept, conditions)

    # Versions

    def _purge(self, db: sqlite3.Connection) -> None:
        """Some of the soft-deleted versions whose time is over."""
        rows = db.execute(
            "SELECT bucket, name, generation, content FROM versions "
            "WHERE state='deleted' AND expires<=? LIMIT ?",
            (self.now(), PURGED_AT_ONCE),
        ).fetchall()
        for *key, content in rows:
            db.execute(DELETE_VERSION, key)
            self._doomed.append(content)

    def _retire(self, bucket: Data, version: Version) -> None:
        """Overwrites or deletes the live version."""
        if gcs_buckets.is_versioned(bucket):
            check_protection(bucket, version, self.now(), archived=True)
            data = {**version.data, "timeDeleted": timestamp(self.now())}
            self._insert(Version(NONCURRENT, data, version.content))
        else:
            self._discard(bucket, version)

    def _discard(self, bucket: Data, version: Version) -> None:
        """Deletes a version for good, or softly."""
        check_protection(bucket, version, self.now(), archived=False)
        now, span = self.now(), gcs_buckets.soft_delete_s(bucket)
        if span:
            times = {"softDeleteTime": timestamp(now), "hardDeleteTime": timestamp(now + span)}
            self._insert(Version(DELETED, {**version.data, **times}, version.content), now + span)
            return
        key = (version.where.bucket, version.where.name, int(version.data["generation"]))
        self._db.execute(DELETE_VERSION, key)
        self._doomed.append(version.content)

    def _insert(self, version: Version, expires: float | None = None) -> None:
        data = version.data
        self._db.execute(
            "INSERT OR REPLACE INTO versions VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                *(data["bucket"], data["name"], int(data["generation"]), version.state, expires),
                *(json.dumps(data), version.content),
            ),
        )

    def _find(self, condition: str, *values: Any) -> Version | None:
        row = self._db.execute(
            f"SELECT state, data, content FROM versions WHERE bucket=? AND name=? AND {condition}",  # noqa: S608
            values,
        ).fetchone()
        return Version(row[0], json.loads(row[1]), row[2]) if row else None

    def _live(self, where: ObjectName) -> Version | None:
        return self._find("state='live'", where.bucket, where.name)

    def _get(
        self,
        where: ObjectName,
        conditions: Preconditions,
        *,
        reading: bool = False,
        deleted: bool = False,
    ) -> Version:
        with self._lock:
            self.get_bucket(where.bucket)
            if conditions.generation is None:
                found = self._live(where)
            else:
                found = self._find("generation=?", where.bucket, where.name, conditions.generation)
        gone = found is not None and found.state == DELETED
        expired = gone and found is not None and seconds_of(found.data["hardDeleteTime"]) <= self.now()
        if found is None or gone != deleted or expired:
            tail = f"#{conditions.generation}" if conditions.generation is not None else ""
            raise GcsError(404, f"No such object: {where.bucket}/{where.name}{tail}")
        conditions.check(found.data, reading=reading)
        return found

    def _next_generation(self) -> int:
        """Microseconds, as GCS does, but unique and growing whatever the clock does."""
        last = int(self._db.execute("SELECT last FROM counter").fetchone()[0])
        generation = max(int(self.now() * 1_000_000), last + 1)
        self._db.execute("UPDATE counter SET last=?", (generation,))
        return generation


def is_hierarchical(bucket: Mapping[str, Any]) -> bool:
    return bool((bucket.get("hierarchicalNamespace") or {}).get("enabled"))


def above(name: str) -> list[str]:
    """The folders in which an object of that name is, from the top."""
    parts = name.split("/")[:-1]
    return ["/".join(parts[:count]) + "/" for count in range(1, len(parts) + 1)]
