"""`disk resize`: a larger disk, and the file system on it, which grows while programs use it."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec.structs import replace

from tpuctl.disks.follow import path_on
from tpuctl.disks.hosts import Grown
from tpuctl.disks.leases import alone_with_disk
from tpuctl.disks.make import get_disk, get_record, perform, save_record
from tpuctl.disks.slices import writer_of
from tpuctl.engine.services import Services
from tpuctl.errors import PartialError, PendingError, TpuctlError, UsageError
from tpuctl.model.disks import ComputeOperation, DiskInfo, DiskRecord
from tpuctl.model.records import SliceRecord, SliceState
from tpuctl.model.verdict import Done
from tpuctl.state.journal import record_decision
from tpuctl.things.driver import bring_hosts

GROW_S = 900.0
"""How long a file system may take to grow, with the wait for who holds it still."""


@alone_with_disk
def resize_disk(services: Services, name: str, size_gib: int, *, dry_run: bool) -> dict[str, Any]:
    """Disks only grow. The same size again looks after the file system alone, which becomes as large."""
    record = get_record(services, name)
    disk = get_disk(services, record)
    if size_gib < disk.size_gib:
        raise UsageError(
            f"{name} has {disk.size_gib} GiB, and disks only grow", hint=f"--size {disk.size_gib + 1}"
        )
    told: dict[str, Any] = {"name": name, "size_gib": size_gib, "grown_on": None}
    if dry_run:
        change = f"would make {name} {size_gib} GiB large, from {disk.size_gib}"
        return {**told, "said": change if size_gib > disk.size_gib else f"{name} has {size_gib} GiB"}
    if size_gib > disk.size_gib:
        _enlarge(services, record, disk, size_gib)
    current = get_record(services, name)
    if current.request.size_gib != size_gib:  # also what a command did that was killed, or gcloud
        save_record(services, replace(current, request=replace(current.request, size_gib=size_gib)))
    writer = writer_of(services, record)
    grown = writer is not None and _grow(services, record, writer, size_gib)
    if writer is None or not grown:
        return {**told, "said": f"{name} has {size_gib} GiB; its file system grows when it is mounted next"}
    said = f"{name} has {size_gib} GiB, and so has its file system on {writer.name}"
    return {**told, "grown_on": writer.name, "said": said}


def _enlarge(services: Services, record: DiskRecord, disk: DiskInfo, size_gib: int) -> None:
    def call(_: DiskInfo) -> ComputeOperation:
        record_decision(services, record.key, "resize", f"from {disk.size_gib} to {size_gib} GiB")
        return services.disks.resize_disk(record.request.zone, record.name, size_gib)

    look = partial(get_disk, services, record)
    perform(
        services, f"disk {record.name}", look, lambda now: Done() if now.size_gib >= size_gib else None, call
    )


def _grow(services: Services, record: DiskRecord, writer: SliceRecord, size_gib: int) -> bool:
    """Whether the file system has grown on the host that writes it; False where it is not mounted, and then the
    next mount does it. Raises TpuctlError, with what to type, where it is mounted and did not grow."""
    if writer.state is not SliceState.READY:
        return False
    kind = Grown(record.name, path_on(services, record, writer), size_gib, services.ids.new_id())
    deadline = services.clock.now() + GROW_S
    try:
        [row] = bring_hosts(services, writer, [kind], workers=[0], deadline=deadline)
    except TpuctlError as error:
        why = f"{record.name} has {size_gib} GiB, its file system on {writer.name} has not: {error.message}"
        hint = f"tpuctl disk resize {record.name} --size {size_gib} --yes, which goes on"
        hint += f"; {error.hint}" if error.hint else ""
        kept = type(error) if isinstance(error, PartialError | PendingError) else TpuctlError
        raise kept(why, hint=hint, details=error.details) from error
    return bool(row.get("fs"))
