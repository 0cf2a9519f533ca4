"""Slices and runs as typed records over the store's documents."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tpuctl.core.codec import from_data, to_data
from tpuctl.core.records import Attempt, RunRecord, SliceRecord, SliceState
from tpuctl.errors import ConflictError, NotFoundError, StaleRecordError
from tpuctl.ports import Document
from tpuctl.workflows.services import Services

R = TypeVar("R", SliceRecord, RunRecord)


@dataclass(frozen=True)
class Loaded(Generic[R]):
    """A record and the generation it was read at (0: not stored yet)."""

    record: R
    generation: int


def find_slice(services: Services, name: str) -> Loaded[SliceRecord] | None:
    document = services.store.get(f"slices/{name}")
    return None if document is None else Loaded(from_data(SliceRecord, document.data), document.generation)


def get_slice(services: Services, name: str) -> Loaded[SliceRecord]:
    """Raises NotFoundError with the names there are."""
    loaded = find_slice(services, name)
    if loaded is None:
        records = list_slices(services)
        near = difflib.get_close_matches(name, [record.name for record in records], n=1)
        hint = f"did you mean {near[0]}? `tpuctl ls` lists them" if near else "tpuctl ls"
        raise NotFoundError(f"no slice called {name} (known: {_known(records)})", hint=hint)
    return loaded


MAX_KNOWN = 8
"""So many names are said in an error."""


def _known(records: Sequence[SliceRecord]) -> str:
    """The names of slices that are not gone; the first of them, if they are many."""
    names = [record.name for record in records if record.state is not SliceState.GONE]
    return ", ".join(names[:MAX_KNOWN] + ["…"] * (len(names) > MAX_KNOWN)) or "none"


def load_slice(document: Document) -> Loaded[SliceRecord]:
    """A slice from its document. Raises KeyError, ValueError or TypeError for one that cannot be read."""
    return Loaded(from_data(SliceRecord, document.data), document.generation)


def load_run(document: Document) -> Loaded[RunRecord]:
    """A run from its document. Raises as `load_slice` does."""
    return Loaded(from_data(RunRecord, document.data), document.generation)


def load_slices(services: Services) -> list[Loaded[SliceRecord]]:
    """Every slice of the store with the generation it was read at, by name."""
    return [load_slice(document) for document in services.store.list("slices/")]


def list_slices(services: Services) -> list[SliceRecord]:
    return [loaded.record for loaded in load_slices(services)]


def find_run(services: Services, run_id: str) -> Loaded[RunRecord] | None:
    document = services.store.get(f"runs/{run_id}")
    return None if document is None else Loaded(from_data(RunRecord, document.data), document.generation)


def get_run(services: Services, run_id: str) -> Loaded[RunRecord]:
    """The run called `run_id`; `last` means the newest. Raises NotFoundError."""
    if run_id == "last":
        runs = list_runs(services)
        if not runs:
            raise NotFoundError("there is no run yet", hint="tpuctl run SCRIPT")
        run_id = max(runs, key=lambda run: (run.created_at, run.id)).id
    loaded = find_run(services, run_id)
    if loaded is None:
        near = _nearest_run(run_id, list_runs(services))
        hint = f"did you mean {near}? `tpuctl runs` lists them" if near else "tpuctl runs"
        raise NotFoundError(f"no run called {run_id}", hint=hint)
    return loaded


def _nearest_run(word: str, runs: Sequence[RunRecord]) -> str | None:
    """The id that `word` was meant for: the newest run of that name in a fleet file, or that begins so."""
    newest = sorted(runs, key=lambda run: (run.created_at, run.id), reverse=True)
    begun = [run.id for run in newest if run.fleet_run == word or run.id.startswith(word)]
    near = begun or difflib.get_close_matches(word, [run.id for run in newest], n=1)
    return near[0] if near else None


def list_runs(services: Services) -> list[RunRecord]:
    return [from_data(RunRecord, document.data) for document in services.store.list("runs/")]


def save(services: Services, loaded: Loaded[R], record: R) -> Loaded[R]:
    """Writes `record` over what was loaded. Raises StaleRecordError when somebody else wrote first."""
    try:
        document = services.store.put(record.key, to_data(record), if_generation=loaded.generation)
    except ConflictError as error:
        raise StaleRecordError(
            f"{record.key} was changed by another tpuctl",
            hint="the same command again looks at what is there now",
        ) from error
    return Loaded(record, document.generation)


def save_attempt_history(services: Services, run: RunRecord, attempt: Attempt) -> None:
    """Writes the ended attempt once, beside the run; a repeat is a no-op."""
    save_once(services, f"attempts/{run.id}/{attempt.number:05d}", to_data(attempt))


def save_once(services: Services, key: str, data: Mapping[str, Any]) -> None:
    """Writes a document that nobody changes later. One that another process wrote first stands."""
    if services.store.get(key) is not None:
        return
    try:
        services.store.put(key, data, if_generation=0)
    except ConflictError:
        return  # written since our look, by whoever took over while this process slept


def list_attempts(services: Services, run_id: str) -> list[Attempt]:
    """Ended attempts of a run, oldest first."""
    return [from_data(Attempt, document.data) for document in services.store.list(f"attempts/{run_id}/")]
