"""`data pack`: the shards of a folder into a bucket, several at once; those that are there already are left.

The manifest is written first, as one that is not complete, and again when all shards are there.
"""

from __future__ import annotations

import hashlib
import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

import google_crc32c

from tpuctl.datasets.folder import list_files, stream_shard
from tpuctl.datasets.plan import (
    MANIFEST,
    Manifest,
    PackedShard,
    PackPlan,
    Shard,
    describe,
    parse_manifest,
    parse_place,
    plan_pack,
    render_manifest,
)
from tpuctl.engine.events import DataProgress, Note
from tpuctl.engine.ports import Clock, EventSink
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, InterruptedByUserError, NotFoundError, TpuctlError, UsageError
from tpuctl.lib.retry import patiently
from tpuctl.lib.text import counted, sized
from tpuctl.model.cloud import ObjectInfo

AT_ONCE = 4
"""Shards: with two cores one is read while another is sent, and one upload alone does not fill a network."""
_SHOWN = 3


class Digest:
    """sha256 and crc32c of what passes."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._crc32c = 0
        self.size = 0

    def of(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Passes `pieces` on."""
        for piece in pieces:
            self._sha256.update(piece)
            self._crc32c = int(google_crc32c.extend(self._crc32c, piece))
            self.size += len(piece)
            yield piece

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    @property
    def crc32c(self) -> str:
        return b64encode(self._crc32c.to_bytes(4, "big")).decode()


def list_objects(
    services: Services, place: str, limit: int | None = None, glob: str = ""
) -> Sequence[ObjectInfo]:
    """What is below `place`. Raises NotFoundError for a bucket that is not there."""
    bucket = place.removeprefix("gs://").partition("/")[0]
    try:
        found = patiently(
            lambda: services.objects.list(f"{place}/", limit=limit, glob=glob), services.clock.sleep
        )
    except NotFoundError as error:
        hint = f"gcloud storage buckets create gs://{bucket}"
        raise NotFoundError(f"bucket gs://{bucket} does not exist", hint=hint) from error
    # A folder that somebody made in the console is an object without a name of its own.
    return [info for info in found if not info.name.endswith("/")]


def find_manifest(services: Services, place: str) -> Manifest | None:
    """The manifest of the pack at `place`; None where there is none."""
    uri = f"{place}/{MANIFEST}"
    try:
        return parse_manifest(patiently(lambda: services.objects.read(uri), services.clock.sleep)[0])
    except NotFoundError:
        return None


def pack(services: Services, folder: str, uri: str, *, shard_mb: int, dry_run: bool) -> dict[str, Any]:
    """Makes what is below `uri` a pack of `folder`."""
    place = parse_place(uri)
    plan = plan_pack(list_files(folder), shard_mb)
    if not plan.shards:
        raise UsageError(f"{folder} has no files", hint="the folder whose files are to be packed")
    if plan.odd:
        why = "no extension or no name before it: readers of webdataset pass over them"
        services.emit(Note("", f"{counted(plan.odd, 'file')} with {why}"))
    there = _look(services, place, plan)
    wanted = plan.manifest()
    told = {"folder": folder, "uri": place, "dry_run": dry_run, **describe(wanted)}
    shards = counted(len(plan.shards), "shard")
    content = f"{counted(wanted.files, 'file')}, {sized(wanted.content_bytes)}"
    if dry_run:
        return {**told, "sent": 0, "said": f"would pack {content}, into {shards} at {place}"}
    sent, packed = _bring(services, folder, place, plan, there)
    said = f"{place} has {content}, in {shards}: {sent} sent, {len(packed) - sent} were there"
    return {**told, "complete": True, "sent": sent, "said": said}


def _look(services: Services, place: str, plan: PackPlan) -> Mapping[str, ObjectInfo]:
    """The objects of this very pack that are there, by their names. Raises UsageError for anything else."""
    expected = {MANIFEST, *(shard.name for shard in plan.shards)}
    found = list_objects(services, place, limit=len(expected) + _SHOWN + 1)
    there = {info.name.removeprefix(f"{place.split('/', 3)[3]}/"): info for info in found}
    if not there:
        return {}
    manifest = find_manifest(services, place) if MANIFEST in there else None
    hint = f"another prefix, or if nobody needs what is there: gcloud storage rm -r {place}"
    if manifest is not None and (manifest.listing_sha256, manifest.shard_mb) != (
        plan.listing_sha256,
        plan.shard_mb,
    ):
        differs = (
            "of other files" if manifest.listing_sha256 != plan.listing_sha256 else "in shards of another size"
        )
        was = f"{counted(manifest.files, 'file')}, shards of {manifest.shard_mb} MB"
        raise UsageError(f"{place} has a pack {differs} ({was})", hint=hint)
    strange = sorted(there) if manifest is None else sorted(there.keys() - expected)
    if strange:
        more = ", …" if len(strange) > _SHOWN else ""
        raise UsageError(f"{place} has something else: {', '.join(strange[:_SHOWN])}{more}", hint=hint)
    return there


