"""Buckets and versions of objects on disk: metadata in SQLite, content in files.

A content file is complete before the row that names it is committed, and old content is removed after that, so
that a crash leaves at most an unreferenced file.

A version is live, or noncurrent (a bucket with versioning keeps what was overwritten or deleted), or
soft-deleted (kept for the time that the bucket's policy says, to be restored).
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpuctl.sim.gcs import buckets as gcs_buckets
from tpuctl.sim.gcs import lifecycle as gcs_lifecycle
from tpuctl.sim.gcs.content import Content, ContentFiles
from tpuctl.sim.gcs.roles import changed_policy, default_policy
from tpuctl.sim.gcs.wire import Data, GcsError, ObjectName, Preconditions, etag, invalid, seconds_of, timestamp

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
FROM_OBJECTS = """
INSERT INTO versions SELECT bucket, name, CAST(json_extract(data, '$.generation') AS INTEGER), 'live', NULL,
    data, content FROM objects;
DROP TABLE objects;
"""
"""Buckets of a simulator that knew live objects only."""
LIVE, NONCURRENT, DELETED = "live", "noncurrent", "deleted"
PURGED_AT_ONCE = 100
LIFECYCLE_EVERY_S = 60.0
"""The real one looks about once a day."""
BATCH = 500
DELETE_VERSION = "DELETE FROM versions WHERE bucket=? AND name=? AND generation=?"
MAX_METADATA = 8192
WRITABLE = ("contentType", "contentEncoding", "contentLanguage", "contentDisposition", "cacheControl",
            "metadata", "customTime", "storageClass", "temporaryHold", "eventBasedHold")  # fmt: skip
POLICY = "iamPolicy"
"""In the data of a bucket, and never shown with them."""
ANYTHING = Preconditions()
HOLDS: Mapping[str, str] = {"temporaryHold": "Temporary", "eventBasedHold": "Event-Based"}
UNDONE: Mapping[str, str] = {
    "acl": "access control lists",
    "contexts": "contexts of objects",
    "kmsKeyName": "keys of Cloud KMS",
    "retention": "retention of single objects",
}


@dataclass(frozen=True)
class Version:
    """One row: what the API shows of a version, and the file with its content."""

    state: str
    data: Data
    content: str

    @property
    def where(self) -> ObjectName:
        return ObjectName(self.data["bucket"], self.data["name"])

    @property
    def stored(self) -> Content:
        data = self.data
        components = int(data.get("componentCount", 0))
        return Content(self.content, int(data["size"]), data.get("md5Hash", ""), data["crc32c"], components)


class ObjectStore:
    """Thread-safe. Raises GcsError with the API's status for what a caller got wrong."""

    def __init__(self, root: Path, now: Callable[[], float]) -> None:
        self.now = now
        self.files = ContentFiles(root / "content")
        self._lock = threading.RLock()
        self._fresh: list[str] = []
        self._doomed: list[str] = []
        self._looked = now()
        self._db = sqlite3.connect(root / "objects.sqlite", check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.executescript(SCHEMA)
        if self._db.execute("SELECT 1 FROM sqlite_master WHERE name='objects'").fetchone():
            self._db.executescript(f"BEGIN IMMEDIATE; {FROM_OBJECTS} COMMIT;")
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
            self._check_protection(bucket, old, archived=gcs_buckets.is_versioned(bucket))

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
            gcs_buckets.refuse_undone(fields, UNDONE)
            gcs_buckets.check_storage_class(fields.get("storageClass"))
            bucket = self.get_bucket(where.bucket)
            self._purge(db)
            old = self._live(where)
            conditions.check(old.data if old else None)
            if old:
                self._retire(bucket, old)
            data = self._new_object(where, fields, bucket, content)
            self._insert(Version(LIVE, data, content.file))
            if is_hierarchical(bucket):
                self.make_folders(where.bucket, above(where.name))
        return data

    def update(
        self, where: ObjectName, patch: Mapping[str, Any], conditions: Preconditions, *, whole: bool = False
    ) -> Data:
        """Changes metadata (merge patch, or with `whole` all of it): a new metageneration of the same
        generation."""
        check_metadata(patch)
        gcs_buckets.refuse_undone(patch, UNDONE)
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
            self._check_protection(bucket, version, archived=True)
            data = {**version.data, "timeDeleted": timestamp(self.now())}
            self._insert(Version(NONCURRENT, data, version.content))
        else:
            self._discard(bucket, version)

    def _discard(self, bucket: Data, version: Version) -> None:
        """Deletes a version for good, or softly."""
        self._check_protection(bucket, version, archived=False)
        now, span = self.now(), gcs_buckets.soft_delete_s(bucket)
        if span:
            times = {"softDeleteTime": timestamp(now), "hardDeleteTime": timestamp(now + span)}
            self._insert(Version(DELETED, {**version.data, **times}, version.content), now + span)
            return
        key = (version.where.bucket, version.where.name, int(version.data["generation"]))
        self._db.execute(DELETE_VERSION, key)
        self._doomed.append(version.content)

    def _check_protection(self, bucket: Data, version: Version | None, *, archived: bool) -> None:
        """403 for a version under a hold, or (unless it is only `archived`) under the retention policy."""
        if version is None:
            return
        shown = f"Object '{version.where.bucket}/{version.where.name}'"
        for hold, kind in HOLDS.items():
            if version.data.get(hold):
                raise GcsError(
                    403,
                    f"{shown} is under active {kind} hold and cannot be deleted, overwritten or archived "
                    "until hold is removed.",
                    reason="objectUnderActiveHold",
                )
        until = seconds_of(version.data["timeCreated"]) + gcs_buckets.retention_s(bucket)
        if until > self.now() and gcs_buckets.retention_s(bucket) and not archived:
            raise GcsError(
                403,
                f"{shown} is subject to bucket's retention policy or object retention and cannot be deleted or "
                f"overwritten until {timestamp(until)}",
                reason="retentionPolicyNotMet",
            )

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

    def _new_object(self, where: ObjectName, fields: Mapping[str, Any], bucket: Data, content: Content) -> Data:
        now = self.now()
        generation = self._next_generation()
        stamp = timestamp(now)
        chosen = {key: fields[key] for key in WRITABLE if fields.get(key) is not None}
        held = {"eventBasedHold": True} if bucket.get("defaultEventBasedHold") else {}
        return {
            "kind": "storage#object",
            "storageClass": bucket.get("storageClass", "STANDARD"),
            **held,
            **chosen,
            "id": f"{where.bucket}/{where.name}/{generation}",
            "name": where.name,
            "bucket": where.bucket,
            "generation": str(generation),
            "metageneration": "1",
            "etag": etag(generation, 1),
            "timeCreated": stamp,
            "updated": stamp,
            "timeStorageClassUpdated": stamp,
            "timeFinalized": stamp,
            "size": str(content.size),
            "crc32c": content.crc32c,
            **({"md5Hash": content.md5} if content.md5 else {}),
            **({"componentCount": content.components} if content.components else {}),
        }

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


def check_metadata(fields: Mapping[str, Any]) -> None:
    """https://cloud.google.com/storage/quotas#objects"""
    custom = fields.get("metadata") or {}
    size = sum(len(key.encode()) + len(str(value or "").encode()) for key, value in custom.items())
    if size > MAX_METADATA:
        raise invalid(f"The metadata of an object can have {MAX_METADATA} bytes at most, not {size}.")


def check_digests(fields: Mapping[str, Any], content: Content) -> None:
    """400 for a digest that is not the content's. Content without md5 has none to compare."""
    for key, name, actual in (
        ("md5Hash", "MD5 hash", content.md5),
        ("crc32c", "CRC32C", content.crc32c),
    ):
        if actual and fields.get(key) not in (None, actual):
            raise GcsError(400, f'Provided {name} "{fields[key]}" doesn\'t match calculated {name} "{actual}".')
