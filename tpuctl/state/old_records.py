"""What of the records of runs and of the journal may go, and its removal.

A journal goes with what it tells of: of slices that are gone, entries older than `JOURNAL_KEPT_S`; of runs,
when they ended `RUN_JOURNAL_KEPT_S` ago. Runs themselves, with attempts and manifests, go only when a person
asks for it, and then neither those of a slice that is there nor those of a fleet file: `apply` would take them
for new. The record of a run is removed last, so that after a crash the next call finds it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from tpuctl.engine.ports import Store
from tpuctl.model import timeouts
from tpuctl.model.records import RunRecord, SliceState
from tpuctl.state.repository import load_run, load_slice, remove_unchanged

_OF_A_RUN = ("manifests", "attempts", "logs")


class OldRecords(Struct, frozen=True):
    """Keys of entries by the subject of their journal (`slices/NAME`, `runs/ID`), and ids of runs."""

    journals: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    runs: tuple[str, ...] = ()


def find_old(store: Store, runs_after_s: float | None = None) -> OldRecords:
    """What may go now. `runs_after_s`: also runs that ended so long ago. Raises for a record that cannot be
    read: then nothing is known."""
    now = store.now()
    journals = _journals(store.list_keys())
    ended = _ended_runs(store)
    doomed = [] if runs_after_s is None else _doomed(store, ended, now - runs_after_s)
    old = {run.key for run in ended if (run.ended_at or now) < now - timeouts.RUN_JOURNAL_KEPT_S}
    gone = _gone_slices(store, journals, now - timeouts.JOURNAL_KEPT_S)
    going = old | {run.key for run in doomed}
    of_runs = {subject: keys for subject, keys in journals.items() if subject in going}
    return OldRecords({**gone, **of_runs}, tuple(run.id for run in doomed))


def remove_old(store: Store, old: OldRecords) -> None:
    """Removes what `find_old` found; after a crash both go on."""
    for keys in old.journals.values():
        store.remove_entries(keys)
    for run_id in old.runs:
        for group in _OF_A_RUN:
            for document in store.list(f"{group}/{run_id}/"):
                remove_unchanged(store, document.key, document.generation)
        record = store.get(f"runs/{run_id}")
        if record is not None:
            remove_unchanged(store, record.key, record.generation)


def _journals(keys: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """The keys of the journal's entries by their subject."""
    found: dict[str, list[str]] = defaultdict(list)
    for key in keys:
        group, _, rest = key.partition("/")
        if group == "journal":
            found[rest.rpartition("/")[0]].append(key)
    return {subject: tuple(entries) for subject, entries in found.items()}


def _ended_runs(store: Store) -> list[RunRecord]:
    """Runs that are over, and whose end is known."""
    runs = [load_run(document).record for document in store.list("runs/")]
    return [run for run in runs if run.state.final and run.ended_at is not None]


def _doomed(store: Store, ended: Sequence[RunRecord], before: float) -> list[RunRecord]:
    records = [load_slice(document).record for document in store.list("slices/")]
    there = {record.name for record in records if record.state is not SliceState.GONE}
    return [
        run
        for run in ended
        if (run.ended_at or before) < before and run.slice_name not in there and not run.fleet
    ]


def _gone_slices(
    store: Store, journals: Mapping[str, tuple[str, ...]], before: float
) -> Mapping[str, tuple[str, ...]]:
    """Entries older than `before` of slices that are gone, or have no record. Who brings one up under the name
    now writes entries that are young."""
    records = {document.key: load_slice(document).record for document in store.list("slices/")}
    there = {key for key, record in records.items() if record.state is not SliceState.GONE}
    found = {}
    for subject in journals:
        if subject.startswith("slices/") and subject not in there:
            entries = store.list(f"journal/{subject}/")
            old = tuple(entry.key for entry in entries if float(entry.data.get("at", before)) < before)
            if old:
                found[subject] = old
    return found
