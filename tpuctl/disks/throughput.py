"""`disk throughput`: what a hyperdisk-ml gives its readers, which is paid for and changes once in six hours."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec.structs import replace

from tpuctl.disks.follow import readers_besides
from tpuctl.disks.leases import alone_with_disk
from tpuctl.disks.make import get_disk, get_record, perform, save_record
from tpuctl.disks.rules import DiskRules, DiskTarget, monthly_cost, refuse
from tpuctl.engine.services import Services
from tpuctl.errors import TpuctlError, UsageError
from tpuctl.lib.time import render_time
from tpuctl.model.disks import ComputeOperation, DiskInfo, DiskRecord
from tpuctl.model.verdict import Done
from tpuctl.state.journal import record_decision


@alone_with_disk
def set_throughput(
    services: Services, rules: DiskRules, name: str, mib_s: int, *, dry_run: bool
) -> dict[str, Any]:
    """Changes the throughput of a disk. The same again is done already. Raises UsageError for what its type
    cannot have, what its readers cannot do with, and before the time of the next change."""
    record = get_record(services, name)
    disk = get_disk(services, record)
    price = _price(replace(disk, throughput_mib_s=mib_s))
    told = {"name": name, "throughput_mib_s": mib_s, "was": disk.throughput_mib_s, "usd_per_month": price}
    if disk.throughput_mib_s == mib_s:
        return {**told, "next_at": _next_at(record, rules), "said": f"{name} has {mib_s} MiB/s already"}
    _check(services, rules, record, disk, mib_s)
    change = f"{mib_s} MiB/s{_in_words(price)}, from {disk.throughput_mib_s}"
    change += _in_words(_price(disk))
    if dry_run:
        return {**told, "next_at": None, "said": f"would give {name} {change}"}

    def call(_: DiskInfo) -> ComputeOperation:
        record_decision(services, record.key, "throughput", f"from {disk.throughput_mib_s} to {mib_s} MiB/s")
        return services.disks.set_throughput(record.request.zone, name, mib_s)

    look = partial(get_disk, services, record)
    request = replace(record.request, throughput_mib_s=mib_s)
    asked = save_record(services, replace(record, request=request, throughput_at=services.store.now()))
    try:
        perform(
            services, f"disk {name}", look, lambda now: Done() if now.throughput_mib_s == mib_s else None, call
        )
    except TpuctlError:
        if get_disk(services, record).throughput_mib_s != mib_s:
            save_record(services, record)
        raise
    next_at = _next_at(asked, rules)
    return {**told, "next_at": next_at, "said": f"{name} has {change}; it can be changed again at {next_at}"}


def _check(services: Services, rules: DiskRules, record: DiskRecord, disk: DiskInfo, mib_s: int) -> None:
    wanted = replace(disk, throughput_mib_s=mib_s)
    if not rules.has_throughput(wanted.type):
        raise UsageError(
            f"{record.name} is a {wanted.type} disk, and its throughput cannot be set", hint="tpuctl disk ls"
        )
    refuse(rules.check_new(wanted.type, wanted.size_gib, wanted.throughput_mib_s))
    others = readers_besides(services, record.name, "")
    refuse(rules.check_readers(wanted, DiskTarget(record.name, wanted.zone, "", 0, others=others)))
    if record.request.throughput_mib_s != disk.throughput_mib_s:
        return  # what was written down last never happened: its command was killed before, or it was refused
    next_at = _next_at(record, rules)
    if next_at is not None and record.throughput_at + rules.throughput_change_s > services.store.now():
        hours = rules.throughput_change_s / 3600
        why = f"the throughput of {record.name} was changed less than {hours:.0f} h ago"
        raise UsageError(why, hint=f"the same command at {next_at}")


def _next_at(record: DiskRecord, rules: DiskRules) -> str | None:
    """When it can be changed again; None where tpuctl has not changed it."""
    return render_time(record.throughput_at + rules.throughput_change_s) if record.throughput_at else None


def _price(disk: DiskInfo) -> float | None:
    return monthly_cost(disk.type, disk.size_gib, disk.throughput_mib_s, disk.iops)


def _in_words(price: float | None) -> str:
    return "" if price is None else f" (about ${price:.2f} a month)"
