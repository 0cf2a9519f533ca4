"""`sim`: the simulated cloud on this machine."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl.cli.console import Column, Console
from tpuctl.cli.running_sim import facts_of, running_sim, show_facts, sim_state_dir
from tpuctl.errors import UsageError
from tpuctl.lib.options import Flag, Option, argument
from tpuctl.lib.text import parse_number
from tpuctl.model.requests import SimRequest
from tpuctl.sim.server import control, environment
from tpuctl.sim.server.options import PROCESS, SimOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


Node = Annotated[str, argument("NODE", "Node, queued resource, instance or group, such as big-1.")]
NodeZone = Annotated[str | None, Option("Its zone, if the name is not enough.", metavar="ZONE")]
OnlyWorkers = Annotated[list[int] | None, Option("Only this worker's host; repeatable.", metavar="N")]


def up(ctx: typer.Context, console: Console, request: SimRequest) -> None:
    """Start the simulator, unless it runs already.

    If it runs already, other options than its own are refused.
    """
    from tpuctl.sim.hosts.init import keeps_root

    options = _options(ctx, request)
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


def down(console: Console) -> None:
    """Stop the simulator.

    Its hosts and everything on them are gone; its buckets stay for the next one.
    """
    was_running = control.down(sim_state_dir())
    console.say("stopped" if was_running else "was not running")


def status(console: Console) -> None:
    """Show the addresses of the simulator and what is in it."""
    info = running_sim()
    state = control.state(info)
    if console.json_mode:
        console.data({**facts_of(info), "state": state, "faults": control.faults(info)})
        return
    show_facts(console, info)
    nodes = [
        {"name": str(node.get("name", "")).rsplit("/", 1)[-1], "state": node.get("state")}
        for node in state.get("nodes", [])
    ]
    nodes += [{"name": each["name"], "state": each["status"]} for each in state.get("instances", [])]
    console.table(nodes, (Column("name", "NODE"), Column("state", "STATE")), empty="no nodes")


def env(
    console: Console,
    https: Annotated[
        bool, Option("For programs that know no address but Google's own: a proxy for those.")
    ] = False,
) -> None:
    """Print variables for gcloud and other clients.

    Use them as: eval "$(tpuctl sim env)"

    With --https, programs in any language that honour HTTPS_PROXY find it under Google's own names, with
    credentials and a certificate authority of its own; no request for those names leaves the machine.
    """
    info = running_sim()
    variables = environment.https_environment(info) if https else environment.environment(info)
    if console.json_mode:
        console.data(variables)
        return
    if https:
        console.line(f"unset {' '.join(environment.emulator_variables(info))}")
    for name, value in variables.items():
        console.line(f"export {name}={shlex.quote(value)}")


def preempt(console: Console, node: Node, worker: OnlyWorkers = None, zone: NodeZone = None) -> None:
    """Preempt a node, an instance or a group.

    As in the cloud, its hosts are shut down in order, then their disks are wiped. Instances of Compute Engine
    are stopped and keep their disks, unless they were made with the termination action DELETE. With --worker
    some members of a group are preempted; hosts of one node always are together.
    """
    for name in control.act(running_sim(), "preempt", node, zone, worker or ()):
        console.say(f"preempted {name}")


def reboot(console: Console, node: Node, worker: OnlyWorkers = None, zone: NodeZone = None) -> None:
    """Reboot the hosts of a node, as maintenance does.

    Programs get SIGTERM, disks stay, the node stays READY.
    """
    for name in control.act(running_sim(), "reboot", node, zone, worker or ()):
        console.say(f"rebooting {name}")


def load(
    console: Console,
    node: Node,
    fields: Annotated[list[str] | None, argument("[FIELD=VALUE]...", "What its chips seem to do.")] = None,
    worker: OnlyWorkers = None,
    zone: NodeZone = None,
    off: Annotated[bool, Option("No program runs there any more.")] = False,
) -> None:
    """Let the chips of a node seem busy, for `tpuctl top`.

    Its hosts get libtpu's metrics service, as they have it while a program uses the chips. Fields: hbm_gib of
    each device, duty and bandwidth in percent, queue, idle_s; ports=8431,8432 for two processes on each host;
    launch, run, fingerprint, error and location of what the cores execute; server=answers, hangs, drifted
    (other metrics) or plain (tells neither what it has nor what cores execute). What was said before stays.
    """
    from tpuctl.sim.world.steering import parse_fields

    if off and fields:
        raise UsageError("--off takes no fields", hint=f"tpuctl sim load {node} --off")
    changes = None if off else parse_fields(fields or [], "duty=90")
    for name in control.act(running_sim(), "load", node, zone, worker or (), fields=changes):
        console.say(f"{'no load on' if off else 'load on'} {name}")


def fault(
    console: Console,
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
    Of instances: stockout-instances, preempt-deletes.
    Of projects: no-network, no-actas. Of hosts: no-internet, no-metadata, os-login-policy, late-keys,
    login-ban, hard-delete, hard-preempt, guest-attributes-late, guest-attributes-absent and
    guest-attributes-refused.
    """
    info = running_sim()
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


