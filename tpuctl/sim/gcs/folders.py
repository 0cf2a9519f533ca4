"""Folders of buckets with a hierarchical namespace, and managed folders: resources of their own beside objects.

https://cloud.google.com/storage/docs/folders-overview: folders are renamed with all below in one step, and
writing an object makes those above it. https://cloud.google.com/storage/docs/managed-folders: prefixes of any
bucket to which roles can be given; roles themselves are not simulated. The words of refusals are quoted
nowhere, nor that a managed folder in a bucket with a hierarchical namespace makes the folder of that name.
"""

from __future__ import annotations

import json
from typing import ClassVar

from tpuctl.sim.gcs.objects import ObjectStore, above, is_hierarchical
from tpuctl.sim.gcs.versions import LIVE
from tpuctl.sim.gcs.wire import Data, GcsError, Preconditions, invalid, not_implemented, timestamp

PAGE_MAX = 1000


class _Tree:
    """Thread-safe. Raises GcsError; its reason is `conditionNotMet` for what the API calls a failed
    precondition."""

    table: ClassVar[str]
    noun: ClassVar[str]
    not_empty: ClassVar[str] = ""
    """The reason why a folder that is not empty is not deleted."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def check(self, bucket: str) -> None:
        """404 for a bucket that is not there."""
        self._store.get_bucket(bucket)

    def get(self, bucket: str, name: str, conditions: Preconditions | None = None) -> Data:
        self.check(bucket)
        with self._store.transaction() as db:
            query = f"SELECT data FROM {self.table} WHERE bucket=? AND name=?"  # noqa: S608 - a constant
            row = db.execute(query, (bucket, folder_path(name))).fetchone()
        if row is None:
            raise GcsError(404, f"The {self.noun} {name} does not exist.")
        data: Data = json.loads(row[0])
        (conditions or Preconditions()).check(data, reading=True)
        return data

    def delete(
        self, bucket: str, name: str, conditions: Preconditions | None = None, *, allow_non_empty: bool = False
    ) -> None:
        """What is below it stays. 409 for one that is not empty, unless that is meant."""
        with self._store.transaction() as db:
            path = self.get(bucket, name, conditions)["name"]
            below = (bucket, path, end_of(path))
            for table, state in (("versions", " AND state='live'"), (self.table, "")):
                query = f"SELECT 1 FROM {table} WHERE bucket=? AND name>? AND name<?{state} LIMIT 1"  # noqa: S608
                if not allow_non_empty and db.execute(query, below).fetchone():
                    text = f"The {self.noun} you tried to delete is not empty."
                    raise GcsError(409, text, reason=self.not_empty)
            db.execute(f"DELETE FROM {self.table} WHERE bucket=? AND name=?", (bucket, path))  # noqa: S608

    def page(
        self, bucket: str, prefix: str = "", delimiter: str = "", token: str = "", limit: int = 0
    ) -> tuple[list[Data], str]:
        """Those below `prefix`, and the token of the next page."""
        self.check(bucket)
        if delimiter not in ("", "/"):
            raise invalid("The only supported delimiter is '/'.")
        limit = min(limit, PAGE_MAX) if limit > 0 else PAGE_MAX
        rows = self._store.folder_rows(bucket, max(prefix, token), self.table)
        found = [
            json.loads(data)
            for name, data in rows
            if name > token
            and name.startswith(prefix)
            and not (delimiter and "/" in name.removeprefix(prefix)[:-1])
        ]
        return found[:limit], found[limit - 1]["name"] if len(found) > limit else ""


class ManagedFolders(_Tree):
    """Those to which roles can be given."""

    table = "managed_folders"
    noun = "managed folder"

    def create(self, bucket: str, name: str, *, recursive: bool = False) -> Data:  # noqa: ARG002 - as of folders
        """400 for a bucket without uniform access, 409 for one that is there."""
        data, path = self._store.get_bucket(bucket), folder_path(name)
        if not data.get("iamConfiguration", {}).get("uniformBucketLevelAccess", {}).get("enabled"):
            raise invalid("Managed folders need uniform bucket-level access.")
        with self._store.transaction():
            if not self._store.make_folders(bucket, [path], self.table):
                raise GcsError(409, f"The managed folder {path} already exists.")
            if is_hierarchical(data):
                self._store.make_folders(bucket, [*above(path.removesuffix("/")), path])
        return self.get(bucket, path)


class Folders(_Tree):
    """Those of a hierarchical namespace."""

    table = "folders"
    noun = "folder"
    not_empty = "conditionNotMet"

    def check(self, bucket: str) -> None:
        """409 for a bucket with a flat namespace."""
        if not is_hierarchical(self._store.get_bucket(bucket)):
            text = "The bucket does not support hierarchical namespace."
            raise GcsError(409, text, reason="conditionNotMet")

    def create(self, bucket: str, name: str, *, recursive: bool = False) -> Data:
        self.check(bucket)
        path = folder_path(name)
        with self._store.transaction() as db:
            if db.execute("SELECT 1 FROM folders WHERE bucket=? AND name=?", (bucket, path)).fetchone():
                raise GcsError(409, f"The folder {path} already exists.")
            parents = above(path.removesuffix("/"))
            if parents and not recursive:
                self.get(bucket, parents[-1])
            self._store.make_folders(bucket, [*parents, path])
        return self.get(bucket, path)

    def rename(self, bucket: str, name: str, target: str, conditions: Preconditions | None = None) -> Data:
        """The folder with all below it. Objects keep their generations."""
        with self._store.transaction() as db:
            path, new = self.get(bucket, name, conditions)["name"], folder_path(target)
            if new.startswith(path):
                raise invalid("A folder cannot be moved into itself.")
            if db.execute("SELECT 1 FROM folders WHERE bucket=? AND name=?", (bucket, new)).fetchone():
                raise GcsError(409, f"The folder {new} already exists.")
            if parents := above(new.removesuffix("/")):
                self.get(bucket, parents[-1])
            below = (bucket, path, end_of(path))
            managed = "SELECT 1 FROM managed_folders WHERE bucket=? AND name>=? AND name<? LIMIT 1"
            if db.execute(managed, below).fetchone():
                raise not_implemented("renames of folders that are managed, or have managed ones below")
            for table, state in (("folders", ""), ("versions", f" AND state='{LIVE}'")):
                query = f"SELECT name, data FROM {table} WHERE bucket=? AND name>=? AND name<?{state}"  # noqa: S608
                for old, text in db.execute(query, below).fetchall():
                    data = json.loads(text)
                    moved = new + old.removeprefix(path)
                    data |= {"name": moved, "id": data["id"].replace(f"{bucket}/{path}", f"{bucket}/{new}", 1)}
                    db.execute(
                        f"UPDATE {table} SET name=?, data=? WHERE bucket=? AND name=?{state}",  # noqa: S608
                        (moved, json.dumps(data), bucket, old),
                    )
            return self._touch(bucket, new)

    def _touch(self, bucket: str, name: str) -> Data:
        data, now = self.get(bucket, name), self._store.now()
        data |= {"metageneration": str(int(data["metageneration"]) + 1), "updateTime": timestamp(now)}
        with self._store.transaction() as db:
            db.execute("UPDATE folders SET data=? WHERE bucket=? AND name=?", (json.dumps(data), bucket, name))
        return data


def folder_path(name: str) -> str:
    """Names of folders end with a slash. 400 for what is none."""
    path = name if name.endswith("/") else f"{name}/"
    if path.startswith("/") or "//" in path or len(path.encode()) > 512:
        raise invalid(f"Invalid folder name: '{name}'")
    return path


def end_of(path: str) -> str:
    """Behind all names that begin with `path`."""
    return path + chr(0x10FFFF)
