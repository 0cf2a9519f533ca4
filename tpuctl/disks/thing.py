"""Disks as things of a slice: checked before anything is created, attached and mounted before it is ready."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from tpuctl.disks.follow import (
    attach_all,
    check_mounts,
    merge_refs,
    mounted_kind,
    note_mounted,
    resolve_refs,
)
from tpuctl.disks.hosts import DiskMount
from tpuctl.disks.make import find_record
from tpuctl.disks.restore import find_in_zone, refs_in_zone
from tpuctl.engine.services import Services
from tpuctl.model.disks import DiskMode
from tpuctl.model.records import Desired, SliceRecord
from tpuctl.model.refs import DiskRef
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.things.driver import Rows
from tpuctl.things.of_slice import Asked, Specs, ThingChange, ThingOfSlice


class DisksOfSlice(ThingOfSlice):
    """See `ThingOfSlice`."""

    def resolve(self, services: Services, asked: Asked, specs: Specs) -> Specs:
        """Beside the disks that it has."""
        said, zones = asked.request.disk, [each.zone for each in specs]
        refs = resolve_refs(services, said, specs[0], zones, asked.name)
        live = asked.known is not None and asked.known.desired is Desired.UP
        known = asked.known.spec if asked.known is not None and live else specs[0]
        check_mounts(refs, known.mounts)
        disks = merge_refs(known.disks, refs)
        return tuple(replace(each, disks=disks) for each in specs)

    def change(self, known: SliceSpec, wanted: SliceSpec) -> ThingChange | None:
        """A disk that it was not asked to have."""
        new = [each.name for each in wanted.disks if each not in known.disks]
        if not new:
            return None
        names, said = ", ".join(each.name for each in wanted.disks), f"disk {', '.join(new)}"
        return ThingChange("disks", "disk", wanted.disks, names, said, f"the file has {said}")

    def attach(self, services: Services, record: SliceRecord, deadline: float) -> None:
        """Its nodes have the disks; clones are restored where it is."""
        attach_all(services, record, deadline=deadline)

    def kinds(self, services: Services, record: SliceRecord, asked_by: str) -> Sequence[DiskMount]:
        """Mounted on each host."""
        found = []
        for ref in record.spec.disks:
            disk = find_in_zone(services, ref.name, record.spec.zone)
            if disk is None:  # it is not attached either, and said there
                found.append(DiskMount(ref.name, ref.path, "", ref.mode is DiskMode.READ_ONLY))
            else:
                found.append(replace(mounted_kind(disk, ref.path, ref.mode, asked_by), uuid=disk.fs_uuid))
        return found

    def reached(self, services: Services, record: SliceRecord, rows: Rows) -> None:
        """None of them is empty any more."""
        note_mounted(services, _here(services, record), rows)

    def manifest(self, services: Services, record: SliceRecord, rows: Rows) -> list[dict[str, Any]]:
        """With the copy's generation, its snapshot, how many hosts have it, and the id of its file system."""
        found: list[dict[str, Any]] = []
        for ref in _here(services, record):
            disk = find_record(services, ref.name)
            row: dict[str, Any] = {"name": ref.name, "path": ref.path, "mode": ref.mode.short}
            if disk is not None:
                row |= {"master": disk.master, "generation": disk.generation, "snapshot": disk.snapshot or None}
                row["type"] = disk.request.type
            seen = {host[key] for host in rows if host.get(key := f"disk {ref.path} uuid")}
            row["seen_by"] = sum(f"disk {ref.path}" in host for host in rows)
            row["fs_uuid"] = next(iter(seen)) if len(seen) == 1 else None
            found.append(row)
        return found


def _here(services: Services, record: SliceRecord) -> tuple[DiskRef, ...]:
    return refs_in_zone(services, record.spec.disks, record.spec.zone)


DISKS = DisksOfSlice()
