"""`sim`: the simulated cloud on this machine."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl.cli.app import new_group
from tpuctl.cli.console import Column, Console
from tpuctl.cli.invocation import invocation
from tpuctl.cli.running_sim import facts_of, running_sim, show_facts, sim_state_dir
from tpuctl.errors import UsageError
from tpuctl.lib.options import Flag, Option, argument
from tpuctl.lib.text import parse_number
from tpuctl.model.requests import SimRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpuctl.sim.server.options import SimOptions


Node = Annotated[str, argument("NODE", "Node or queued resource, such as big-1.")]
NodeZone = Annotated[str | None, Option("Its zone, if the name is not enough.", metavar="ZONE")]
OnlyWorkers = Annotated[list[int] | None, Option("Only this worker's host; repeatable.", metavar="N")]
app = new_group("Start and control the simulated cloud.")


def console_of(ctx: typer.Context) -> Console:
    shared = invocation(ctx)
    return Console(json_mode=shared.json, quiet=shared.quiet, label="sim")


@app.command("up", json=True)
def up(ctx: typer.Context, request: SimRequest) -> None:
    """Start the simulator, unless it runs already.

    If it runs already, other options than its own are refused.
    """
    from tpuctl.sim.hosts.init import keeps_root
    from tpuctl.sim.server import control
    from tpuctl.sim.server.options import PROCESS

    console, options = console_of(ctx), _options(ctx, request)
    if options.hosts == PROCESS and keeps_root():
        console.warn(
            "programs on simulated hosts run as root of this machine, as it withholds CAP_DAC_READ_SEARCH from "
            "the simulator; with Docker: --cap-add DAC_READ_SEARCH, or run tpuctl as another user"
        )
    if request.foreground:
        from tpuctl.sim.server.supervisor import run_foreground

        console.say("runs until Ctrl-C; `tpuctl sim status` shows where it answers")
        run_foreground(sim_state_dir(), options)
        return
    show_facts(console, control.up(sim_state_dir(), options))
    console.say("use it with --profile sim or TPUCTL_PROFILE=sim; `tpuctl sim down` ends it")


def _options(ctx: typer.Context, request: SimRequest) -> SimOptions:
    """Those that were typed, over those of the simulator that runs."""
    from tpuctl.sim.server import control
    from tpuctl.sim.server.options import SimOptions

    running = control.status(sim_state_dir())
    values: dict[str, Any] = {
        **{name: getattr(request, name) for name in ("project", "speed", "seed", "hosts", "firewall")},
        "delays": "instant" if request.instant else "realistic",
        "quotas": _parse_quotas(request.quota),
        "catalog": None if request.catalog is None else str(request.catalog.absolute()),
    }
    words = {"delays": "instant", "quotas": "quota"}
    typed = {name for name in values if _was_typed(ctx, words.get(name, name))}
    before = SimOptions() if running is None else SimOptions(**running.options)
    return replace(before, **{name: values[name] for name in typed})


def _was_typed(ctx: typer.Context, parameter: str) -> bool:
    source = ctx.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


@app.command("down")
def down(ctx: typer.Context) -> None:
    """Stop the simulator.

    Its hosts and everything on them are gone; its buckets stay for the next one.
    """
    from tpuctl.sim.server import control

    was_running = control.down(sim_state_dir())
    console_of(ctx).say("stopped" if was_running else "was not running")


@app.command("status", json=True)
def status(ctx: typer.Context) -> None:
    """Show the addresses of the simulator and what is in it."""
    from tpuctl.sim.server import control

    info = running_sim()
    state = control.state(info)
    console = console_of(ctx)
    if console.json_mode:
        console.data({**facts_of(info), "state": state, "faults": control.faults(info)})
        return
    show_facts(console, info)
    nodes = [
        {"name": str(node.get("name", "")).rsplit("/", 1)[-1], "state": node.get("state")}
        for node in state.get("nodes", [])
    ]
    console.table(nodes, (Column("name", "NODE"), Column("state", "STATE")), empty="no nodes")


@app.command("env", json=True)
def env(
    ctx: typer.Context,
    https: Annotated[
        bool, Option("For programs that know no address but Google's own: a proxy for those.")
    ] = False,
) -> None:
    """Print variables for gcloud and other clients.

    Use them as: eval "$(tpuctl sim env)"

    With --https, programs in any language that honour HTTPS_PROXY find it under Google's own names, with
    credentials and a certificate authority of its own; no request for those names leaves the machine.
    """
    from tpuctl.sim.server import environment

    console, info = console_of(ctx), running_sim()
    variables = environment.https_environment(info) if https else environment.environment(info)
    if console.json_mode:
        console.data(variables)
        return
    if https:
        console.line(f"unset {' '.join(environment.emulator_variables(info))}")
    for name, value in variables.items():
        console.line(f"export {name}={shlex.quote(value)}")


@app.command("preempt")
def preempt(ctx: typer.Context, node: Node, zone: NodeZone = None) -> None:
    """Preempt a node.

    As in the cloud, its hosts are shut down in order, then their disks are wiped.
    """
    from tpuctl.sim.server import control

    for name in control.preempt(running_sim(), node, zone):
        console_of(ctx).say(f"preempted {name}")


@app.command("reboot")
def reboot(ctx: typer.Context, node: Node, worker: OnlyWorkers = None, zone: NodeZone = None) -> None:
    """Reboot the hosts of a node, as maintenance does.

    Programs get SIGTERM, disks stay, the node stays READY.
    """
    from tpuctl.sim.server import control

    for name in control.reboot(running_sim(), node, zone, worker or ()):
        console_of(ctx).say(f"rebooting {name}")


@app.command("fault", json=True)
def fault(
    ctx: typer.Context,
    preset: Annotated[str | None, argument("[PRESET]", "One of those above.")] = None,
    settings: Annotated[
        list[str] | None,
        Option("A field of the fault; repeatable.", flags=(Flag("--set"),), metavar="KEY=VALUE"),
    ] = None,
    clear: Annotated[bool, Option("Remove the faults that have not occurred yet.")] = False,
) -> None:
    """Add a fault; without arguments, list those that are set.

    Presets: stockout, stockout-now and reserved-shortage (for nodes asked for with --direct), queued-internal,
    queued-quota, flapping, rate-limit, conflict, blip, late-create, slow-operation, lost-response,
    stuck-deleting, failing-stop, failing-start, failing-patch, failing-delete, failing-queued-create,
    location-denied, api-off, billing-disabled, no-permission, expired-token, clock-off, storage-rate-limit,
    storage-unavailable, storage-lost-response, storage-slow-reads, storage-hang, bucket-deleted.
    Of disks: disk-in-use, disk-attach, snapshot-rate, disk-quota, unmarked-disks, device-order.
    Of projects: no-network, no-actas. Of hosts: no-internet, no-metadata, os-login-policy, late-keys,
    login-ban, hard-delete, hard-preempt, guest-attributes-late, guest-attributes-absent and
    guest-attributes-refused.
    """
    from tpuctl.sim.server import control

    info = running_sim()
    console = console_of(ctx)
    if clear:
        control.clear_faults(info)
    spec: dict[str, Any] = dict(_parse_field(word) for word in settings or [])
    if preset is not None:
        spec["preset"] = preset
    if spec:
        planned = control.fault(info, spec)
        if planned["method"] == "nodes.create":
            console.say(ONLY_DIRECT)
    columns = (
        Column("kind", "KIND"),
        Column("method", "METHOD"),
        Column("name", "NAME", give=1),
        Column("times", "TIMES", right=True),
        Column("message", "MESSAGE", give=2),
    )
    faults = control.faults(info)
    console.table(faults if console.json_mode else list(map(_fault_line, faults)), columns, empty="no faults")


ONLY_DIRECT = (
    "this affects `tpuctl up --direct`; a queued resource waits instead where there is no capacity: "
    "`tpuctl sim capacity ZONE=0`"
)


def _fault_line(fault: Mapping[str, Any]) -> dict[str, Any]:
    """A fault as a person reads it: one that stands has no times, and only errors have a message."""
    from tpuctl.sim.world.faults import STANDING, WITH_MESSAGE

    lasting = fault["kind"] in STANDING or fault["times"] == 0
    return {
        **fault,
        "times": "until cleared" if lasting else fault["times"],
        "message": fault["message"] if fault["kind"] in WITH_MESSAGE else "",
    }


def _parse_field(word: str) -> tuple[str, Any]:
    name, equals, value = word.partition("=")
    if not equals:
        raise UsageError(f"--set {word!r} has no '='", hint="--set times=2")
    if value in ("true", "false"):
        return name, value == "true"
    try:
        return name, float(value) if "." in value else int(value)
    except ValueError:
        return name, value


@app.command("quota", json=True)
def quota(
    ctx: typer.Context,
    limits: Annotated[list[str] | None, argument("[KEY=N]...", "What to limit.")] = None,
) -> None:
    """Set quotas; without arguments, list those that are set.

    KEY is ZONE or REGION, either with /GENERATION (most chips), one of IN_USE_ADDRESSES, INSTANCES,
    DISKS_TOTAL_GB, SSD_TOTAL_GB and HDB_TOTAL_GB with or without /REGION, HEALTH_CHECKS, or SNAPSHOTS. What
    nobody limits is plenty.
    """
    from tpuctl.sim.server import control

    now = control.set_quotas(running_sim(), _parse_quotas(limits or []))
    rows = [{"quota": key, "limit": limit} for key, limit in sorted(now.items())]
    columns = (Column("quota", "QUOTA"), Column("limit", "LIMIT", right=True))
    console_of(ctx).table(rows, columns, empty="no limits")


def _parse_quotas(words: Sequence[str]) -> dict[str, int]:
    from tpuctl.sim.world.catalog import load_catalog
    from tpuctl.sim.world.quotas import check_keys

    quotas = {}
    for word in words:
        key, _, limit = word.partition("=")
        number = parse_number(limit)
        if number is None:
            raise UsageError(f"{word[:80]!r} is not KEY=N", hint="IN_USE_ADDRESSES/us-central2=8")
        quotas[key] = number
    if quotas:
        check_keys(quotas, load_catalog())
    return quotas


@app.command("reset")
def reset(ctx: typer.Context) -> None:
    """Delete everything in the simulated cloud, buckets too.

    Addresses and token stay.
    """
    from tpuctl.sim.server import control

    control.reset(running_sim())
    console_of(ctx).say("empty again")