def _bring(
    services: Services, folder: str, place: str, plan: PackPlan, there: Mapping[str, ObjectInfo]
) -> tuple[int, Sequence[PackedShard]]:
    """How many shards were sent, and all of them."""
    uri = f"{place}/{MANIFEST}"
    generation = there[MANIFEST].generation if MANIFEST in there else 0
    if not generation:
        generation = _write(services, uri, plan.manifest(), 0)
    wanted = plan.manifest()
    meter = PackProgress(
        services.clock, services.emit, place, "packed", wanted.files, sum(s.size for s in plan.shards)
    )
    work = _Shards(services, folder, place, there, meter)
    packed: dict[int, PackedShard] = {}
    sent = 0
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="pack")
    try:
        for done in as_completed([pool.submit(work.bring, shard) for shard in plan.shards]):
            index, row, new = done.result()
            packed[index] = row
            sent += new
    finally:
        # What others do at this moment ends with their next piece.
        work.stopped.set()
        pool.shutdown(cancel_futures=True)
    rows = [packed[index] for index in sorted(packed)]
    complete = plan.manifest(rows)
    if find_manifest(services, place) != complete:
        _write(services, uri, complete, generation)
    return sent, rows


def _write(services: Services, uri: str, manifest: Manifest, generation: int) -> int:
    content = render_manifest(manifest)
    try:
        return patiently(
            lambda: services.objects.write(uri, content, if_generation=generation), services.clock.sleep
        )
    except ConflictError as error:
        # The answer to our own write may have been lost.
        found, now = patiently(lambda: services.objects.read(uri), services.clock.sleep)
        if found == content:
            return now
        raise ConflictError(f"somebody else packs into {uri}", hint="wait for them, then pack again") from error


@dataclass
class _Shards:
    """Brings one shard after the other into the bucket; used by several threads."""

    services: Services
    folder: str
    place: str
    there: Mapping[str, ObjectInfo]
    meter: PackProgress
    stopped: threading.Event = field(default_factory=threading.Event)

    def bring(self, shard: Shard) -> tuple[int, PackedShard, bool]:
        """Its index, its line in the manifest, and whether it had to be sent."""
        known = self.there.get(shard.name)
        if known is not None and known.size == shard.size:
            digest = Digest()
            for _ in self._stream(shard, digest):
                pass
            if digest.crc32c == known.crc32c:
                return shard.index, _row(shard, digest), False
            self.meter.take_back(shard.size, shard.files)
        return shard.index, self._send(shard, known.generation if known is not None else 0), True

    def _send(self, shard: Shard, generation: int) -> PackedShard:
        uri, objects = f"{self.place}/{shard.name}", self.services.objects
        digest = Digest()

        def upload() -> None:
            nonlocal digest
            if digest.size:
                self.meter.take_back(digest.size, 0)
            digest = Digest()
            objects.upload(uri, self._stream(shard, digest), shard.size, if_generation=generation)

        try:
            patiently(upload, self.services.clock.sleep)
        except ConflictError as error:
            # The answer to our own upload may have been lost; another pack of the folder makes the same bytes.
            digest = Digest()
            for _ in self._stream(shard, digest):
                pass
            found = patiently(lambda: objects.list(uri, limit=1), self.services.clock.sleep)
            if not any(info.crc32c == digest.crc32c for info in found):
                raise ConflictError(
                    f"somebody else writes {uri}", hint="pack again when they are done"
                ) from error
        return _row(shard, digest)

    def _stream(self, shard: Shard, digest: Digest) -> Iterator[bytes]:
        for piece in digest.of(stream_shard(self.folder, shard, self.meter.add)):
            if self.stopped.is_set():
                raise InterruptedByUserError("packing was ended")
            yield piece
        if digest.size != shard.size:
            raise TpuctlError(f"{shard.name} came to {digest.size} bytes instead of {shard.size}")


def _row(shard: Shard, digest: Digest) -> PackedShard:
    return PackedShard(shard.name, shard.size, shard.files, shard.samples, digest.sha256, digest.crc32c)


PROGRESS_EVERY_S = 1.0


@dataclass
class PackProgress:
    """Used by several threads. `action` is what is done to the files, as `packed`."""

    clock: Clock
    emit: EventSink
    subject: str
    action: str
    files: int
    total: int

    def __post_init__(self) -> None:
        self._began = self._told = self.clock.now()
        self._lock = threading.Lock()
        self._done_bytes = self._done_files = 0

    def add(self, count: int, files: int) -> None:
        """So many bytes and files more are done."""
        now = self.clock.now()
        with self._lock:
            self._done_bytes += count
            self._done_files += files
            if now - self._told < PROGRESS_EVERY_S:
                return
            self._told = now
            event = DataProgress(
                self.subject,
                self.action,
                self._done_bytes,
                self.total,
                self._done_files,
                self.files,
                now - self._began,
            )
        self.emit(event)

    def take_back(self, count: int, files: int) -> None:
        """They were not: they are done once more."""
        with self._lock:
            self._done_bytes -= count
            self._done_files -= files
