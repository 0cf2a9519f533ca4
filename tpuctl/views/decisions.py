"""The audit trail as `why` shows it: what was decided about a slice, a run, a sweep or the fleet."""

from __future__ import annotations

from typing import Any

from tpuctl.engine.services import Services
from tpuctl.lib.names import cloud_name
from tpuctl.lib.time import render_time
from tpuctl.model.attempts import Cause
from tpuctl.model.records import SliceRecord
from tpuctl.runs.sweep_record import find_sweep
from tpuctl.slices.choose import run_called
from tpuctl.state.journal import DAMAGED, decided_at, read_journal, read_journals
from tpuctl.state.repository import RUNS, readable_runs, readable_slices


def decisions(services: Services, name: str) -> list[dict[str, Any]]:
    """The audit trail of a slice with its runs and holds of its disks, of a run, a sweep, or the `fleet`.

    Oldest first; of the fleet it is pauses and grants that end. A slice without a record has one, too, as what
    `reap` deleted. Raises NotFoundError for what the journal does not know.
    """
    if RUNS.generation(services, name):
        subjects = [f"runs/{name}"]
    else:
        subjects = [f"slices/{name}", *(["fleet"] if name == "fleet" else [])]
        subjects += [run.key for run in readable_runs(services)[0] if run.slice_name == name]
    entries = [
        {**document.data, "subject": subject.rpartition("/")[2]}
        for subject in subjects
        for document in read_journal(services, subject)
    ]
    entries += [*_holds(services, name), *_of_sweep(services, name)]
    if not entries and name != "fleet":
        run_called(services, name)  # raises where it is neither
    return _in_order(entries)


def slice_decisions(services: Services, name: str) -> list[dict[str, Any]]:
    """Those about a slice alone, which one list call of the store finds."""
    found = read_journal(services, f"slices/{name}")
    return _in_order([{**document.data, "subject": name} for document in found])


def _in_order(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    entries.sort(key=decided_at)
    blank = {"action": "", "reason": "", "event": ""}
    return [{**blank, **entry, "at": render_time(decided_at(entry))} for entry in entries]


_OF_ROWS = frozenset({"run", "stop", "ended", DAMAGED, *Cause}) - {Cause.SUCCEEDED}
_OF_SLICES = frozenset(
    {"up", "down", "ready", "preempted", "unreachable", "time-over", "broken", "refused", "denied", "removed"}
    | {"end", DAMAGED}
)
"""What is decided about a sweep's runs and slices as far as it concerns the sweep."""


def _of_sweep(services: Services, group: str) -> list[dict[str, Any]]:
    """What a sweep decided, how its rows began and ended, and which slices it took, lost and gave back."""
    sweep = find_sweep(services, group)
    if sweep is None:
        return []
    rows = {row.run_id for row in sweep.rows}
    told = [
        *((document, group) for document in read_journal(services, sweep.key)),
        *(
            (document, run_id)
            for subject, document in read_journals(services, f"runs/{group}-")
            if (run_id := subject.removeprefix("runs/")) in rows and document.data["action"] in _OF_ROWS
        ),
        *(
            (document, name)
            for name in (sweep.slices if sweep.specs else ())
            for document in read_journal(services, f"slices/{name}")
            if document.data["action"] in _OF_SLICES
        ),
    ]
    since = sweep.template.created_at
    return [{**each.data, "subject": subject} for each, subject in told if decided_at(each.data) >= since]


def _holds(services: Services, name: str) -> list[dict[str, Any]]:
    """When the disks of a slice were held still on it: its programs waited then. Entries that name no life of a
    slice are those of an earlier revision, and their reason says for which slice they are."""
    return [
        {**document.data, "subject": ref.name}
        for each in readable_slices(services)[0]
        if each.name == name
        for ref in each.spec.disks
        for document in read_journal(services, f"disks/{ref.name}")
        if document.data["action"] == "hold" and document.data["incarnation"] in {"", *_lives(each)}
    ]


def _lives(slice_record: SliceRecord) -> set[str]:
    numbered = {cloud_name(slice_record.name, each + 1) for each in range(slice_record.last_incarnation)}
    return numbered | {place.incarnation.cloud_name for place in slice_record.places if place.incarnation}
