"""One run on one screen, in words: `tpuctl status RUN` and `tpuctl runs RUN`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from tpuctl.cli.clusters import seen_now
from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.cli.slice_status import ago
from tpuctl.lib.text import fold_workers, group_equal, render_value
from tpuctl.model.clusters import is_cluster
from tpuctl.model.records import RunRecord

ROWS_MAX = 10
"""Workers that differ are shown up to so many rows: what they have in common takes one."""
WORKERS = (
    Column("workers", "WORKER"),
    Column("state", "STATE", give=1, most=2),
    Column("last_line", "LAST LINE HERE", give=2, most=1),
)


def show_run(context: AppContext, run: RunRecord) -> None:
    """Prints how a run stands."""
    from tpuctl.views.run_status import run_status

    run = seen_now(context, run)
    console, facts = context.console, run_status(context, run)
    if console.json_mode:
        console.data(facts)
        return
    console.fields(run_lines(facts, context.clock.now()))
    groups = group_equal(facts["workers"], lambda row: (row["state"], row["last_line"]))
    rows = [
        {"workers": fold_workers(row["worker"] for row in alike), "state": state, "last_line": line}
        for (state, line), alike in groups
    ]
    if rows:
        console.line()
        console.table(rows[:ROWS_MAX], WORKERS)
    if len(rows) > ROWS_MAX:
        console.say(f"{len(rows) - ROWS_MAX} more rows: `tpuctl status {run.id} --json`")
    if not run.state.final and run.cluster is None:
        _say_if_unwatched(context, run.id)


def _say_if_unwatched(context: AppContext, run_id: str) -> None:
    """What is shown was recorded by who looked last, and perhaps nobody looks: a run that ended long ago would
    still be called running."""
    from tpuctl.watch.cycle import why_unwatched

    unwatched = why_unwatched(context)
    if unwatched is not None:
        text = f"this is what was recorded last, and {unwatched[0]}; `tpuctl attach {run_id}` looks at it now"
        context.console.caveat(text)


def run_lines(facts: Mapping[str, Any], now: float) -> dict[str, str]:
    """Names and values to show, in order; what does not apply is left out. `facts`: see `run_status`."""
    failure = facts["failure"] or {}
    lines = {
        "run": facts["id"],
        "state": facts["state"],
        "because": _because(facts),
        "what helps": str(failure.get("remedy", "")) if facts["state"] != "succeeded" else "",
        "slice": _slice(facts),
        "attempt": _attempt(facts, now),
        "before": _before(facts),
        "progress": _progress(facts),
        "compiles": _compiles(facts),
        **_metrics(facts),
        "numbers": (facts["attempt"] or {}).get("numbers") or "",
        "cost": _cost(facts),
        "environment": facts["environment"] or "",
        "image": facts["image"] or "",
        "checkpoints": facts["checkpoints"] or "",
        "debug": ", ".join(facts["debug"]),
        "data": "synthetic" if facts["synthetic"] else "",
        "command": shlex.join(facts["command"]),
        "asked for": f"{ago(facts['created'], now)}, by {facts['user']}",
        "ended": ago(facts["ended"], now),
        "type next": ", ".join(f"`{command}`" for command in facts["next"]),
    }
    return {name: text for name, text in lines.items() if text}


def _because(facts: Mapping[str, Any]) -> str:
    """The last reason: why it ended or does not go on, and what its failure is called."""
    reason, failure = facts["question"] or facts["reason"], facts["failure"]
    name = failure["signature"] if failure and facts["state"] != "succeeded" else ""
    told = name if name not in (reason or "") else ""
    return "; ".join(part for part in (reason, told) if part and part != facts["state"])


def _slice(facts: Mapping[str, Any]) -> str:
    from tpuctl.runs.chips import describe_chips

    if is_cluster(facts["slice"]):
        return str(facts["slice"])
    said = f"{facts['slice']} ({facts['slice_state'] or 'not known here any more'})"
    return ", ".join(filter(None, (said, describe_chips(facts["chips"]))))


def _attempt(facts: Mapping[str, Any], now: float) -> str:
    attempt = facts["attempt"]
    if attempt is None:
        return "none yet"
    since = attempt["ended"] or attempt["started"] or attempt["created"]
    word = "ended" if attempt["ended"] else "runs since" if attempt["started"] else "asked for"
    joined = f"; {attempt['joined']}" if attempt["joined"] else ""
    return f"{attempt['number']}, {word} {ago(since, now)}{joined}"


def _before(facts: Mapping[str, Any]) -> str:
    """Why the attempts before ended: the last of them in full, the others as a number."""
    earlier = facts["earlier"]
    if not earlier:
        return ""
    last = earlier[-1]
    why = f": {last['why']}" if last["why"] else ""
    step = "" if last["step"] is None else f", at step {last['step']:g}"
    return (
        f"attempt {last['number']} {last['cause']}{why}{step}"
        f" (preemptions {facts['preemptions']}, failures {facts['failures']})"
    )


def _progress(facts: Mapping[str, Any]) -> str:
    if facts["step"] is None:
        return ""
    of = "" if facts["steps"] is None else f" of {facts['steps']:.12g}"
    rate = "" if facts["steps_per_s"] is None else f", {facts['steps_per_s']:.3g} per second"
    return f"step {facts['step']:.12g}{of}{rate}"


METRICS_MAX, NAME_MAX = 4, 24
"""Numbers of the program on the screen of a run, and of their names: `tpuctl metrics` has all."""


def number(value: float | None) -> str:
    """A value of a metric for a person; None is infinite or no number."""
    return "no number" if value is None else render_value(value)


def _metrics(facts: Mapping[str, Any]) -> dict[str, str]:
    """A line for each number: its last value, and how it went."""
    shown = facts["metrics"][:METRICS_MAX]
    more = len(facts["metrics"]) - len(shown)
    return {
        **{f"metric {each['name'][:NAME_MAX]}": f"{number(each['last'])}  {each['line']}" for each in shown},
        "more metrics": f"{more}: `tpuctl metrics {facts['id']}`" if more else "",
    }


def _compiles(facts: Mapping[str, Any]) -> str:
    attempt = facts["attempt"] or {}
    return "; ".join(filter(None, (attempt.get("compiled"), *attempt.get("troubles", ()))))


def _cost(facts: Mapping[str, Any]) -> str:
    usd, share, hours = cost_text(facts["usd"], facts["unseen_usd"]), facts["goodput"], facts["chip_hours"]
    parts = [
        "" if usd is None else f"{usd} by list prices",
        "" if hours is None else f"{hours:g} chip hours",
        "" if share is None else f"goodput {share:.0%}",
    ]
    return ", ".join(part for part in parts if part)


def cost_text(usd: float | None, unseen_usd: float | None) -> str | None:
    """`$1.20`, or `$1.20–1.50` where nobody saw for how long a slice was there."""
    if usd is None and not unseen_usd:
        return None
    most = f"–{(usd or 0.0) + unseen_usd:.2f}" if unseen_usd else ""
    return f"${usd or 0.0:.2f}{most}"
