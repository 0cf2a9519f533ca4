"""Slices and runs as typed records over the store's documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from tpuctl.engine.ports import Document, Store
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, DamagedRecordError, NotFoundError, StaleRecordError
from tpuctl.lib.codec import from_data, to_data
from tpuctl.lib.retry import retry
from tpuctl.lib.text import suggest
from tpuctl.model.attempts import Attempt
from tpuctl.model.records import RunRecord, RunState, SliceRecord, SliceState

R = TypeVar("R", SliceRecord, RunRecord)
A = TypeVar("A")
T = TypeVar("T")


class Versioned(Struct, Generic[R], frozen=True):
    """A record and the generation it was read at (0: not stored yet)."""

    record: R
    generation: int


def decode(cls: type[T], document: Document) -> T:
    """The record in `document`. Raises DamagedRecordError for one that is none."""
    try:
        return from_data(cls, document.data)
    except ValueError as error:
        raise DamagedRecordError(document.key, str(error)) from error


def find(store: Store, cls: type[T], key: str) -> tuple[T | None, int]:
    """The record at `key` and its generation; None and 0 where there is none. Raises DamagedRecordError."""
    document = store.get(key)
    return (None, 0) if document is None else (decode(cls, document), document.generation)


def decode_readable(cls: type[T], documents: Iterable[Document]) -> tuple[list[T], list[DamagedRecordError]]:
    """The records in `documents`, and what is wrong with those that are none. For what is only shown, or where
    one record says nothing of another: what deletes or spends raises instead."""
    found: list[T] = []
    damaged: list[DamagedRecordError] = []
    for document in documents:
        try:
            found.append(decode(cls, document))
        except DamagedRecordError as error:
            damaged.append(error)
    return found, damaged


def find_slice(services: Services, name: str) -> Versioned[SliceRecord] | None:
    record, generation = find(services.store, SliceRecord, f"slices/{name}")
    return None if record is None else Versioned(record, generation)


def get_slice(services: Services, name: str) -> Versioned[SliceRecord]:
    """Raises NotFoundError with the names there are."""
    stored = find_slice(services, name)
    if stored is None:
        records, _ = readable_slices(services)
        near = suggest(name, [record.name for record in records])
        hint = f"did you mean {near}? `tpuctl ls` lists them" if near else "tpuctl ls"
        raise NotFoundError(f"no slice called {name} (known: {known_names(records)})", hint=hint)
    return stored


MAX_KNOWN = 8
"""So many names are said in an error."""


def known_names(records: Sequence[SliceRecord]) -> str:
    """The names of slices that are not gone; the first of them, if they are many."""
    names = [record.name for record in records if record.state is not SliceState.GONE]
    return ", ".join(names[:MAX_KNOWN] + ["…"] * (len(names) > MAX_KNOWN)) or "none"


def load_slice(document: Document) -> Versioned[SliceRecord]:
    """A slice from its document. Raises DamagedRecordError."""
    return Versioned(decode(SliceRecord, document), document.generation)


def load_run(document: Document) -> Versioned[RunRecord]:
    """A run from its document. Raises as `load_slice` does."""
    return Versioned(decode(RunRecord, document), document.generation)


def load_slices(services: Services) -> list[Versioned[SliceRecord]]:
    """Every slice of the store with the generation it was read at, by name. Raises DamagedRecordError."""
    return [load_slice(document) for document in services.store.list("slices/")]


def list_slices(services: Services) -> list[SliceRecord]:
    """Raises DamagedRecordError when one cannot be read."""
    return [stored.record for stored in load_slices(services)]


def readable_slices(services: Services) -> tuple[list[SliceRecord], list[DamagedRecordError]]:
    """As `decode_readable`."""
    return decode_readable(SliceRecord, services.store.list("slices/"))


def find_run(services: Services, run_id: str) -> Versioned[RunRecord] | None:
    record, generation = find(services.store, RunRecord, f"runs/{run_id}")
    return None if record is None else Versioned(record, generation)


def get_run(services: Services, run_id: str) -> Versioned[RunRecord]:
    """The run called `run_id`; `last` means the newest. Raises NotFoundError."""
    if run_id == "last":
        runs, _ = readable_runs(services)
        if not runs:
            raise NotFoundError("there is no run yet", hint="tpuctl run SCRIPT")
        run_id = newest_first(runs, services.store.now())[0].id
    stored = find_run(services, run_id)
    if stored is None:
        near = _nearest_run(run_id, readable_runs(services)[0])
        hint = f"did you mean {near}? `tpuctl runs` lists them" if near else "tpuctl runs"
        raise NotFoundError(f"no run called {run_id}", hint=hint)
    return stored


AHEAD_S = 60.0
"""Clocks of machines that share a store agree to about a second (NTP, the bucket's time)."""


def newest_first(runs: Iterable[RunRecord], now: float) -> list[RunRecord]:
    """Runs by when they were asked for; those from a machine whose clock was ahead come last: nobody asked for
    them later than now, and one wrong clock must not decide for ever what "the newest run" is."""
    return sorted(runs, key=lambda run: (run.created_at <= now + AHEAD_S, run.created_at, run.id), reverse=True)


def _nearest_run(word: str, runs: Sequence[RunRecord]) -> str | None:
    """The id that `word` was meant for: the newest run of that name in a fleet file, or that begins so."""
    newest = sorted(runs, key=lambda run: (run.created_at, run.id), reverse=True)
    begun = [run.id for run in newest if run.fleet_run == word or run.id.startswith(word)]
    return begun[0] if begun else suggest(word, [run.id for run in newest])


def list_runs(services: Services) -> list[RunRecord]:
    """Raises DamagedRecordError when one cannot be read."""
    return [decode(RunRecord, document) for document in services.store.list("runs/")]


def active_runs(services: Services, slice_name: str) -> list[RunRecord]:
    """The runs that are not over yet on a slice: one, or several that each have their own chips of it. Raises
    DamagedRecordError for one of this slice that cannot be read, and for one that does not say where it is."""
    documents = (each for each in services.store.list("runs/") if _slice_said(each) in (slice_name, None))
    found = [decode(RunRecord, each) for each in documents]
    return [run for run in found if run.slice_name == slice_name and not run.state.final]


def _slice_said(document: Document) -> object:
    """The slice of a run, as far as its document says one."""
    spec = document.data.get("spec")
    return spec.get("slice_name") if isinstance(spec, Mapping) else None


def readable_runs(services: Services) -> tuple[list[RunRecord], list[DamagedRecordError]]:
    """As `decode_readable`."""
    return decode_readable(RunRecord, services.store.list("runs/"))


def runs_under_way(services: Services) -> list[RunRecord]:
    """The readable runs that are not over yet. Those of years are not made records for that."""
    return decode_readable(RunRecord, filter(_may_go_on, services.store.list("runs/")))[0]


def _may_go_on(document: Document) -> bool:
    try:
        return document.data.get("state") not in _OVER
    except DamagedRecordError:
        return True


_OVER = frozenset(str(state) for state in RunState if state.final)


def save(services: Services, stored: Versioned[R], record: R) -> Versioned[R]:
    """Writes `record` over what was loaded. Raises StaleRecordError when somebody else wrote first."""
    document = put_over(services, record.key, to_data(record), stored.generation)
    return Versioned(record, document.generation)


def put_over(services: Services, key: str, data: Mapping[str, Any], generation: int) -> Document:
    """Writes a document over that of a generation, 0 for none. Raises StaleRecordError when somebody else wrote
    first."""
    try:
        return services.store.put(key, data, if_generation=generation)
    except ConflictError as error:
        raise StaleRecordError(
            f"{key} was changed by another tpuctl", hint="the same command again looks at what is there now"
        ) from error


def despite_others(services: Services, act: Callable[[], A]) -> A:
    """What `act` comes to, which looks and then writes, however many write the same meanwhile: one of them gets
    through each time."""
    sleep = services.clock.sleep
    return retry(act, (StaleRecordError,), tries=40, pause_s=0.05, growth=1.1, sleep=sleep)


def save_attempt_history(services: Services, run: RunRecord, attempt: Attempt) -> None:
    """Writes the ended attempt once, beside the run; a repeat is a no-op."""
    save_once(services, f"attempts/{run.id}/{attempt.number:05d}", to_data(attempt))


def save_once(services: Services, key: str, data: Mapping[str, Any]) -> None:
    """Writes a document that nobody changes later. One that another process wrote first stands."""
    if services.store.get(key) is None:
        try_put(services.store, key, data, 0)  # or who took over while this process slept wrote it


def overwrite(services: Services, key: str, record: Struct) -> None:
    """Writes a record over whatever is there. Raises StaleRecordError when somebody else writes meanwhile."""
    document = services.store.get(key)
    put_over(services, key, to_data(record), document.generation if document is not None else 0)


def try_put(store: Store, key: str, data: Mapping[str, Any], generation: int) -> bool:
    """Writes over a generation, 0 for none; False where somebody else wrote first."""
    try:
        store.put(key, data, if_generation=generation)
    except ConflictError:
        return False
    return True


def forget(store: Store, key: str) -> bool:
    """Removes what is there; False where nothing is. Raises ConflictError when it changes meanwhile."""
    document = store.get(key)
    if document is not None:
        store.delete(key, if_generation=document.generation)
    return document is not None


def remove_unchanged(store: Store, key: str, generation: int) -> bool:
    """Removes a document in exactly that generation; what somebody changed meanwhile stays (False)."""
    try:
        store.delete(key, if_generation=generation)
    except ConflictError:
        return False
    return True


def list_attempts(services: Services, run_id: str) -> list[Attempt]:
    """Ended attempts of a run, oldest first."""
    return [decode(Attempt, document) for document in services.store.list(f"attempts/{run_id}/")]
