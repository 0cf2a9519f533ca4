"""`sim set`, `sim capacity` and `sim reservation`: what the simulated cloud has and shows."""

from __future__ import annotations

from typing import Annotated

import typer

from tpuctl.cli.commands.sim.lifecycle import Node, NodeZone, OnlyWorkers, app, console_of
from tpuctl.cli.console import Column
from tpuctl.cli.running_sim import running_sim
from tpuctl.errors import UsageError
from tpuctl.lib.options import Option, argument

__all__ = ["app"]


@app.command("set")
def set_fields(
    ctx: typer.Context,
    name: Annotated[str, argument("NAME", "Node or queued resource, such as big-1.")],
    fields: Annotated[list[str], argument("FIELD=VALUE...", "What the API shows then.")],
    zone: NodeZone = None,
) -> None:
    """Set what the API shows of a node: state, health, maintenance.

    Fields of a node are state, health, healthDescription, symptom (OUT_OF_MEMORY, or OUT_OF_MEMORY:3 for
    worker 3) and maintenance (SCHEDULED, UNSCHEDULED); NONE takes the last three away again. A queued resource
    has state. Only what the API shows changes: hosts go on running.
    """
    from tpuctl.sim.server import control
    from tpuctl.sim.world.steering import parse_fields

    for each in control.set_fields(running_sim(), name, zone, parse_fields(fields)):
        console_of(ctx).say(f"set {each}")


@app.command("capacity", json=True)
def capacity(
    ctx: typer.Context,
    limits: Annotated[
        list[str] | None, argument("[ZONE=CHIPS]...", "Chips that there are, or `plenty`.")
    ] = None,
) -> None:
    """Limit the capacity of a zone; without arguments, list limits.

    Existing nodes stay until `sim preempt`. A node created directly meets a stockout; queued resources wait
    until there is room.
    """
    from tpuctl.sim.server import control
    from tpuctl.sim.world.steering import parse_chips

    now = control.set_capacity(running_sim(), parse_chips(limits or []))
    rows = [{"zone": zone, "chips": chips} for zone, chips in sorted(now.items())]
    columns = (Column("zone", "ZONE"), Column("chips", "CHIPS", right=True))
    console_of(ctx).table(rows, columns, empty="plenty everywhere")


@app.command("reservation", json=True)
def reservation(
    ctx: typer.Context,
    name: Annotated[str | None, argument("[NAME]", "Its name.")] = None,
    zone: Annotated[str, Option("Where its chips are.", metavar="ZONE")] = "",
    generation: Annotated[str, Option("Of which kind, such as v4.", metavar="GENERATION")] = "",
    chips: Annotated[int, Option("How many; 0 removes it.", metavar="N")] = 0,
) -> None:
    """Set a reservation; without arguments, list them.

    Whoever asks for reserved capacity gets it from one of these, or none.
    """
    from tpuctl.sim.server import control

    if name is None and (zone or generation or chips):
        raise UsageError("a reservation has a name", hint="tpuctl sim reservation ours --zone ...")
    change = {"name": name, "zone": zone, "generation": generation, "chips": chips}
    found = control.reservations(running_sim(), change if name else None)
    columns = (
        Column("name", "NAME"),
        Column("zone", "ZONE"),
        Column("generation", "GENERATION"),
        Column("chips", "CHIPS", right=True),
        Column("used", "USED", right=True),
    )
    console_of(ctx).table(found, columns, empty="no reservations")


@app.command("crash")
def crash(ctx: typer.Context, node: Node, worker: OnlyWorkers = None, zone: NodeZone = None) -> None:
    """Kill hosts of a node, while the API still says READY."""
    from tpuctl.sim.server import control

    for name in control.crash(running_sim(), node, zone, worker or ()):
        console_of(ctx).say(f"crashed hosts of {name}")


@app.command("delay", json=True)
def delay(
    ctx: typer.Context,
    delays: Annotated[list[str] | None, argument("[NAME=SECONDS]...", "Which step takes how long.")] = None,
) -> None:
    """Set delays; without arguments, list them.

    Seconds are those of the real cloud: --speed divides them.
    """
    from tpuctl.sim.server import control
    from tpuctl.sim.world.steering import parse_seconds

    now = control.set_delays(running_sim(), parse_seconds(delays or []))
    rows = [{"delay": name, "seconds": seconds} for name, seconds in now.items()]
    columns = (Column("delay", "DELAY"), Column("seconds", "SECONDS", right=True))
    console_of(ctx).table(rows, columns, empty="none")
