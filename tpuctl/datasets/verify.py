"""`data verify` and `data ls`: packs in a bucket, and what was staged there, against their manifests."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tpuctl.datasets.pack import AT_ONCE, Digest, PackProgress, find_manifest, list_objects
from tpuctl.datasets.plan import MANIFEST, Manifest, PackedShard, describe, difference, parse_place
from tpuctl.datasets.stage import RECORD, StageRecord, parse_record
from tpuctl.engine.services import Services
from tpuctl.errors import InterruptedByUserError, NotFoundError, PartialError
from tpuctl.lib.codec import to_data
from tpuctl.lib.retry import patiently
from tpuctl.model.cloud import ObjectInfo


def verify(services: Services, uri: str, *, quick: bool) -> list[dict[str, Any]]:
    """One row for each shard, and for what is there besides; `problem` is None where it is as the manifest
    says. `quick`: by what the bucket says of the objects, without reading them."""
    place = parse_place(uri)
    record = find_record(services, place)
    manifest = record or read_manifest(services, place)
    if not manifest.complete:
        raise PartialError(f"{place} is not complete", hint=_how_to_mend(record, place))
    prefix = f"{place.split('/', 3)[3]}/"
    there = {info.name.removeprefix(prefix): info for info in list_objects(services, place)}
    total = sum(each.size for each in manifest.shards)
    count = sum(each.files for each in manifest.shards)
    meter = PackProgress(services.clock, services.emit, place, "verified", count, total)

    stopped = threading.Event()

    def row(expected: PackedShard) -> dict[str, Any]:
        problem = _said(expected, there.get(expected.name))
        if problem is None and not quick:
            problem = _content(services, f"{place}/{expected.name}", expected, meter, stopped)
        return {"shard": expected.name, "size": expected.size, "files": expected.files, "problem": problem}

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="verify") as pool:
        try:
            rows = list(pool.map(row, manifest.shards))
        finally:
            stopped.set()
    known = {
        RECORD if isinstance(manifest, StageRecord) else MANIFEST,
        *(each.name for each in manifest.shards),
    }
    strange = [there[name] for name in sorted(there.keys() - known)]
    why = "it is not in the manifest"
    return rows + [
        {"shard": info.name.removeprefix(prefix), "size": info.size, "files": None, "problem": why}
        for info in strange
    ]


def _how_to_mend(record: StageRecord | None, place: str) -> str:
    if record is None:
        return f"from the same folder: tpuctl data pack DIR {place}"
    return f"tpuctl data stage {record.source} {place}"


def find_record(services: Services, place: str) -> StageRecord | None:
    """The record of what `data stage` brings to `place`; None where it brings nothing there."""
    uri = f"{place}/{RECORD}"
    try:
        return parse_record(patiently(lambda: services.objects.read(uri), services.clock.sleep)[0])
    except NotFoundError:
        return None


def _said(expected: PackedShard, info: ObjectInfo | None) -> str | None:
    return "it is missing" if info is None else difference(expected, info.size, info.crc32c)


def _content(
    services: Services, uri: str, expected: PackedShard, meter: PackProgress, stopped: threading.Event
) -> str | None:
    def read() -> str:
        digest = Digest()
        try:
            for piece in digest.of(services.objects.read_pieces(uri)):
                if stopped.is_set():
                    raise InterruptedByUserError("verifying was ended")
                meter.add(len(piece), 0)
        except BaseException:
            meter.take_back(digest.size, 0)
            raise
        return digest.sha256

    try:
        found = patiently(read, services.clock.sleep)
    except NotFoundError:
        return "it is missing"
    meter.add(0, expected.files)
    return None if found == expected.sha256 else f"its sha256 is {found} instead of {expected.sha256}"


def check_rows(services: Services, uri: str, rows: Sequence[dict[str, Any]]) -> None:
    """Raises PartialError where a row has a problem."""
    bad = [row for row in rows if row["problem"] is not None]
    if bad:
        more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
        what = f"{bad[0]['shard']} of {uri}: {bad[0]['problem']}{more}"
        hint = _how_to_mend(find_record(services, parse_place(uri)), uri)
        raise PartialError(what, hint=hint, details={"shards": bad})


def read_manifest(services: Services, place: str) -> Manifest:
    """Raises NotFoundError where there is no pack."""
    found = find_manifest(services, place)
    if found is None:
        list_objects(services, place, limit=1)  # names a bucket that is not there
        raise NotFoundError(f"there is no pack at {place}", hint=f"tpuctl data ls {place}")
    return found


def list_packs(services: Services, uri: str) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The pack at `uri` and its shards; without one there, None and the packs below."""
    place = parse_place(uri, whole_bucket=True)
    bucket, _, prefix = place.removeprefix("gs://").partition("/")
    manifest = find_manifest(services, place) if prefix else None
    if manifest is not None:
        return {"uri": place, **describe(manifest)}, [to_data(each) for each in manifest.shards]
    found = []
    for info in list_objects(services, place, glob=f"**/{MANIFEST}"):
        below = f"gs://{bucket}/{info.name.removesuffix('/' + MANIFEST)}"
        manifest = find_manifest(services, below)
        if manifest is not None:
            found.append({"uri": below, **describe(manifest)})
    return None, found
