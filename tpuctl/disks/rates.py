"""How often disks were copied lately: Compute Engine allows a few snapshots of one an hour."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from tpuctl.disks.rules import DiskRules
from tpuctl.engine.services import Services
from tpuctl.lib.parallel import Unread, read_all
from tpuctl.lib.time import parse_timestamp
from tpuctl.model.disks import SnapshotInfo


class CopyRate(Struct, frozen=True):
    """So many snapshots of a disk within the hour, of so many. `next_at` is when there can be one more (seconds
    since the epoch), None for now."""

    disk: str
    copies: int
    limit: int
    next_at: float | None


def copy_rates(services: Services, rules: DiskRules) -> tuple[tuple[CopyRate, ...], tuple[Unread, ...]]:
    """Of all disks of the project that were copied within the hour; and what could not be read."""
    reading = read_all({"snapshots": services.disks.list_snapshots})["snapshots"]
    if reading.error is not None:
        return (), (Unread.of("snapshots", reading.error),)
    return judge_rates(reading.value or (), rules, services.clock.now()), ()


def judge_rates(snapshots: Iterable[SnapshotInfo], rules: DiskRules, now: float) -> tuple[CopyRate, ...]:
    """The rates of the disks that these snapshots are of, by name. Pure."""
    burst, window_s = rules.copy_rate
    times: dict[tuple[str, str], list[float]] = {}
    for each in snapshots:
        made_at = parse_timestamp(each.create_time)
        if made_at is not None and made_at > now - window_s:
            times.setdefault((each.source_disk, each.source_uid), []).append(made_at)
    found = []
    for (disk, _), made in sorted(times.items()):
        wait_s = rules.copy_wait_s(made, now)
        found.append(CopyRate(disk, len(made), burst, now + wait_s if wait_s > 0 else None))
    return tuple(found)
