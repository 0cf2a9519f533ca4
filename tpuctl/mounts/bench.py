"""How fast a mount is: every host writes an object and reads that of the next host, all at once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tpuctl.engine.events import Warn
from tpuctl.engine.services import Services
from tpuctl.errors import NotFoundError, TpuctlError
from tpuctl.hosts.targets import host_targets
from tpuctl.lib.codec import parse_json
from tpuctl.model.cloud import HostTarget, RemoteResult
from tpuctl.model.records import SliceRecord
from tpuctl.model.slice_spec import MountRef
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

        found = services.remote.run(targets, "python3 -I -S -", stdin=program, timeout_s=timeout_s)
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
