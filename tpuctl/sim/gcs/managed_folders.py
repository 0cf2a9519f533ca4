"""Managed folders: prefixes of a bucket to which roles can be given; roles themselves are not simulated.

https://cloud.google.com/storage/docs/managed-folders. The words of refusals are quoted nowhere, nor that one in
a bucket with a hierarchical namespace makes the folder of that name.
"""

from __future__ import annotations

import json

from tpuctl.sim.gcs.folders import end_of, folder_path
from tpuctl.sim.gcs.objects import ObjectStore, above, is_hierarchical
from tpuctl.sim.gcs.wire import Data, GcsError, Preconditions, invalid, timestamp

PAGE_MAX = 1000


class ManagedFolders:
    """Thread-safe. Raises GcsError."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def create(self, bucket: str, name: str) -> Data:
        """400 for a bucket without uniform access, 409 for one that is there."""
        data, path = self._store.get_bucket(bucket), folder_path(name)
        access = data.get("iamConfiguration", {}).get("uniformBucketLevelAccess", {})
        if not access.get("enabled"):
            raise invalid("Managed folders need uniform bucket-level access.")
        stamp = timestamp(self._store.now())
        made = {
            **{"kind": "storage#managedFolder", "id": f"{bucket}/{path}", "name": path, "bucket": bucket},
            **{"metageneration": "1", "createTime": stamp, "updateTime": stamp},
        }
        with self._store.transaction() as db:
            query = "INSERT OR IGNORE INTO managed_folders VALUES (?, ?, ?)"
            if not db.execute(query, (bucket, path, json.dumps(made))).rowcount:
                raise GcsError(409, f"The managed folder {path} already exists.")
            if is_hierarchical(data):
                self._store.make_folders(bucket, [*above(path.removesuffix("/")), path])
        return made

    def get(self, bucket: str, name: str, conditions: Preconditions | None = None) -> Data:
        self._store.get_bucket(bucket)
        with self._store.transaction() as db:
            query = "SELECT data FROM managed_folders WHERE bucket=? AND name=?"
            row = db.execute(query, (bucket, folder_path(name))).fetchone()
        if row is None:
            raise GcsError(404, f"The managed folder {name} does not exist.")
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
            for table, state in (("versions", " AND state='live'"), ("managed_folders", "")):
                query = f"SELECT 1 FROM {table} WHERE bucket=? AND name>? AND name<?{state} LIMIT 1"  # noqa: S608
                if not allow_non_empty and db.execute(query, below).fetchone():
                    raise GcsError(409, "The managed folder you tried to delete is not empty.")
            db.execute("DELETE FROM managed_folders WHERE bucket=? AND name=?", (bucket, path))

    def page(self, bucket: str, prefix: str = "", token: str = "", limit: int = 0) -> tuple[list[Data], str]:
        """Those below `prefix`, and the token of the next page."""
        self._store.get_bucket(bucket)
        limit = min(limit, PAGE_MAX) if limit > 0 else PAGE_MAX
        rows = self._store.folder_rows(bucket, max(prefix, token), managed=True)
        found = [json.loads(data) for name, data in rows if name > token and name.startswith(prefix)]
        return found[:limit], found[limit - 1]["name"] if len(found) > limit else ""
