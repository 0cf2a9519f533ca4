"""The disks of a rerun: which of them its target has, and what to type for the others."""

from __future__ import annotations

from tpuctl.disks.follow import plan_clone_in, type_in
from tpuctl.disks.make import find_record
from tpuctl.engine.services import Services
from tpuctl.errors import UsageError
from tpuctl.lib.shell import quote
from tpuctl.model.disks import DiskMode, DiskRecord
from tpuctl.model.records import SliceRecord
from tpuctl.provenance.manifest import Row, RunManifest
from tpuctl.provenance.rerun import DiskThere, used
from tpuctl.slices.resolve import WantedSlice

Target = SliceRecord | WantedSlice


def find_disks(services: Services, manifest: RunManifest, target: Target) -> dict[str, DiskThere]:
    """By path what each disk of the run is on the target. Reads only."""
    return {str(row.get("path")): _find_disk(services, row, target) for row in used(manifest, "disks")}


def _find_disk(services: Services, row: Row, target: Target) -> DiskThere:
    spec, own = target.spec, str(row.get("type") or "")
    ref = next((each for each in spec.disks if each.path == row.get("path")), None)
    there = _record(services, ref.name) if ref is not None else None
    if ref is not None and there is None:
        return DiskThere(own, ref.name, same=ref.name == row.get("name"))
    if there is not None:
        plan = plan_clone_in(services, there, spec.zone, spec)
        return DiskThere(plan.record.request.type, plan.record.name, _is_same(row, there), plan.cost)
    shared = row.get("mode") in (DiskMode.READ_ONLY, DiskMode.READ_ONLY.short)
    kind = type_in(own, spec, shared=shared) if own else ""
    cost, hint = _what_to_type(services, row, target, kind or "")
    return DiskThere(kind or "", cost=cost, hint=hint)


def _record(services: Services, name: str) -> DiskRecord | None:
    stored = find_record(services, name)
    return stored[0] if stored is not None and stored[0].wanted else None


def _is_same(row: Row, there: DiskRecord) -> bool:
    """Whether a disk has the content that the run saw: the same master, or a clone of the same moment."""
    if row.get("master") is None or row.get("generation") is None:
        return bool(there.name == row.get("name"))
    return (there.master, there.generation) == (row["master"], row["generation"])


def _what_to_type(services: Services, row: Row, target: Target, kind: str) -> tuple[str, str]:
    """What it costs, and the commands after which the target has a disk like that of `row`."""
    name, zone, own = str(row.get("name")), target.spec.zone, str(row.get("type") or "")
    record, master = _record(services, name), str(row.get("master") or name)
    other = f" --type {kind}" if kind != own else ""
    new = isinstance(target, WantedSlice)
    slice_name = "SLICE" if new else target.name
    first = f"tpuctl up {target.spec.accelerator_type} SLICE --zone {zone}, then " if new else ""
    again = ", then rerun with --on SLICE" if new else ""
    place = f"--to {slice_name} --path {quote(str(row.get('path')))}"
    if record is None and _record(services, master) is None:
        known = f"tpuctl disk ls; with one of the same content: tpuctl disk attach NAME {place}"
        return "", f"{first}{known}{again}"
    if record is None or (record.generation and record.request.zone == zone and other):
        older = f" --from-snapshot {quote(row['snapshot'])}" if row.get("snapshot") else ""
        return "", f"{first}tpuctl disk clone {quote(master)} {place}{other}{older}{again}"
    cost, made, attached = "", "", name
    if not record.generation and (record.request.zone != zone or other):
        attached = f"{name}-2"
        made = f"tpuctl disk clone {name} --rw --name {attached} --zone {zone}{other}, then "
    elif record.generation and record.request.zone != zone:
        plan = plan_clone_in(services, record, zone, target.spec)
        cost, attached = plan.cost, plan.record.name
        made = f"tpuctl disk clone {name} --zone {zone}{other}, then " if plan.said else ""
        try:
            plan.check()
        except UsageError as error:
            made = f"{error.hint}, then "
    return cost, f"{first}{made}tpuctl disk attach {attached} {place}{again}"
