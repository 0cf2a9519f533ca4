"""Removes what the store keeps for nothing. Whatever cannot be read, nothing is removed.

A blob may go when nothing refers to it and nobody stored it for a long time, by the store's own clock. Who is
about to refer to a blob makes it young first (`Store.young_blobs`), so that the age alone protects him;
references are read again before each handful, and a blob is only removed as it was listed.

A journal goes with what it tells of: of slices that are gone, entries older than `JOURNAL_KEPT_S`; of runs,
when they ended `RUN_JOURNAL_KEPT_S` ago; of sweeps, with them. Runs themselves, with attempts and manifests, go
only when a person asks for it, and then neither those of a slice that is there nor those of a fleet file:
`apply` would take them for new. The record of a run is removed last, so that after a crash the next call finds
it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct, field

from tpuctl.engine.ports import Document, Store, StoredBlob
from tpuctl.errors import ConflictError, NotFoundError
from tpuctl.lib.text import counted, sized
from tpuctl.model import timeouts
from tpuctl.model.records import RunRecord, SliceRecord, SliceState
from tpuctl.state.gc_plan import MAIN_REFERRERS, find_children, find_digests, other_referrers
from tpuctl.state.journal import decided_at
from tpuctl.state.repository import decode

KEY = "pruned"
HANDFUL = 100
"""Blobs that are removed after one look at the references."""


class OldRecords(Struct, frozen=True):
    """Keys of entries by the subject of their journal (`slices/NAME`, `runs/ID`, `sweeps/GROUP`), and ids of
    runs."""

    journals: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    sweeps: tuple[str, ...] = ()
    """Keys of those that are over and of which no run stays."""


class Waste(Struct, frozen=True):
    """What may go: blobs and old records. `blobs_kept` are all the other blobs."""

    blobs: tuple[StoredBlob, ...] = ()
    blobs_kept: int = 0
    old: OldRecords = field(default_factory=OldRecords)

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(blob.size for blob in self.blobs)

    @property
    def words(self) -> str:
        """`3 blobs (1.2 MiB) and 7 journal entries`."""
        found = [f"{counted(len(self.blobs), 'blob')} ({sized(self.size)})"] if self.blobs else []
        entries = sum(map(len, self.old.journals.values()))
        found += [counted(entries, "journal entry", "journal entries")] if entries else []
        found += [f"{counted(len(self.old.runs), 'run')} with all manifests"] if self.old.runs else []
        found += [counted(len(self.old.sweeps), "sweep")] if self.old.sweeps else []
        return " and ".join(found) or "nothing"


def find_waste(store: Store, age_s: float, runs_after_s: float | None = None) -> Waste:
    """What `prune` would remove now, except for what only goes because of that. Raises rather than judge from
    what could not be read."""
    listed = store.list_blobs()
    garbage = _find_garbage(store, listed, age_s)
    return Waste(garbage, len(listed) - len(garbage), find_old(store, runs_after_s))


def prune(store: Store, age_s: float, runs_after_s: float | None = None) -> Waste:
    """Removes blobs that nothing refers to and that are older than `age_s`, and old journals; runs that ended
    `runs_after_s` ago, too, if that is given. Records of slices stay: a name that comes back goes on counting.

    Safe beside every other command, and beside another prune; after a crash the next call goes on. Returns what
    was removed.
    """
    old = find_old(store, runs_after_s)
    remove_old(store, old)
    listed = store.list_blobs()
    garbage = _find_garbage(store, listed, age_s)
    removed: list[StoredBlob] = []
    for start in range(0, len(garbage), HANDFUL):
        some = garbage[start : start + HANDFUL]
        still = _References(store, listed).without(some) if start else some
        removed += [blob for blob in still if store.remove_blob(blob)]
    store.clear_leftovers(store.now() - age_s)
    return Waste(tuple(removed), len(listed) - len(removed), old)


def prune_if_due(store: Store, age_s: float) -> Waste | None:
    """`prune`, once a day for all machines that share the store; None when it is not yet time."""
    document = store.get(KEY)
    now = store.now()
    if document is not None and now - float(document.data["at"]) < timeouts.PRUNE_EVERY_S:
        return None
    try:
        store.put(KEY, {"at": now}, if_generation=0 if document is None else document.generation)
    except ConflictError:
        return None  # another machine does it
    return prune(store, age_s)


def _find_garbage(store: Store, listed: Sequence[StoredBlob], age_s: float) -> tuple[StoredBlob, ...]:
    """The old ones without a reference. An age that the store does not tell is no age."""
    born_before = store.now() - age_s
    old = [blob for blob in listed if blob.written_at is not None and blob.written_at < born_before]
    return tuple(_References(store, listed).without(old))


class _References:
    """Which blobs the documents of a store refer to, read as far as it is needed to be sure.

    Runs and slices are read first: they name nearly everything, and machines that make passes know them.
    """

    def __init__(self, store: Store, listed: Sequence[StoredBlob]) -> None:
        self._store = store
        self._listed = frozenset(blob.sha256 for blob in listed)

    def without(self, blobs: Sequence[StoredBlob]) -> list[StoredBlob]:
        """Those that nothing refers to."""
        left = list(blobs)
        if left:
            left = _without(left, self._closure(MAIN_REFERRERS))
        if left:
            left = _without(left, self._closure(other_referrers(self._store.list_keys())))
        return left

    def _closure(self, prefixes: Iterable[str]) -> frozenset[str]:
        """What the documents name, and what that names if it is a tree. Documents hold other digests too."""
        named: set[str] = set()
        for prefix in prefixes:
            for document in self._store.list(prefix):
                named |= find_digests(document.data)
        blobs = named & self._listed
        return frozenset(named).union(*(self._children(digest) for digest in blobs))

    def _children(self, digest: str) -> frozenset[str]:
        """What a blob refers to. One that is not there keeps nothing: nobody can follow it, and who stores it
        again stores what it names first."""
        try:
            return find_children(self._store.get_blob(digest))
        except NotFoundError:
            return frozenset()


def _without(blobs: Iterable[StoredBlob], known: frozenset[str]) -> list[StoredBlob]:
    return [blob for blob in blobs if blob.sha256 not in known]


_OF_A_RUN = ("manifests", "attempts", "logs")


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
    sweeps = () if runs_after_s is None else _sweeps_without(store, doomed, now - runs_after_s)
    of_runs |= {subject: keys for subject, keys in journals.items() if subject in sweeps}
    return OldRecords({**gone, **of_runs}, tuple(run.id for run in doomed), sweeps)


def remove_old(store: Store, old: OldRecords) -> None:
    """Removes what `find_old` found; after a crash both go on."""
    for keys in old.journals.values():
        store.remove_entries(keys)
    for run_id in old.runs:
        for group in _OF_A_RUN:
            for document in store.list(f"{group}/{run_id}/"):
                _remove_unchanged(store, document)
    for key in (*(f"runs/{run_id}" for run_id in old.runs), *old.sweeps):
        record = store.get(key)
        if record is not None:
            _remove_unchanged(store, record)


def _remove_unchanged(store: Store, document: Document) -> None:
    with suppress(ConflictError):
        store.delete(document.key, if_generation=document.generation)


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
    runs = [decode(RunRecord, document) for document in store.list("runs/")]
    return [run for run in runs if run.state.final and run.ended_at is not None]


def _doomed(store: Store, ended: Sequence[RunRecord], before: float) -> list[RunRecord]:
    records = [decode(SliceRecord, document) for document in store.list("slices/")]
    there = {record.name for record in records if record.state is not SliceState.GONE}
    # A row without a record counts as one that has not run yet.
    sweeps = [document.data for document in store.list("sweeps/") if not document.data["over"]]
    rows = {row["run_id"] for sweep in sweeps for row in sweep["rows"]}
    return [
        run
        for run in ended
        if (run.ended_at or before) < before
        and run.slice_name not in there
        and not run.fleet
        and run.id not in rows
    ]


def _sweeps_without(store: Store, doomed: Sequence[RunRecord], before: float) -> tuple[str, ...]:
    """Those that were asked for before then, are over, and keep no run once these are removed."""
    kept = {document.key for document in store.list("runs/")}.difference(run.key for run in doomed)
    return tuple(
        document.key
        for document in store.list("sweeps/")
        if document.data["over"]
        and document.data["template"]["created_at"] < before
        and kept.isdisjoint(f"runs/{row['run_id']}" for row in document.data["rows"])
    )


def _gone_slices(
    store: Store, journals: Mapping[str, tuple[str, ...]], before: float
) -> Mapping[str, tuple[str, ...]]:
    """Entries older than `before` of slices that are gone, or have no record. Who brings one up under the name
    now writes entries that are young."""
    records = {document.key: decode(SliceRecord, document) for document in store.list("slices/")}
    there = {key for key, record in records.items() if record.state is not SliceState.GONE}
    found = {}
    for subject in journals:
        if subject.startswith("slices/") and subject not in there:
            entries = store.list(f"journal/{subject}/")
            # One that does not tell its time may be young.
            old = tuple(entry.key for entry in entries if 0 < decided_at(entry.data) < before)
            if old:
                found[subject] = old
    return found
