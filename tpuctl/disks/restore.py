"""A clone in another zone, restored there from its snapshot: for a slice that comes back there, or by hand.

The specification of a slice names one clone wherever the slice is. Which disk that is in a zone follows from
the records: the one with the same master and generation.
"""

from __future__ import annotations

import zlib

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.disks.make import (
    ask_for,
    bring_about,
    find_record,
    get_disk,
    get_record,
    list_records,
    save_record,
    take_snapshot,
    wait_snapshot,
)
from tpuctl.disks.rules import DiskRules, Policy, RuleFinding, monthly_cost
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, UsageError
from tpuctl.model.disks import DiskRecord
from tpuctl.model.refs import DiskRef

_LONGEST = 63
"""Characters of the name of a disk."""


class Restore(Struct, frozen=True):
    """What a disk is in another zone, and what it takes to have it there; nothing if it is there."""

    source: DiskRecord
    record: DiskRecord
    said: str = ""
    cost: str = ""
    """How long that takes, and what it costs a month."""
    findings: tuple[RuleFinding, ...] = ()

    @property
    def is_due(self) -> bool:
        """It was not begun, or not ended."""
        return bool(self.record.generation and self.record.parent and not self.record.complete)

    def check(self) -> None:
        """Raises UsageError where only a person may decide, with what they type."""
        for each in self.findings:
            if each.policy is Policy.DENY:
                there = self.record.request
                other = "" if there.type == self.source.request.type else f" --type {there.type}"
                hint = f"tpuctl disk clone {self.source.name} --zone {there.zone}{other} --allow {each.rule}"
                raise UsageError(each.why, hint=hint)


def find_in_zone(services: Services, name: str, zone: str) -> DiskRecord | None:
    """The disk `name` if it is in `zone`, else the clone there that has the same content."""
    known = find_record(services, name)
    if known is None or known.request.zone == zone:
        return known
    for each in list_records(services):
        same = (each.master, each.generation) == (known.master, known.generation)
        if known.generation and same and each.wanted and each.request.zone == zone:
            return each
    return None


def refs_in_zone(services: Services, refs: tuple[DiskRef, ...], zone: str) -> tuple[DiskRef, ...]:
    """`refs` with the names that their disks have in `zone`; one that is not there keeps its own."""
    found = [(ref, find_in_zone(services, ref.name, zone)) for ref in refs]
    return tuple(ref if disk is None else replace(ref, name=disk.name) for ref, disk in found)


def plan_restore(
    services: Services,
    rules: DiskRules,
    source: DiskRecord,
    zone: str,
    kind: str = "",
    throughput_mib_s: int | None = None,
    *,
    readers: int = 1,
) -> Restore:
    """Reads and decides; changes nothing. `kind`: the type that it gets in that zone, empty for its own; it is
    for so many `readers`. Raises ConflictError for a master, which is in one place only."""
    there = find_in_zone(services, source.name, zone)
    if there is not None:
        return Restore(source, there)
    request, snapshot = source.request, source.snapshot
    if not source.generation:
        hint = f"tpuctl disk clone {source.name} --zone {zone}, and --disk with that clone"
        raise ConflictError(f"disk {source.name} is in {request.zone}, not in {zone}", hint=hint)
    if not snapshot or services.disks.find_snapshot(snapshot) is None:
        get_disk(services, source)  # it has to be there for another snapshot
        snapshot = f"{source.name}-s"
    name = _name_in(source.name, zone)
    wanted = replace(request, name=name, zone=zone, source_disk="", source_snapshot=snapshot)
    findings, as_type = [], ""
    needed = rules.throughput_for(kind or request.type, request.size_gib, readers)
    if kind not in ("", request.type) or throughput_mib_s is not None:
        kind = kind or request.type
        throughput = throughput_mib_s or needed
        access = rules.access_mode_for(kind)
        wanted = replace(wanted, type=kind, throughput_mib_s=throughput, access_mode=access)
        findings, as_type = rules.check_new(kind, request.size_gib, throughput), f" as {kind}"
    elif needed is not None:
        wanted = replace(wanted, throughput_mib_s=max(needed, request.throughput_mib_s or 0))
    price = monthly_cost(wanted.type, wanted.size_gib, wanted.throughput_mib_s)
    minutes = rules.restore_minutes(request.size_gib)
    usd = "at a price that is not known" if price is None else f"about ${price:.2f} a month more"
    cost = f"about {minutes} min, {usd}"
    said = f"{source.name} is restored in {zone}{as_type} from a snapshot first: {cost}"
    record = replace(
        source,
        name=name,
        request=wanted,
        owner=services.user,
        created_at=services.store.now(),
        parent=source.name,
        snapshot=snapshot,
        complete=False,
    )
    findings += rules.check_restore(source.name, zone, minutes, price)
    return Restore(source, record, said, cost, tuple(findings))


def restore(services: Services, plan: Restore, *, deadline: float | None = None) -> DiskRecord:
    """Until the clone is in its zone. A clone is not written, so a snapshot of it needs nothing held still."""
    record = ask_for(services, plan.record)
    zone, snapshot = record.request.zone, record.snapshot
    if services.disks.find_disk(zone, record.name) is None:
        if services.disks.find_snapshot(snapshot) is None:
            source = get_record(services, record.parent)
            if source.snapshot != snapshot:
                source = save_record(services, replace(source, snapshot=snapshot))
            take_snapshot(services, source, snapshot, source.generation, deadline=deadline)
        wait_snapshot(services, snapshot, deadline=deadline)
    bring_about(services, record.name, deadline=deadline)
    record = get_record(services, record.name)
    return record if record.complete else save_record(services, replace(record, complete=True))


def _name_in(name: str, zone: str) -> str:
    """Of a clone in another zone; long names are cut and get a checksum."""
    whole = f"{name}-{zone}"
    return whole if len(whole) <= _LONGEST else f"{whole[: _LONGEST - 9]}-{zlib.crc32(whole.encode()):08x}"
