"""Blobs of a store in a bucket: `blobs/SHA256`, each one object, and a cache of what was read.

The age of a blob is the server's: an object that is written again, with the same content, is young again. A
pruner removes exactly the generation that it saw to be old, so a writer that renewed it meanwhile wins.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import TypeVar

from tpuctl.engine.cloud_ports import Objects
from tpuctl.engine.ports import StoredBlob
from tpuctl.errors import ConflictError, NotFoundError, TpuctlError, TransientError
from tpuctl.lib.retry import TRIES, patiently
from tpuctl.model import timeouts
from tpuctl.model.cloud import ObjectInfo
from tpuctl.state.blobs import BlobFiles

T = TypeVar("T")

CACHE_BYTES = 2 * 2**30
"""The content of some hundred runs; what was not used for longest is read from the bucket again."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


class BucketBlobs:
    """The blobs below `uri`; `now` is the server's time."""

    def __init__(
        self,
        objects: Objects,
        uri: str,
        cache: BlobFiles,
        *,
        sleep: Callable[[float], None],
        now: Callable[[], float],
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._objects = objects
        self._uri = f"{uri}/blobs/"
        self._cache = cache
        self._sleep = sleep
        self._now = now
        self._cache_bytes = cache_bytes
        self._cached_more = False

    def close(self) -> None:
        """Leaves a cache of bounded size behind."""
        if self._cached_more:
            with suppress(OSError):
                self._cache.trim(self._cache_bytes)

    def put(self, content: bytes) -> str:
        """Raises TransientError when others write the same blob again and again, so that it cannot be told."""
        digest = hashlib.sha256(content).hexdigest()
        generation = 0
        for _ in range(TRIES):
            try:
                self._write(digest, content, generation)
            except ConflictError:
                # Somebody stored the same content, our own answer was lost, or a pruner was faster.
                found = self._find(digest)
                generation = 0 if found is None else found.generation
                if found is None or not self._is_fresh(found):
                    continue
            self._keep(content)
            return digest
        raise TransientError(f"could not store {self._uri}{digest}: it changes all the time")

    def get(self, sha256: str) -> bytes:
        if not _DIGEST.fullmatch(sha256):
            raise NotFoundError(f"{sha256!r} is not the sha256 of a blob")
        known = self._cache.find(sha256)
        if known is not None:
            with suppress(OSError):
                self._cache.renew(sha256)
            return known
        uri = f"{self._uri}{sha256}"
        try:
            content, _ = self._patiently(lambda: self._objects.read(uri))
        except NotFoundError as error:
            raise NotFoundError(f"the store has no blob {sha256}") from error
        if hashlib.sha256(content).hexdigest() != sha256:
            raise TpuctlError(f"the blob {uri} was damaged", hint=f"gcloud storage rm {uri}")
        self._keep(content)
        return content

    def is_young(self, sha256: str) -> bool:
        if not _DIGEST.fullmatch(sha256):
            return False
        found = self._find(sha256)
        return found is not None and self._is_fresh(found)

    def list(self) -> list[StoredBlob]:
        listed = self._patiently(lambda: self._objects.list(self._uri))
        named = [(info.name.rpartition("/")[2], info) for info in listed]
        return [
            StoredBlob(digest, info.size, info.generation, written_at(info))
            for digest, info in named
            if _DIGEST.fullmatch(digest)
        ]

    def remove(self, blob: StoredBlob) -> bool:
        uri = f"{self._uri}{blob.sha256}"
        try:
            self._patiently(lambda: self._objects.delete(uri, if_generation=blob.version))
        except ConflictError:
            return False
        return True

    def clear_leftovers(self, before: float) -> int:
        """Removes files that a crash left half-written in the cache before that time; how many there were."""
        return self._cache.clear_leftovers(before)

    def _write(self, digest: str, content: bytes, generation: int) -> None:
        uri = f"{self._uri}{digest}"
        self._patiently(lambda: self._objects.write(uri, content, if_generation=generation))

    def _find(self, digest: str) -> ObjectInfo | None:
        uri = f"{self._uri}{digest}"
        listed = self._patiently(lambda: self._objects.list(uri))
        return next((info for info in listed if info.name == uri.split("/", 3)[3]), None)

    def _is_fresh(self, found: ObjectInfo) -> bool:
        at = written_at(found)
        return at is not None and at > self._now() - timeouts.BLOB_FRESH_S

    def _keep(self, content: bytes) -> None:
        """A cache that cannot be written costs reads, nothing else."""
        with suppress(OSError):
            self._cache.put(content)
            self._cached_more = True

    def _patiently(self, call: Callable[[], T]) -> T:
        return patiently(call, self._sleep)


def written_at(info: ObjectInfo) -> float | None:
    """When an object was last written or touched, by the server; None where the listing does not tell."""
    try:
        return datetime.fromisoformat(info.updated).timestamp()
    except ValueError:
        return None
