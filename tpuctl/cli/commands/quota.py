"""`quota`: what is allowed, what is taken and by whom, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext, open_context
from tpuctl.cli.options import Json, Quiet
from tpuctl.cli.wrapping import wrap

if TYPE_CHECKING:
    from tpuctl.money.quota_report import QuotaReport

TPU = (
    Column("place", "TPU QUOTA IN", give=1),
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
    ctx: typer.Context,
    zone: Annotated[
        list[str] | None,
        typer.Option("--zone", metavar="ZONE", help="Also this zone; repeatable."),
    ] = None,
    json: Json = False,  # noqa: ARG001 - acts through its callback
    quiet: Quiet = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Show quotas, who uses them, grants, and the cost per hour.

    Hosts also use up quotas of Compute Engine (addresses, instances, health checks): these are the side
    quotas. Shows the zones of your settings, your grants and existing TPUs; all zones if there are none. The
    API returns only the limits of TPU quotas: their use is counted from the TPUs of the project.
    """
    from tpuctl.lib.names import check_zone_name
    from tpuctl.model.shipped_files import load_accelerators
    from tpuctl.money.quota_report import quota_report

    with open_context(ctx) as context:
        zones = [check_zone_name(name) for name in zone or context.config.zone]
        _ = context.credentials
        report = quota_report(context, load_accelerators(), zones)
        if context.console.json_mode:
            context.console.data(_document(report))
            return
        _show(context, report)


def _document(report: QuotaReport) -> dict[str, Any]:
    return {
        "tpu": _tpu(report),
        "side": _side(report),
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
        }
        for room in report.rooms
    ]


def _holders(report: QuotaReport) -> list[dict[str, Any]]:
    from tpuctl.model.cloud import ResourceKind

    return [
        {
            "user": row.holding.resource.user,
            "name": row.holding.resource.name,
            "kind": "node" if row.holding.resource.kind is ResourceKind.NODE else "queued resource",
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


def _show(context: AppContext, report: QuotaReport) -> None:
    """Tables on stdout; what is dead and what was not read as talk."""
    console = context.console
    tables = (
        (_tpu(report), TPU),
        (_side(report), SIDE),
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
    text = f"about ${report.cost:.2f} per hour at list prices{unpriced} ({report.prices_note})"
    console.line()
    for line in wrap(text, console.prose_width - len(console.mark)):
        console.line(f"{' ' * len(console.mark)}{line}")
