"""Folders of buckets with a hierarchical namespace: resources of their own, renamed with all below in one step.

https://cloud.google.com/storage/docs/folders-overview. Writing an object makes the folders above it. The words
of refusals are quoted nowhere.
"""

from __future__ import annotations

import json

from tpuctl.sim.gcs.objects import LIVE, ObjectStore, above, is_hierarchical
from tpuctl.sim.gcs.wire import Data, GcsError, Preconditions, invalid, not_implemented, timestamp


class Folders:
    """Thread-safe. Raises GcsError; its reason is `conditionNotMet` for what the API calls a failed
    precondition."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def check(self, bucket: str) -> None:
        """409 for a bucket with a flat namespace."""
        if not is_hierarchical(self._store.get_bucket(bucket)):
            raise _unmet("The bucket does not support hierarchical namespace.")

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

    def get(self, bucket: str, name: str, conditions: Preconditions | None = None) -> Data:
        self.check(bucket)
        with self._store.transaction() as db:
            row = db.execute(
                "SELECT data FROM folders WHERE bucket=? AND name=?", (bucket, folder_path(name))
            ).fetchone()
        if row is None:
            raise GcsError(404, f"The folder {name} does not exist.")
        data: Data = json.loads(row[0])
        (conditions or Preconditions()).check(data, reading=True)
        return data

    def delete(self, bucket: str, name: str, conditions: Preconditions | None = None) -> None:
        """An empty one."""
        with self._store.transaction() as db:
            path = self.get(bucket, name, conditions)["name"]
            below = (bucket, path, end_of(path))
            for table, state in (("versions", " AND state='live'"), ("folders", "")):
                query = f"SELECT 1 FROM {table} WHERE bucket=? AND name>? AND name<?{state} LIMIT 1"  # noqa: S608
                if db.execute(query, below).fetchone():
                    raise _unmet("The folder you tried to delete is not empty.")
            db.execute("DELETE FROM folders WHERE bucket=? AND name=?", (bucket, path))

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

    def page(
        self, bucket: str, prefix: str = "", delimiter: str = "", token: str = "", limit: int = 0
    ) -> tuple[list[Data], str]:
        """Folders below `prefix`, and the token of the next page."""
        self.check(bucket)
        if delimiter not in ("", "/"):
            raise invalid("The only supported delimiter is '/'.")
        limit = min(limit, 1000) if limit > 0 else 1000
        found: list[Data] = []
        for name, data in self._store.folder_rows(bucket, max(prefix, token)):
            if not name.startswith(prefix):
                break
            if name <= token or (delimiter and "/" in name.removeprefix(prefix)[:-1]):
                continue
            if len(found) == limit:
                return found, found[-1]["name"]
            found.append(json.loads(data))
        return found, ""


def folder_path(name: str) -> str:
    """Names of folders end with a slash. 400 for what is none."""
    path = name if name.endswith("/") else f"{name}/"
    if path.startswith("/") or "//" in path or len(path.encode()) > 512:
        raise invalid(f"Invalid folder name: '{name}'")
    return path


def end_of(path: str) -> str:
    """Behind all names that begin with `path`."""
    return path + chr(0x10FFFF)


def _unmet(message: str) -> GcsError:
    return GcsError(409, message, reason="conditionNotMet")