def quota(
    console: Console,
    limits: Annotated[list[str] | None, argument("[KEY=N]...", "What to limit.")] = None,
) -> None:
    """Set quotas; without arguments, list those that are set.

    KEY is ZONE or REGION, either with /GENERATION (most chips), one of IN_USE_ADDRESSES, INSTANCES,
    DISKS_TOTAL_GB, SSD_TOTAL_GB and HDB_TOTAL_GB with or without /REGION, HEALTH_CHECKS, or SNAPSHOTS. What
    nobody limits is plenty.
    """
    now = control.set_quotas(running_sim(), _parse_quotas(limits or []))
    rows = [{"quota": key, "limit": limit} for key, limit in sorted(now.items())]
    columns = (Column("quota", "QUOTA"), Column("limit", "LIMIT", right=True))
    console.table(rows, columns, empty="no limits")


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


def reset(console: Console) -> None:
    """Delete everything in the simulated cloud, buckets too.

    Addresses and token stay.
    """
    control.reset(running_sim())
    console.say("empty again")


def set_fields(
    console: Console,
    name: Annotated[str, argument("NAME", "Node or queued resource, such as big-1.")],
    fields: Annotated[list[str], argument("FIELD=VALUE...", "What the API shows then.")],
    zone: NodeZone = None,
) -> None:
    """Set what the API shows of a node: state, health, maintenance.

    Fields of a node are state, health, healthDescription, symptom (OUT_OF_MEMORY, or OUT_OF_MEMORY:3 for
    worker 3) and maintenance (SCHEDULED, UNSCHEDULED); NONE takes the last three away again. A queued resource
    has state. Only what the API shows changes: hosts go on running.
    """
    from tpuctl.sim.world.steering import parse_fields

    for each in control.set_fields(running_sim(), name, zone, parse_fields(fields)):
        console.say(f"set {each}")


def capacity(
    console: Console,
    limits: Annotated[
        list[str] | None, argument("[ZONE=CHIPS]...", "Chips that there are, or `plenty`.")
    ] = None,
) -> None:
    """Limit the capacity of a zone; without arguments, list limits.

    Existing nodes stay until `sim preempt`. A node created directly meets a stockout; queued resources wait
    until there is room.
    """
    from tpuctl.sim.world.steering import parse_chips

    now = control.set_capacity(running_sim(), parse_chips(limits or []))
    rows = [{"zone": zone, "chips": chips} for zone, chips in sorted(now.items())]
    columns = (Column("zone", "ZONE"), Column("chips", "CHIPS", right=True))
    console.table(rows, columns, empty="plenty everywhere")


def reservation(
    console: Console,
    name: Annotated[str | None, argument("[NAME]", "Its name.")] = None,
    zone: Annotated[str, Option("Where its chips are.", metavar="ZONE")] = "",
    generation: Annotated[str, Option("Of which kind, such as v4.", metavar="GENERATION")] = "",
    chips: Annotated[int, Option("How many; 0 removes it.", metavar="N")] = 0,
) -> None:
    """Set a reservation; without arguments, list them.

    Whoever asks for reserved capacity gets it from one of these, or none.
    """
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
    console.table(found, columns, empty="no reservations")


def crash(console: Console, node: Node, worker: OnlyWorkers = None, zone: NodeZone = None) -> None:
    """Kill hosts of a node, while the API still says READY."""
    for name in control.act(running_sim(), "crash", node, zone, worker or ()):
        console.say(f"crashed hosts of {name}")


def delay(
    console: Console,
    delays: Annotated[list[str] | None, argument("[NAME=SECONDS]...", "Which step takes how long.")] = None,
) -> None:
    """Set delays; without arguments, list them.

    Seconds are those of the real cloud: --speed divides them.
    """
    from tpuctl.sim.world.steering import parse_seconds

    now = control.set_delays(running_sim(), parse_seconds(delays or []))
    rows = [{"delay": name, "seconds": seconds} for name, seconds in now.items()]
    columns = (Column("delay", "DELAY"), Column("seconds", "SECONDS", right=True))
    console.table(rows, columns, empty="none")
