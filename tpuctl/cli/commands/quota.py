"""`quota`: what is allowed, what is taken and by whom, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.cli.wrapping import wrap
from tpuctl.errors import UsageError
from tpuctl.lib.options import Option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.disks.rates import CopyRate
    from tpuctl.money.quota_report import QuotaReport

TPU = (
    Column("place", "TPU QUOTA IN", give=1),
    Column("api", "API"),
    Column("generation", "TYPE"),
    Column("tier", "TIER"),
    Column("limit", "LIMIT", right=True),
    Column("used", "USED", right=True),
    Column("free", "FREE", right=True),
    Column("unit", "UNIT"),
)
SIDE = (
    Column("metric", "SIDE QUOTA"),
    Column("place", "IN"),
    Column("limit", "LIMIT", right=True),
    Column("used", "USED", right=True),
    Column("allows", "ALLOWS NOW", give=1),
)
COPIED = (
    Column("disk", "COPIED LATELY", give=1),
    Column("copies", "TIMES", right=True),
    Column("limit", "OF", right=True),
    Column("next_at", "ONE MORE FROM"),
)
HOLDERS = (
    Column("user", "USER", give=1),
    Column("name", "HOLDS", give=2),
    Column("type", "TYPE"),
    Column("zone", "ZONE", whole=True),
    Column("tier", "TIER"),
    Column("state", "STATE"),
    Column("chips", "CHIPS", right=True),
    Column("price", "$/H", right=True),
)
GRANTS = (
    Column("generation", "GRANT"),
    Column("tier", "TIER"),
    Column("zone", "ZONE", whole=True),
    Column("live", "LIVE", right=True),
    Column("chips", "OF CHIPS", right=True),
    Column("ends", "LAST DAY"),
)


def quota(
    context: AppContext,
    zone: Annotated[list[str] | None, Option("Also this zone; repeatable.", metavar="ZONE")] = None,
    on: Annotated[
        str | None, Option("The queues of this cluster instead: gke:CONTEXT[/NAMESPACE].", metavar="CLUSTER")
    ] = None,
) -> None:
    """Show quotas, who uses them, grants, and the cost per hour.

    Hosts also use up quotas of Compute Engine (addresses, instances, health checks), and disks have theirs:
    these are the side quotas. A disk can be copied a few times an hour: shown for those that were. Shows the
    zones of your settings, your grants and existing TPUs; all zones if there are none. Each API that makes
    TPUs has a pool of its own. It returns only the limits: their use is counted from the TPUs of the project.
    With --on it shows chips of the cluster's Kueue by queue and flavor, and what waits there.
    """
    if on is not None:
        from tpuctl.cli.clusters import show_queues

        if zone:
            raise UsageError("--zone is for quotas of the project", hint=f"tpuctl quota --on {on}")
        show_queues(context, on)
        return
    from msgspec.structs import replace

    from tpuctl.disks.rates import copy_rates
    from tpuctl.disks.rules import DiskRules
    from tpuctl.lib.names import check_zone_name
    from tpuctl.model.shipped_files import load_accelerators, load_disk_rules
    from tpuctl.money.quota_report import quota_report

    zones = [check_zone_name(name) for name in zone or context.config.zone]
    context.require_credentials()
    report = quota_report(context, load_accelerators(), zones)
    rates, unread = copy_rates(context, DiskRules(load_disk_rules()))
    report = replace(report, unread=(*report.unread, *unread))
    if context.console.json_mode:
        context.console.data(_document(report, rates))
        return
    _show(context, report, rates)


def _document(report: QuotaReport, rates: Sequence[CopyRate]) -> dict[str, Any]:
    return {
        "tpu": _tpu(report),
        "side": _side(report),
        "copied_lately": _copied(rates),
        "holders": _holders(report),
        "grants": _grants(report),
        "cost_usd_per_hour": round(report.cost, 2),
        "holders_without_price": report.unpriced,
        "prices": report.prices_note,
        "unread": [{"what": each.what, "why": each.why, "fix": each.fix} for each in report.unread],
    }


def _tpu(report: QuotaReport) -> list[dict[str, Any]]:
    return [
        {
            "place": row.quota.location,
            "api": str(row.quota.api),
            "generation": row.quota.generation,
            "tier": "spot" if row.quota.preemptible else "on-demand",  # flex-start draws on spot's
            "limit": row.quota.limit,
            "used": row.used,
            "free": row.free,
            "unit": row.unit,
            "quota_id": row.quota.quota_id,
        }
        for row in report.tpu
    ]


def _side(report: QuotaReport) -> list[dict[str, Any]]:
    return [
        {
            "metric": room.quota.metric,
            "place": room.quota.place,
            "limit": room.quota.limit,
            "used": room.quota.usage,
            "free": room.quota.free,
            "allows": room.words,
            "hosts": room.hosts,
            "slices": room.nodes,
            "disk_gib": room.disk_gib,
            "snapshots": room.snapshots,
        }
        for room in report.rooms
    ]


def _copied(rates: Sequence[CopyRate]) -> list[dict[str, Any]]:
    from tpuctl.lib.time import render_time

    return [
        {
            "disk": each.disk,
            "copies": each.copies,
            "limit": each.limit,
            "next_at": None if each.next_at is None else render_time(each.next_at),
        }
        for each in rates
    ]


def _holders(report: QuotaReport) -> list[dict[str, Any]]:
    from tpuctl.model.resources import KIND_WORDS

    return [
        {
            "user": row.holding.resource.user,
            "name": row.holding.resource.name,
            "kind": KIND_WORDS[row.holding.resource.kind],
            "type": row.holding.resource.type,
            "zone": row.holding.resource.location,
            "tier": str(row.holding.tier),
            "state": row.holding.resource.state,
            "hosts": row.holding.hosts,
            "chips": row.holding.chips,
            "price": None if row.price is None else round(row.price, 2),
            "dead": row.holding.dead,
            "collect": row.collect,
        }
        for row in report.holders
    ]


def _grants(report: QuotaReport) -> list[dict[str, Any]]:
    return [
        {
            "zone": row.grant.zone,
            "tier": str(row.grant.tier),
            "generation": row.grant.generation,
            "live": row.live,
            "chips": row.grant.chips,
            "ends": row.grant.ends,
        }
        for row in report.grants
    ]


def _matters(row: dict[str, Any]) -> bool:
    """Whose quotas of disks nobody uses need no line."""
    of_hosts = row["hosts"] is not None or row["slices"] is not None
    return bool(of_hosts or row["used"] or not row["free"])


def _show(context: AppContext, report: QuotaReport, rates: Sequence[CopyRate]) -> None:
    """Tables on stdout; what is dead and what was not read as talk."""
    console = context.console
    tables = (
        (_tpu(report), TPU),
        ([row for row in _side(report) if _matters(row)], SIDE),
        (_copied(rates), COPIED),
        (_holders(report), HOLDERS),
        (_grants(report), GRANTS),
    )
    for index, (rows, columns) in enumerate((rows, columns) for rows, columns in tables if rows):
        if index:
            console.line()
        console.table(rows, columns)
    for row in report.holders:
        if row.collect:
            held = row.holding.resource
            what = f"{held.name} in {held.location} is {held.state}"
            console.warn(f"{what} and still holds quota: {row.collect}")
    for each in report.unread:
        console.caveat(f"not read: {each.what}: {each.why}{f' ({each.fix})' if each.fix else ''}")
    unpriced = f", and {report.unpriced} without a known price" if report.unpriced else ""
    text = f"about ${report.cost:.2f} per hour{unpriced} ({report.prices_note})"
    console.line()
    for line in wrap(text, console.prose_width - len(console.mark)):
        console.line(f"{' ' * len(console.mark)}{line}")
