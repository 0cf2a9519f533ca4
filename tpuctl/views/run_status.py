"""One run on one screen: where it stands, how its workers are, what it came to, and what to type next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tpuctl.containers.hosts import IMAGE
from tpuctl.engine.services import Services
from tpuctl.lib.codec import to_data
from tpuctl.lib.time import render_time
from tpuctl.model.attempts import Attempt, WorkerEnd
from tpuctl.model.processes import LOG_STREAMS, stream_of
from tpuctl.model.records import RunRecord, RunState
from tpuctl.model.shipped_files import load_secret_patterns
from tpuctl.provenance.parts import load_parts
from tpuctl.runs.metrics import RATE
from tpuctl.state.repository import find_slice
from tpuctl.views.metrics import AttemptMetrics, MetricColumn, attempt_metrics, columns
from tpuctl.views.report_page import end_said, plain
from tpuctl.views.runs import run_row

NEXT: Mapping[RunState, tuple[str, ...]] = {
    RunState.WAITING: ("attach", "why", "stop"),
    RunState.PREPARING: ("attach", "why", "stop"),
    RunState.RUNNING: ("attach", "stacks", "stop"),
    RunState.STOPPING: ("attach",),
    RunState.SUCCEEDED: ("logs", "report", "rerun"),
    RunState.FAILED: ("logs", "report", "rerun"),
    RunState.STOPPED: ("logs", "report", "rerun"),
    RunState.GAVE_UP: ("why", "report", "rerun"),
}
"""The commands of a run that people need in each state, the likeliest first."""
TAIL_BYTES, LINE_MAX = 4_000, 400
"""So much of the end of each log is read for its last line, and so much of that is shown."""


def run_status(services: Services, run: RunRecord) -> dict[str, Any]:
    """One run in full, as recorded; what its programs wrote last as far as it is on this machine."""
    row, attempt = run_row(services, run), run.attempt
    found = attempt_metrics(services, run.id, attempt) if attempt is not None and run.spec.progress else None
    metrics = [] if found is None else columns([found])
    stored = find_slice(services, run.slice_name)
    return {
        **row,
        **_progress(row, found, metrics),
        "slice_state": None if stored is None else str(stored.record.state),
        "cwd": run.spec.cwd,
        "environment": run.spec.environment.name if run.spec.environment is not None else None,
        "image": None if run.spec.container is None else _image(run),
        "checkpoints": run.checkpoint_place,
        "debug": list(run.spec.debug),
        "question": run.question or None,
        "attempt": None if attempt is None else _attempt(attempt),
        "earlier": _earlier(services, run),
        "metrics": to_data(metrics),
        "workers": [] if attempt is None else _workers(services, run, attempt),
        "next": next_commands(run),
    }


def next_commands(run: RunRecord) -> list[str]:
    """What to type next of a run."""
    if run.question and not run.state.final:
        return [f"tpuctl attach {run.id} --go-on", f"tpuctl stop {run.id}"]
    # Pods have no agent that could tell stacks.
    verbs = [verb for verb in NEXT[run.state] if verb != "stacks" or run.cluster is None]
    return [f"tpuctl {verb} {run.id}" for verb in verbs]


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "phase": str(attempt.state),
        "created": render_time(attempt.created_at),
        "started": render_time(attempt.started_at),
        "ended": render_time(attempt.ended_at),
        "cause": None if attempt.cause is None else str(attempt.cause),
        "joined": attempt.joined or None,
        "numbers": "; ".join(filter(None, (attempt.not_finite, attempt.unsearched))) or None,
        "compiled": attempt.compiled or None,
        "troubles": [each.said for each in attempt.troubles],
    }


def _image(run: RunRecord) -> str:
    """By the digest that its hosts found, else as it was named."""
    rows, named = run.attempt.hosts if run.attempt is not None else (), run.spec.container or ""
    pin = next((row[IMAGE] for row in rows if row.get(IMAGE)), named)
    return pin if "@" in pin or pin == named else f"{named} ({pin})"


def _progress(
    row: Mapping[str, Any], found: AttemptMetrics | None, metrics: Sequence[MetricColumn]
) -> Mapping[str, Any]:
    """How far the last attempt is, by the numbers of it that are on this machine: while it goes on, the record
    does not say."""
    if found is None or found.cause or row["step"] is not None:
        return {}
    rate = next((each.last for each in metrics if each.name == RATE), None)
    return {"step": found.last_step, "steps_per_s": rate}


def _earlier(services: Services, run: RunRecord) -> list[dict[str, Any]]:
    """The attempts before the last one, oldest first: why each ended, and at which step."""
    last = run.attempt.number if run.attempt is not None else 0
    rows = [row for row in load_parts(services, run.id).contents if row["number"] < last]
    return [
        {
            "number": row["number"],
            "cause": row.get("cause"),
            "why": (row.get("failure") or {}).get("signature") or row.get("why") or "",
            "ended": row.get("ended"),
            "step": row.get("step"),
        }
        for row in rows
    ]


def _workers(services: Services, run: RunRecord, attempt: Attempt) -> list[dict[str, Any]]:
    ends = {end.worker: end for end in attempt.ends}
    hosts = {int(row["worker"]): row for row in attempt.hosts if str(row.get("worker", "")).isdigit()}
    rows = []
    for worker in attempt.workers:
        end, host = ends.get(worker), hosts.get(worker, {})
        ended = {
            "exit_status": None if end is None else end.exit_status,
            "signal": None if end is None else end.signal,
            "note": end.note if end is not None else "",
        }
        failed = end is not None and end.exit_status != 0
        rows.append(
            {
                "worker": worker,
                "state": str(attempt.state) if end is None else end_said(ended),
                "hostname": host.get("hostname"),
                "address": host.get("address"),
                **ended,
                "ran_s": None if end is None else end.ran_s,
                "process": None if end is None else end.process,
                "processes": [] if end is None else to_data(end.processes),
                "last_line": _last_line(services, run, attempt, worker, end, failed=failed),
            }
        )
    return rows


def _last_line(
    services: Services, run: RunRecord, attempt: Attempt, worker: int, end: WorkerEnd | None, *, failed: bool
) -> str:
    """What a worker wrote last: of one that failed on stderr, where the reason stands, and of its processes the
    one that failed."""
    own = end.process if end is not None else None
    kinds = reversed(LOG_STREAMS) if failed else LOG_STREAMS
    first = [stream_of(own, kind) for kind in kinds]
    for stream in (*first, *attempt.streams):
        data = services.logs.tail(run.id, attempt.number, worker, stream, TAIL_BYTES)
        text = load_secret_patterns().redact(plain(data.decode("utf-8", "replace")))
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if lines:
            return lines[-1][:LINE_MAX]
    return ""
