"""One slice in words: the names that people use for what `status --json` holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tpuctl.cli.context import AppContext
from tpuctl.lib.text import counted, fold_workers
from tpuctl.lib.time import render_age, render_seconds

if TYPE_CHECKING:
    from tpuctl.model.records import SliceRecord
    from tpuctl.slices.bring_up import Price
    from tpuctl.slices.resolve import WantedSlice


def status_lines(facts: Mapping[str, Any], now: float) -> dict[str, str]:
    """Names and values to show, in order; what does not apply is left out. `facts`: see `slice_status`."""
    lines = {
        "slice": facts["name"],
        "state": _state(facts),
        "cloud says": facts["cloud"],
        "type": _size(facts),
        "zone": facts["zone"],
        "also asked for in": "; ".join(_rival(place, facts["type"]) for place in facts["race"]),
        "tier": facts["tier"],
        "asked for as": _asked_as(facts["queued"], facts["machine_type"], facts["hosts"]),
        "software": facts["runtime_version"],
        **{name.replace("_", " "): value for name, value in facts["options"].items()},
        "mounts now": _mounts(facts["mounts"]),
        "environment": facts["env"],
        "user": facts["user"],
        "login as": facts["login_user"],
        "run": "; ".join(map(_run, facts["runs"])),
        "trouble": "; ".join(run["trouble"] for run in facts["runs"] if run["trouble"]),
        "data": "synthetic" if any(run["synthetic"] for run in facts["runs"]) else "",
        "created": ago(facts["created"], now),
        "node": facts["node"] or "",
        "requested": ago(facts["requested"], now),
        "ready since": _ready(facts, now),
        "last loss": _loss(facts["last_loss"], now),
        "taken down": _end(facts, now),
        "cost": _cost(facts),
    }
    return {name: text for name, text in lines.items() if text}


def _asked_as(queued: bool, machine_type: str, hosts: int) -> str:
    """`machine_type` is said of slices of Compute Engine alone."""
    if machine_type:
        what = "an instance" if hosts == 1 else "a group of instances"
        return f"{what} of Compute Engine, {machine_type}"
    return "queued resource" if queued else "node, directly"


def fleet_cells(row: Mapping[str, Any], now: float) -> dict[str, Any]:
    """A row of `fleet_rows` with what the table shows in two columns of few characters."""
    created = row["created"]
    age = None if created is None else render_age(now - _seconds(created))
    made_up = "synthetic" if row.get("synthetic") else None
    return {**row, "age": age, "hour": _hour(row), "made_up": made_up}


def _hour(row: Mapping[str, Any]) -> str:
    """`grant` where one covers it, the list price where you pay, a dash where that is unknown or nothing is
    paid."""
    if row["payer"] == "grant":
        return "grant"
    price = row["usd_per_hour"] if row["payer"] == "you" else None
    return "" if price is None else f"{price:.2f}"


def _cost(facts: Mapping[str, Any]) -> str:
    if not facts["payer"]:
        return ""
    price = facts["usd_per_hour"]
    if facts["payer"] == "nobody":
        return str(facts["paid"])
    cost = "price unknown" if price is None else f"about ${price:.2f} per hour"
    return f"nothing, {facts['paid']} ({cost})" if facts["payer"] == "grant" else f"{cost}: {facts['paid']}"


def _state(facts: Mapping[str, Any]) -> str:
    return str(facts["state"]) if facts["desired"] == "up" else f"{facts['state']} (to be taken down)"


def _size(facts: Mapping[str, Any]) -> str:
    kind = facts["type"] if facts["slices"] == 1 else f"{facts['slices']} x {facts['type']}"
    devices = f" ({counted(facts['devices'], 'device')})" if facts["devices"] > facts["chips"] else ""
    return f"{kind}, {counted(facts['hosts'], 'host')}, {counted(facts['chips'], 'chip')}{devices}"


def _rival(place: Mapping[str, Any], kind: str) -> str:
    """Another place of a race; with its type where that is another."""
    why = f": {place['why']}" if place["why"] else ""
    as_other = f" as {place['type']}" if place["type"] != kind else ""
    return f"{place['zone']}{as_other} ({place['node']}, {place['state']}{why})"


def _run(run: Mapping[str, Any]) -> str:
    """With its chips beside other runs, and what its last attempt failed of, while it is tried again."""
    from tpuctl.runs.chips import describe_chips

    failure, chips = run["failure"], describe_chips(run["chips"])
    said = f"{run['id']} ({run['state']}{f' on {chips}' if chips else ''})"
    return said + (f"; before: {failure['signature']}" if failure else "")


def _mounts(rows: Sequence[Mapping[str, Any]]) -> str:
    """How the mounts are, those with the same health together."""
    groups: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        groups.setdefault((row["path"], row["health"]), []).append(row["worker"])
    return "; ".join(
        f"{path} on worker{'' if len(workers) == 1 else 's'} {fold_workers(workers)}: {health}"
        for (path, health), workers in groups.items()
    )


def ago(moment: str | None, now: float) -> str:
    """A moment, and how long ago it was."""
    return "" if moment is None else f"{moment}, {render_seconds(now - _seconds(moment))} ago"


def _ready(facts: Mapping[str, Any], now: float) -> str:
    if facts["ready"] is None or facts["requested"] is None:
        return ""
    took = render_seconds(_seconds(facts["ready"]) - _seconds(facts["requested"]))
    return f"{ago(facts['ready'], now)}; it took {took}"


def _loss(loss: Mapping[str, Any] | None, now: float) -> str:
    return "" if loss is None else f"{loss['kind']} {ago(loss['at'], now)}: {loss['detail']}"


def _end(facts: Mapping[str, Any], now: float) -> str:
    """When it goes by itself."""
    at, idle, cloud = facts["ends"], facts["stop_when_idle_s"], facts["ends_in_cloud"]
    parts = [] if at is None else [f"at {at}, in {render_seconds(_seconds(at) - now)}"]
    if idle is not None:
        parts.append(f"when unused for {render_seconds(idle)}")
    if cloud is not None:
        parts.append(f"by Compute Engine itself at {cloud}, in {render_seconds(_seconds(cloud) - now)}")
    return ", or ".join(parts)


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def print_preview(context: AppContext, wanted: WantedSlice, found: SliceRecord | Price | str) -> None:
    """What `up` would do: wait for the slice that is `found`, change its hosts, or request one at a price."""
    from tpuctl.lib.codec import to_data
    from tpuctl.model.records import SliceRecord
    from tpuctl.slices.lifetime import describe_limits

    console = context.console
    ends = describe_limits(wanted.limits)
    if isinstance(found, SliceRecord) and console.json_mode:
        console.data({"dry_run": True, "name": found.name, "state": str(found.state), "wanted": True})
    elif isinstance(found, SliceRecord):
        console.sentence(f"{found.name} is wanted already and {found.state}: would wait until it is ready")
    elif console.json_mode:
        summary = found if isinstance(found, str) else found.line
        facts = {"spec": to_data(wanted.spec), "limits": to_data(wanted.limits), "summary": summary}
        covered = {} if isinstance(found, str) else {"not_covered": found.uncovered}
        console.data({"dry_run": True, "name": wanted.name, **facts, **covered})
    elif isinstance(found, str):
        console.sentence(f"would ask for {found}{f'; it goes {ends}' if ends else ''}")
    else:
        console.fields({"would ask for": found.line.replace("\n  ", "; "), **_requested(wanted, ends)})
        if found.uncovered:
            console.warn(f"not covered: {found.uncovered}; without --pay it would be refused")


def _requested(wanted: WantedSlice, ends: str) -> dict[str, str]:
    """What a request says beside what its price names, by the names of `status_lines`."""
    from tpuctl.views.slices import options_shown

    spec = wanted.spec
    lines = {
        "asked for as": _asked_as(spec.queued, spec.machine_type, spec.hosts),
        "software": spec.runtime_version,
        **{name.replace("_", " "): value for name, value in options_shown(spec).items()},
        "environment": "" if spec.env is None else spec.env.name,
        "taken down": ends,
    }
    return {name: text for name, text in lines.items() if text}
