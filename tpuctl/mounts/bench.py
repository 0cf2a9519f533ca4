"""How fast a mount is: every host writes an object and reads that of the next host, all at once.

What gcsfuse asks the bucket for when a name is looked up is in internal/fs/inode/dir.go of v3.11.3
(lookUpUnknownType): the object, and with implicit directories a listing of what is below that name. Classes of
operations: https://cloud.google.com/storage/pricing#operations-by-class.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from tpuctl.engine.events import Warn
from tpuctl.engine.ports import RemoteCall
from tpuctl.engine.services import Services
from tpuctl.errors import NotFoundError, TpuctlError
from tpuctl.hosts.targets import host_targets
from tpuctl.lib.codec import parse_json
from tpuctl.model.cloud import HostTarget, RemoteResult
from tpuctl.model.records import SliceRecord
from tpuctl.model.refs import MountRef
from tpuctl.mounts.render import cache_of
from tpuctl.mounts.use import check_ready, get_ref

SCRATCH = ".tpuctl-bench-"
PIECE = 8 << 20


def bench_mount(
    services: Services, record: SliceRecord, path: str, script: bytes, *, size_mib: int, timeout_s: float
) -> dict[str, Any]:
    """GB/s and errors of each host, and of all together: all bytes over the time of the slowest host. On a
    read-only mount all read one object, which this machine uploads. The scratch objects are removed.

    Each phase ends after `timeout_s`: a host that hangs is an error, not a wait.
    """
    ref = get_ref(record, path)
    check_ready(record)
    targets = host_targets(services, record)
    name = SCRATCH + services.ids.new_id()

    def phase(mode: str, file_of: Callable[[HostTarget], str]) -> list[dict[str, Any]]:
        def program(target: HostTarget) -> bytes:
            asked = json.dumps([mode, f"{path}/{file_of(target)}", size_mib])
            return script + f"\nprint(json.dumps(measure(*{asked})))\n".encode()

        found = services.remote.run(targets, RemoteCall("python3 -I -S -", stdin=program, timeout_s=timeout_s))
        return [_measured(result) for result in found]

    try:
        if ref.read_only:
            services.objects.upload(f"{ref.source}/{name}", _pieces(size_mib), size_mib << 20)
            return _told(targets, None, phase("read", lambda _: name), size_mib)
        wrote = phase("write", lambda each: f"{name}-{each.worker}")
        read = phase("read", lambda each: f"{name}-{(each.worker + 1) % len(targets)}")
        return _told(targets, wrote, read, size_mib)
    finally:
        _clean(services, ref, name)


def _pieces(size_mib: int) -> Iterator[bytes]:
    block = os.urandom(PIECE)
    left = size_mib << 20
    while left:
        yield block[: min(PIECE, left)]
        left -= min(PIECE, left)


def _measured(result: RemoteResult) -> dict[str, Any]:
    try:
        found: dict[str, Any] = parse_json(result.stdout)
        return found
    except ValueError:
        why = result.detail or str(result.failure or "") or result.stderr.decode(errors="replace").strip()
        return {"bytes": 0, "seconds": 0.0, "error": why[-200:] or f"exited with {result.exit_status}"}


def _told(
    targets: Sequence[HostTarget],
    wrote: Sequence[Mapping[str, Any]] | None,
    read: Sequence[Mapping[str, Any]],
    size_mib: int,
) -> dict[str, Any]:
    phases = {"write": wrote, "read": read}
    hosts: list[dict[str, Any]] = []
    count = 0
    for at, target in enumerate(targets):
        mine = {mode: each[at] if each is not None else None for mode, each in phases.items()}
        errors = [
            f"{mode}: {each['error']}" for mode, each in mine.items() if each is not None and each["error"]
        ]
        rates = {f"{mode}_gb_s": rate([each]) if each is not None else None for mode, each in mine.items()}
        hosts.append({"worker": target.worker, **rates, "errors": errors})
        count += len(errors)
    together = {f"{mode}_gb_s": rate(each) if each is not None else None for mode, each in phases.items()}
    return {"size_mib": size_mib, "hosts": hosts, **together, "errors": count}


def rate(measured: Sequence[Mapping[str, Any]]) -> float:
    """GB/s (10^9 bytes) of what ran at the same time; 0 where nothing went through."""
    seconds = max((float(each["seconds"]) for each in measured), default=0.0)
    return sum(int(each["bytes"]) for each in measured) / 1e9 / seconds if seconds else 0.0


def _clean(services: Services, ref: MountRef, name: str) -> None:
    """By the bucket, so that nothing stays of a host that hangs."""
    try:
        for found in services.objects.list(f"{ref.source}/{name}"):
            services.objects.delete(f"gs://{ref.bucket}/{found.name}")
    except NotFoundError:
        return
    except TpuctlError as error:
        left = f"{ref.source}/{name}*"
        services.emit(Warn("", f"scratch objects may be left: gcloud storage rm '{left}' ({error.message})"))


DAY_S = 86_400
MONTH_DAYS = 30
PROBE_EVERY_S = 30
"""ASK_EVERY_S of templates/mount_keeper.py, which asks for a name that is not there."""


class MountUse(Struct, frozen=True):
    """How a mount is used: each of `hosts` lists all of `files` and opens each of them `passes` times a day."""

    hosts: int
    files: int
    passes: float


class CostRow(Struct, frozen=True):
    """Operations of one class for one purpose: on the first day, and on each day after it."""

    what: str
    operations: str
    first_day: int
    later_day: int
    usd_month: float


def operation_costs(
    options: Mapping[str, Any], use: MountUse, usd_per_1000: Mapping[str, float]
) -> list[CostRow]:
    """At most, by list. `usd_per_1000`: for `class_a` and `class_b`. What is remembered is assumed to fit into
    the caches, and nothing to change."""
    ttl, lists = int(options["metadata-cache.ttl-secs"]), int(options["file-system.kernel-list-cache-ttl-secs"])
    looks, names = _times(use.passes, ttl), use.hosts * use.files
    listings = _times(use.passes, lists)
    pages = use.hosts * math.ceil(use.files / 1000)
    once = (1.0, 0.0)
    reads = once if cache_of(options) else (use.passes, use.passes)
    probes = (DAY_S / PROBE_EVERY_S,) * 2
    below = "class_a" if options.get("implicit-dirs") else "class_b"
    rows = [
        ("look-ups of names", "class_b", names, looks),
        ("look-ups, of folders of that name", below, names, looks),
        ("reads", "class_b", names, reads),
        ("listings", "class_a", pages, listings),
        ("health, looked at by hosts", "class_a", use.hosts, probes),
        ("health, looked at by hosts", "class_b", use.hosts, probes),
    ]
    return [_row(what, kind, count, times, usd_per_1000[kind]) for what, kind, count, times in rows]


def total_usd(rows: list[CostRow]) -> float:
    """Of a month."""
    return sum(row.usd_month for row in rows)


def _times(passes: float, ttl_s: int) -> tuple[float, float]:
    """How often a thing is asked for on the first day and on later ones, if it is remembered for `ttl_s`."""
    if ttl_s < 0:
        return min(passes, 1.0), 0.0
    daily = passes if ttl_s == 0 else min(passes, DAY_S / ttl_s)
    return daily, daily


def _row(what: str, kind: str, count: int, times: tuple[float, float], usd_per_1000: float) -> CostRow:
    first, later = (math.ceil(count * each) for each in times)
    usd = (first + (MONTH_DAYS - 1) * later) * usd_per_1000 / 1000
    return CostRow(what, "A" if kind == "class_a" else "B", first, later, usd)
