"""The `Store` port in memory: documents, entries and blobs of one "server", shared by several clients.

What is written passes through JSON, as in every other store. Leases are judged by the server's clock.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tpuctl.engine.ports import Clock, Document, StoredBlob
from tpuctl.errors import ConflictError, NotFoundError
from tpuctl.model import timeouts
from tpuctl.state.documents import check_entry

R = TypeVar("R")
_STORES = itertools.count(1)


class MemoryServer:
    """What all clients of one store share. `entries_kept`: how many appended entries of one prefix stay."""

    def __init__(self, clock: Clock, *, entries_kept: int | None = None) -> None:
        self.clock = clock
        self.identity = f"m{next(_STORES):06d}"
        self.lock = threading.RLock()
        self.blobs: dict[str, tuple[bytes, StoredBlob]] = {}
        self.shared = False
        self.changes = 0
        """Grows with every write."""
        self._documents: dict[str, dict[str, Document]] = {}
        self._keys: dict[str, list[str]] = {}
        self._immutable: set[str] = set()
        self._entries_kept = entries_kept

    def find(self, key: str) -> Document | None:
        return self._documents.get(_group(key), {}).get(key)

    def list(self, prefix: str) -> list[Document]:
        groups = [_group(prefix)] if "/" in prefix else sorted(self._documents)
        found = [
            self._documents[group][key]
            for group in groups
            for key in _with_prefix(self._keys.get(group, []), prefix)
        ]
        return sorted(found, key=lambda document: document.key) if len(groups) > 1 else found

    def write(self, key: str, data: Mapping[str, Any], if_generation: int) -> Document:
        self._expect(key, if_generation)
        self.changes += 1
        document = Document(key, self.changes, json.loads(json.dumps(data)))
        group = _group(key)
        if key not in self._documents.setdefault(group, {}):
            bisect.insort(self._keys.setdefault(group, []), key)
        self._documents[group][key] = document
        return document

    def append(self, prefix: str, data: Mapping[str, Any]) -> str:
        key = f"{prefix.rstrip('/')}/{self.changes + 1:016d}"
        self.write(key, data, 0)
        self._immutable.add(key)
        self._forget_old(prefix.rstrip("/") + "/")
        return key

    def remove(self, key: str, if_generation: int) -> None:
        self._expect(key, if_generation)
        self.changes += 1
        self._drop(key)

    def remove_entry(self, key: str) -> None:
        self.changes += 1
        self._immutable.discard(key)
        self._drop(key)

    def _drop(self, key: str) -> None:
        group = _group(key)
        if self._documents.get(group, {}).pop(key, None) is not None:
            keys = self._keys[group]
            del keys[bisect.bisect_left(keys, key)]

    def _forget_old(self, prefix: str) -> None:
        if self._entries_kept is None:
            return
        keys = _with_prefix(self._keys[_group(prefix)], prefix)
        for key in keys[: max(0, len(keys) - self._entries_kept)]:
            self._drop(key)
            self._immutable.discard(key)

    def _expect(self, key: str, generation: int) -> None:
        found = self.find(key)
        if key in self._immutable:
            raise ConflictError(f"{key} in the store was appended and cannot change")
        if (found.generation if found else 0) != generation:
            raise ConflictError(f"{key} in the store was changed by another tpuctl")


class MemoryStore:
    """Implements `ports.Store`: one client of a `MemoryServer`."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    def close(self) -> None:
        """Nothing is held."""

    def get(self, key: str) -> Document | None:
        with self._server.lock:
            return self._server.find(key)

    def put(self, key: str, data: Mapping[str, Any], *, if_generation: int) -> Document:
        with self._server.lock:
            return self._server.write(key, data, if_generation)

    def delete(self, key: str, *, if_generation: int) -> None:
        with self._server.lock:
            self._server.remove(key, if_generation)

    def list(self, prefix: str) -> list[Document]:
        with self._server.lock:
            return self._server.list(prefix)

    def remove_entries(self, keys: Sequence[str]) -> None:
        with self._server.lock:
            for key in keys:
                check_entry(key)
                found = self._server.find(key)
                if found is not None:
                    self._server.remove_entry(key)

    def read_all(self, prefix: str, read: Callable[[Document], R]) -> Sequence[R]:
        return [*map(read, self.list(prefix))]

    def list_keys(self) -> list[str]:
        return [document.key for document in self.list("")]

    def append(self, prefix: str, data: Mapping[str, Any]) -> str:
        with self._server.lock:
            return self._server.append(prefix, data)

    def put_blob(self, content: bytes) -> str:
        sha256 = hashlib.sha256(content).hexdigest()
        with self._server.lock:
            self._server.changes += 1
            entry = StoredBlob(sha256, len(content), self._server.changes, self.now())
            self._server.blobs[sha256] = (content, entry)
        return sha256

    def get_blob(self, sha256: str) -> bytes:
        if sha256 not in self._server.blobs:
            raise NotFoundError(f"the store has no blob {sha256}")
        return self._server.blobs[sha256][0]

    def put_blobs(self, contents: Iterable[bytes]) -> list[str]:
        return [self.put_blob(content) for content in contents]

    def young_blobs(self, digests: Sequence[str]) -> frozenset[str]:
        since = self.now() - timeouts.BLOB_FRESH_S
        found = (self._server.blobs[digest][1] for digest in digests if digest in self._server.blobs)
        return frozenset(entry.sha256 for entry in found if (entry.written_at or 0.0) > since)

    def list_blobs(self) -> list[StoredBlob]:
        with self._server.lock:
            return sorted((entry for _, entry in self._server.blobs.values()), key=lambda blob: blob.sha256)

    def remove_blob(self, blob: StoredBlob) -> bool:
        with self._server.lock:
            found = self._server.blobs.get(blob.sha256)
            if found is not None and found[1].version != blob.version:
                return False
            self._server.blobs.pop(blob.sha256, None)
        return True

    def clear_leftovers(self, before: float) -> int:
        """Memory has none."""
        del before
        return 0

    def now(self) -> float:
        return self._server.clock.now()

    @property
    def shared(self) -> bool:
        """As one in a bucket, only where a test wants that: most count what goes to the store."""
        return self._server.shared

    def identity(self) -> str:
        return self._server.identity


def _group(key: str) -> str:
    return key.split("/", 1)[0]


def _with_prefix(keys: list[str], prefix: str) -> list[str]:
    start = bisect.bisect_left(keys, prefix)
    end = bisect.bisect_left(keys, prefix + "\U0010ffff")
    return keys[start:end]
