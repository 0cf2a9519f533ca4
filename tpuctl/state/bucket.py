"""The store in a bucket: `gs://BUCKET/PREFIX`, shared by a team or by a watchdog on another machine.

    identity            which fleet this is
    docs/KEY            one JSON document each, written by generation preconditions
    blobs/SHA256        content

Every write carries a nonce. When its answer is lost, or a retried write meets the precondition that it has
itself broken, reading back tells whether the write was ours. What was read is kept in a local cache by
generation, so that listing unchanged documents costs pages and no reads.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from tpuctl.engine.cloud_ports import Objects
from tpuctl.engine.ports import Document, StoredBlob
from tpuctl.errors import (
    BadConfigError,
    ConflictError,
    NotFoundError,
    RateLimitedError,
    TpuctlError,
    TransientError,
)
from tpuctl.lib.codec import parse_json
from tpuctl.lib.retry import patiently
from tpuctl.state.blobs import BlobFiles
from tpuctl.state.bucket_blobs import BucketBlobs
from tpuctl.state.cache import ObjectCache
from tpuctl.state.documents import DamagedData, RecordData, UnreadData, check_entry, is_entry

R = TypeVar("R")
T = TypeVar("T")

SCHEMA = 1
READERS = 10
"""Calls at once: documents that the cache does not have, and blobs. As many as the client keeps connections."""
TIME_FRESH_S = 60.0
"""How long the difference between the server's clock and ours is believed: clocks drift little in a minute."""
_BLOCK = 100_000
"""Milliseconds whose entries are looked up with one list call: the first 11 of the 16 digits of their keys."""
_AHEAD_MS = 3_000
"""By so much another machine's idea of the server's time may be ahead of ours."""
_TICKS = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The clock that goes on while a laptop sleeps (clock_gettime(2)); the plain one would keep the difference of
before, and a lease taken by it would look expired to everybody else."""


class BucketStore:
    """Implements `ports.Store` over `objects`; `cache` is a directory of this machine only for this store.

    Raises BadConfigError where there is no store, or one that a newer tpuctl wrote.
    """

    def __init__(
        self,
        objects: Objects,
        uri: str,
        cache: Path,
        *,
        sleep: Callable[[float], None],
        project: str | None = None,
        unborn: bool = False,
    ) -> None:
        """`project`: refuse the store of another. `unborn`: open it although it has no identity yet, to copy
        another store into it."""
        self._objects = objects
        self._uri = uri.rstrip("/")
        self._sleep = sleep
        self._cache = ObjectCache(cache / "objects.sqlite")
        self._blobs = BucketBlobs(objects, self._uri, BlobFiles(cache / "blobs"), sleep=sleep, now=self.now)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="store-read")
        self._mutex = threading.Lock()
        self._last_entry = 0
        self._offset: tuple[float, float] | None = None
        self._identity = "" if unborn else self._read_identity(project)

    def close(self) -> None:
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._cache.close()
        self._blobs.close()

    def get(self, key: str) -> Document | None:
        found = self._read(key)
        return None if found is None else _document(key, found[1], found[0]["data"])

    def put(self, key: str, data: Mapping[str, Any], *, if_generation: int) -> Document:
        self._check_mutable(key)
        generation = self._write(key, data, if_generation=if_generation)
        return Document(key, generation, json.loads(json.dumps(data)))

    def delete(self, key: str, *, if_generation: int) -> None:
        self._check_mutable(key)
        if if_generation == 0 or self._read(key) is None:
            raise ConflictError(f"{key} in the store was changed by another tpuctl", details={"key": key})
        self._patiently(lambda: self._objects.delete(self._doc(key), if_generation=if_generation))
        self._cache.forget(self._doc(key))

    def remove_entries(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_entry(key)
        uris = [self._doc(key) for key in keys]
        list(self._readers.map(self._delete_object, uris))
        for uri in uris:
            self._cache.forget(uri)

    def list(self, prefix: str) -> list[Document]:
        keys = self._list_generations(prefix)
        known = self._cache.find({self._doc(key): generation for key, generation in keys.items()})
        missing = [key for key in keys if self._doc(key) not in known]
        fetched = dict(zip(missing, self._readers.map(self._read, missing), strict=True))
        documents = []
        for key, generation in keys.items():
            content = known.get(self._doc(key))
            if content is not None:
                documents.append(Document(key, generation, UnreadData(key, content["data"])))
            elif (found := fetched.get(key)) is not None:
                documents.append(_document(key, found[1], found[0]["data"]))
        return sorted(documents, key=lambda document: document.key)

    def read_all(self, prefix: str, read: Callable[[Document], R]) -> Sequence[R]:
        return [*map(read, self.list(prefix))]

    def list_keys(self) -> Sequence[str]:
        return sorted(self._list_generations(""))

    def _list_generations(self, prefix: str) -> dict[str, int]:
        """Generation by key. An object whose name ends in `/` is a folder that a person made in the console."""
        listed = self._patiently(lambda: self._objects.list(self._doc(prefix)))
        root = len(self._doc("").split("/", 3)[3])
        return {item.name[root:]: item.generation for item in listed if not item.name.endswith("/")}

    def append(self, prefix: str, data: Mapping[str, Any]) -> str:
        prefix = prefix.rstrip("/")
        key = f"{prefix}/{self._entry_number(prefix):016d}-{secrets.token_hex(4)}"
        self._write(key, data, if_generation=0)
        return key

    def put_blob(self, content: bytes) -> str:
        return self._blobs.put(content)

    def get_blob(self, sha256: str) -> bytes:
        return self._blobs.get(sha256)

    def put_blobs(self, contents: Iterable[bytes]) -> Sequence[str]:
        """A few at a time: what is in flight is in memory."""
        stored: tuple[str, ...] = ()
        rest = iter(contents)
        while some := tuple(islice(rest, READERS)):
            stored += tuple(self._readers.map(self._blobs.put, some))
        return stored

    def young_blobs(self, digests: Sequence[str]) -> frozenset[str]:
        self.now()  # asked once, not by all readers
        found = zip(digests, self._readers.map(self._blobs.is_young, digests), strict=True)
        return frozenset(digest for digest, young in found if young)

    def list_blobs(self) -> Sequence[StoredBlob]:
        return self._blobs.list()

    def remove_blob(self, blob: StoredBlob) -> bool:
        return self._blobs.remove(blob)

    def clear_leftovers(self, before: float) -> int:
        return self._blobs.clear_leftovers(before)

    def now(self) -> float:
        """The server's time: machines that share a lease need not agree on theirs."""
        with self._mutex:
            ticks = time.clock_gettime(_TICKS)
            if self._offset is None or ticks - self._offset[1] > TIME_FRESH_S:
                bucket = self._uri.split("/", 3)[2]
                served = self._patiently(lambda: self._objects.server_time(bucket))
                self._offset = (served - time.clock_gettime(_TICKS), ticks)
            return time.clock_gettime(_TICKS) + self._offset[0]

    @property
    def shared(self) -> bool:
        return True

    def identity(self) -> str:
        return self._identity

    # Copying a store here.

    def claim(self, identity: str) -> bool:
        """Keeps this place for the store `identity`, so that two that move here at once do not mix; whether it
        is that store already. Raises ConflictError when it is kept for another."""
        uri = f"{self._uri}/claim"
        holder = self._claimed_by(uri)
        if holder is None:
            content = json.dumps({"identity": identity}).encode()
            with suppress(ConflictError):  # lost answer, or somebody else: reading tells
                self._patiently(lambda: self._objects.write(uri, content, if_generation=0))
            holder = self._claimed_by(uri)
        found = self._patiently(lambda: read_identity(self._objects, self._uri))
        if holder != identity or found not in (None, identity):
            raise ConflictError(
                f"{self._uri} is where another fleet's store moves, or is",
                hint="choose another prefix; or join that fleet, with --join, when it is there",
            )
        return found == identity

    def _claimed_by(self, uri: str) -> str | None:
        try:
            content, _ = self._patiently(lambda: self._objects.read(uri))
        except NotFoundError:
            return None
        return str(_parse_object(uri, content).get("identity"))

    def open_as(self, identity: str, project: str) -> None:
        """From now on this place is that store. Raises ConflictError when it is another fleet's."""
        self._patiently(lambda: write_identity(self._objects, self._uri, identity, project))
        self._identity = identity

    def _delete_object(self, uri: str) -> None:
        with suppress(NotFoundError):
            self._patiently(lambda: self._objects.delete(uri))

    def take_document(self, key: str, data: Mapping[str, Any]) -> None:
        """Writes a document or an appended entry of another store; one that is there already is kept."""
        try:
            self._write(key, data, if_generation=0)
        except ConflictError:
            return

    def _doc(self, key: str) -> str:
        return f"{self._uri}/docs/{key}"

    def _read_identity(self, project: str | None) -> str:
        try:
            found = self._patiently(lambda: read_identity(self._objects, self._uri, project))
        except TpuctlError:
            self.close()
            raise
        if found is None:
            self.close()
            raise BadConfigError(
                f"there is no store at {self._uri}", hint=f"tpuctl config init --store {self._uri}"
            )
        return found

    def _read(self, key: str) -> tuple[dict[str, Any], int] | None:
        uri = self._doc(key)
        try:
            content, generation = self._patiently(lambda: self._objects.read(uri))
        except NotFoundError:
            return None
        try:
            entry = _parse_entry(uri, content)
        except TpuctlError as error:  # the documents beside it can still be listed
            return {"data": DamagedData(key, error.message, error.hint)}, generation
        self._cache.keep(uri, generation, entry)
        return entry, generation

    def _write(self, key: str, data: Mapping[str, Any], *, if_generation: int) -> int:
        """Compare-and-set that knows its own writes again. Raises ConflictError."""
        uri, nonce = self._doc(key), secrets.token_hex(8)
        entry = {"nonce": nonce, "data": data}
        content = json.dumps(entry, ensure_ascii=False, sort_keys=True).encode()

        def once() -> int:
            try:
                return self._objects.write(uri, content, if_generation=if_generation)
            except (ConflictError, TransientError, RateLimitedError) as error:
                ours = self._written_by_us(key, nonce)
                if ours is not None:
                    return ours
                if isinstance(error, ConflictError):
                    raise ConflictError(
                        f"{key} in the store was changed by another tpuctl",
                        details={"key": key, "expected": if_generation},
                    ) from error
                raise

        generation = self._patiently(once)
        self._cache.keep(uri, generation, parse_json(content))
        return generation

    def _written_by_us(self, key: str, nonce: str) -> int | None:
        """The generation of our own write whose answer did not arrive; None when it did not take effect."""
        found = self._read(key)
        return found[1] if found is not None and found[0].get("nonce") == nonce else None

    def _check_mutable(self, key: str) -> None:
        if is_entry(key):
            raise ConflictError(f"{key} in the store was appended and cannot change")

    def _entry_number(self, prefix: str) -> int:
        """Milliseconds of the server's time, larger than any that this process gave before and than all that
        stand below `prefix`. Machines know that time to about a second only, so the last ones are looked up."""
        now = int(self.now() * 1000)
        blocks = {now // _BLOCK, (now + _AHEAD_MS) // _BLOCK}
        listed = [key for block in sorted(blocks) for key in self._list_generations(f"{prefix}/{block:011d}")]
        last = max((int(key.rpartition("/")[2][:16]) for key in listed if is_entry(key)), default=0)
        with self._mutex:
            self._last_entry = max(now, last + 1, self._last_entry + 1)
            return self._last_entry

    def _patiently(self, call: Callable[[], T]) -> T:
        """`call`, which may be repeated without harm, through passing trouble."""
        return patiently(call, self._sleep)


def _document(key: str, generation: int, data: Any) -> Document:
    return Document(key, generation, data if isinstance(data, DamagedData) else RecordData(key, data))


def _parse_entry(uri: str, content: bytes) -> dict[str, Any]:
    """What `BucketStore._write` wrote. Raises TpuctlError naming the object for anything else."""
    entry = _parse_object(uri, content)
    if not isinstance(entry.get("data"), dict):
        raise _not_ours(uri)
    return entry


def _parse_object(uri: str, content: bytes) -> dict[str, Any]:
    try:
        found: Any = parse_json(content)
    except (ValueError, RecursionError) as error:
        raise _not_ours(uri) from error
    if not isinstance(found, dict):
        raise _not_ours(uri)
    return found


def _not_ours(uri: str) -> TpuctlError:
    return TpuctlError(
        f"{uri} is not a document of tpuctl's: somebody else wrote it, or changed it",
        hint=f"gcloud storage ls --all-versions {uri}, and copy the last good one over it",
    )


def read_identity(objects: Objects, uri: str, project: str | None = None) -> str | None:
    """Which fleet's store is at `uri`; None when there is none.

    Raises BadConfigError for a newer schema and for the store of another project than `project`.
    """
    try:
        content, _ = objects.read(f"{uri.rstrip('/')}/identity")
    except NotFoundError:
        return None
    schema, identity, theirs = parse_identity(uri, content)
    if schema > SCHEMA:
        raise BadConfigError(
            f"{uri} was written by a newer tpuctl (schema {schema}, known: {SCHEMA})",
            hint="pip install --upgrade tpuctl",
        )
    if project is not None and theirs is not None and theirs != project:
        raise BadConfigError(
            f"{uri} is the store of project {theirs}, not of {project}",
            hint=f"pass --project {theirs}, or choose another prefix",
        )
    return identity


def parse_identity(uri: str, content: bytes) -> tuple[int, str, str | None]:
    """Schema, identity and project. Raises BadConfigError for what is none of tpuctl's."""
    try:
        data = parse_json(content)
        return int(data["schema"]), str(data["identity"]), data.get("project")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadConfigError(
            f"{uri}/identity is not the mark of a tpuctl store", hint="choose another prefix with --store"
        ) from error


def write_identity(objects: Objects, uri: str, identity: str, project: str | None = None) -> None:
    """Makes `uri` a store, of `project`. Raises ConflictError when it is another fleet's."""
    content = json.dumps({"schema": SCHEMA, "identity": identity, "project": project}).encode()
    try:
        objects.write(f"{uri.rstrip('/')}/identity", content, if_generation=0)
    except (ConflictError, TransientError):
        if read_identity(objects, uri) != identity:
            raise
