"""What the lists of runs show: rows as plain data, with stable keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpuctl.engine.services import Services
from tpuctl.errors import DamagedRecordError
from tpuctl.lib.codec import to_data
from tpuctl.lib.time import render_time
from tpuctl.model.attempts import SLOW, AttemptPhase, RunTotals
from tpuctl.model.records import RunRecord
from tpuctl.state.listed_runs import EndedRun, listed_runs
from tpuctl.state.repository import find_slice, newest_first

RUN_KEYS = (
    "id", "slice", "group", "tags", "state", "attempts", "failures", "preemptions", "goodput", "chip_hours",
    "usd", "unseen_usd", "step", "steps", "steps_per_s", "command", "created", "ended", "reason", "failure",
    "user", "data", "synthetic", "chips",
)  # fmt: skip


def run_rows(services: Services, group: str | None = None, tags: Sequence[str] = ()) -> list[dict[str, Any]]:
    """One row per run, newest first; with a group or tags those that have all of them. What a run came to is as
    of now while it goes on."""
    listed, damaged = listed_runs(services)
    runs = newest_first(listed, services.store.now())
    rows = [run_row(services, run) for run in runs if is_listed(run, group, tags)]
    return [*rows, *(_damaged_run(error) for error in damaged if group is None and not tags)]


def is_listed(run: RunRecord | EndedRun, group: str | None, tags: Sequence[str]) -> bool:
    """A tag without a value stands for all with its key."""
    if not tags:
        return group is None or run.spec.group == group
    own = {*run.spec.tags, *(tag.partition("=")[0] for tag in run.spec.tags)}
    return (group is None or run.spec.group == group) and own.issuperset(tags)


def _damaged_run(error: DamagedRecordError) -> dict[str, Any]:
    """A row for a record that cannot be read, beside those that can."""
    said = {"id": error.details["key"].partition("/")[2], "state": "damaged", "reason": error.message}
    return {**dict.fromkeys(RUN_KEYS), **said, "command": [], "tags": [], "data": []}


def run_row(services: Services, run: RunRecord | EndedRun) -> dict[str, Any]:
    """How a run stands and what it came to, with the keys `RUN_KEYS`."""
    spent, trouble = run.totals, None
    if isinstance(run, RunRecord):
        trouble = trouble_of(run)
        if not run.state.final:
            from tpuctl.provenance.parts import current_totals  # as dear as the rest of a list of ended runs

            stored = find_slice(services, run.slice_name)
            spent = current_totals(services, run, stored.record if stored else None)
    spent = spent or RunTotals()
    attempt = run.attempt
    return {
        "id": run.id,
        "slice": run.slice_name,
        "group": run.spec.group or None,
        "tags": list(run.spec.tags),
        "state": str(run.state),
        "attempts": attempt.number if attempt else 0,
        "failures": run.failures,
        "preemptions": run.preemptions,
        "goodput": spent.goodput,
        "chip_hours": spent.chip_hours,
        "usd": spent.usd,
        "unseen_usd": spent.unseen_usd,
        "step": attempt.step if attempt else None,
        "steps": attempt.steps if attempt else None,
        "steps_per_s": attempt.steps_per_s if attempt else None,
        "command": list(run.spec.argv),
        "created": render_time(run.created_at),
        "ended": render_time(run.ended_at),
        "reason": run.reason or trouble or "",
        "failure": failure_of(run),
        "user": run.owner,
        "data": [receipt.uri for receipt in run.spec.data],
        "synthetic": run.spec.synthetic,
        "chips": list(run.chips),
    }


def failure_of(run: RunRecord | EndedRun) -> dict[str, Any] | None:
    """Why its last attempt failed; None where that did not."""
    failure = run.attempt.failure if run.attempt else None
    return dict(to_data(failure)) if failure is not None else None


def trouble_of(run: RunRecord) -> str | None:
    """Why a run that goes on does not go on well: something is in its way, it stands still, is slow, or its
    program has a trouble of its own."""
    attempt = run.attempt
    if attempt is None or attempt.cause is not None:
        return None
    if attempt.state is AttemptPhase.PREPARING and attempt.suspect_why:
        return f"does not start: {attempt.suspect_why}"
    if attempt.stalled:
        return f"stands still: {attempt.stall_said}"
    told = [entry.detail for entry in attempt.timeline if entry.event == SLOW]
    if attempt.usual_rate and told:
        return f"slow: {told[-1]}"
    program = [*(each.said for each in attempt.troubles), attempt.unsearched, attempt.not_finite]
    return next((said for said in reversed(program) if said), None)
