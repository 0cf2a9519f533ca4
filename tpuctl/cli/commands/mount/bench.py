"""`mount bench` and `mount cost`."""

from __future__ import annotations

from typing import Annotated

import typer

from tpuctl.cli.console import Column, Console
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import MountPoint
from tpuctl.lib.options import Option
from tpuctl.model.requests import ToSlice

MEASURED = (
    Column("worker", "WORKER", right=True),
    Column("write_gb_s", "WRITE GB/S", right=True),
    Column("read_gb_s", "READ GB/S", right=True),
    Column("errors", "ERRORS", give=1),
)
PRICED = (
    Column("what", "OPERATIONS", give=1),
    Column("operations", "CLASS"),
    Column("first_day", "FIRST DAY", right=True),
    Column("later_day", "EACH DAY", right=True),
    Column("usd_month", "USD/MONTH", right=True),
)


def bench(
    context: AppContext,
    path: MountPoint,
    on: ToSlice = None,
    size: Annotated[int, Option("Of the object of each host.", metavar="MIB", minimum=1)] = 1024,
    timeout: Annotated[float, Option("For writing, and for reading.", metavar="SECONDS", minimum=1)] = 600.0,
) -> None:
    """Measure how fast all hosts write and read at once.

    Each writes an object and reads that of the next host; the objects are removed. On a read-only mount all
    read one that this machine uploads.
    """
    from tpuctl.errors import PartialError
    from tpuctl.lib.text import counted
    from tpuctl.model.shipped_files import read_template
    from tpuctl.mounts.bench import bench_mount
    from tpuctl.slices.choose import resolve_slice

    record = resolve_slice(context, on, flag="--on")
    script = read_template("mount_bench.py")
    found = bench_mount(context, record, path, script, size_mib=size, timeout_s=timeout)
    if context.console.json_mode:
        context.console.data(found)
        if found["errors"]:
            raise typer.Exit(PartialError.exit_code)
        return
    together = {**found, "worker": "all", "errors": [str(found["errors"])] if found["errors"] else []}
    shown = [
        {
            **row,
            "errors": "; ".join(row["errors"]),
            **{key: _rate(row[key]) for key in ("write_gb_s", "read_gb_s")},
        }
        for row in (*found["hosts"], together)
    ]
    context.console.table(shown, MEASURED)
    bad = [row["worker"] for row in found["hosts"] if row["errors"]]
    if bad:
        hint = f"tpuctl mount check --on {record.name}"
        raise PartialError(
            f"{path}: errors on {counted(len(bad), 'host')}", hint=hint, details={"workers": bad}
        )


def _rate(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"


def cost(
    console: Console,
    files: Annotated[int, Option("Files behind the mount.", metavar="N", minimum=1)],
    hosts: Annotated[int, Option("Hosts that mount it.", metavar="N", minimum=1)],
    profile: Annotated[str, Option("checkpoint, train, dataset or shared-code.", metavar="PROFILE")] = "train",
    ttl: Annotated[str | None, Option("Instead of the profile's.", metavar="0|SECONDS|forever")] = None,
    passes: Annotated[float, Option("How often a day a host opens every file.", metavar="N", minimum=0)] = 24.0,
    place: Annotated[str, Option("region, dual-region or multi-region.", metavar="KIND")] = "region",
) -> None:
    """Estimate what the operations of a mount cost at most.

    Each host lists all files and opens each of them --passes times a day. Prices are a snapshot, in USD.
    """
    from tpuctl.errors import UsageError
    from tpuctl.lib.codec import to_data
    from tpuctl.mounts.bench import MountUse, operation_costs, total_usd
    from tpuctl.mounts.follow import load_rules, parse_ref
    from tpuctl.mounts.render import options_of
    from tpuctl.mounts.spec import options_said

    rules = load_rules()
    prices = rules.prices["operations"]
    if place not in prices:
        raise UsageError.of("place", f"there is no kind of place {place!r}", f"one of: {', '.join(prices)}")
    said = options_said({"ttl": ttl} if ttl is not None else {})
    ref = parse_ref(rules, f"gs://bucket:/mnt/bucket:{profile}", said)
    rows = operation_costs(options_of(rules, ref, rules.pinned), MountUse(hosts, files, passes), prices[place])
    if console.json_mode:
        console.data({"usd_month": total_usd(rows), "operations": to_data(rows)})
        return
    shown = [
        {
            **to_data(row),
            "first_day": f"{row.first_day:,}",
            "later_day": f"{row.later_day:,}",
            "usd_month": f"{row.usd_month:,.2f}",
        }
        for row in rows
    ]
    console.table(shown, PRICED)
    console.say(
        f"about {total_usd(rows):,.2f} USD a month at most, by the list of cloud.google.com/storage/pricing"
    )
