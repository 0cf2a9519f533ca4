"""Slices and runs as typed records over the store's documents."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tpuctl.core.codec import from_data, to_data
from tpuctl.core.records import Attempt, RunRecord, SliceRecord
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
        known = ", ".join(record.name for record in list_slices(services)) or "none"
        near = difflib.get_close_matches(name, [record.name for record in list_slices(services)], n=1)
        hint = f"did you mean {near[0]}? `tpuctl ls` lists them" if near else "tpuctl ls"
        raise NotFoundError(f"no slice called {name} (known: {known})", hint=hint)
    return loaded


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
        raise NotFoundError(f"no run called {run_id}", hint="tpuctl runs")
    return loaded


def list_runs(services: Services) -> list[RunRecord]:
    return [from_data(RunRecord, document.data) for document in services.store.list("runs/")]


def save(services: Services, loaded: Loaded[R], record: R) -> Loaded[R]:
    """Writes `record` over what was loaded. Raises StaleRecordError when somebody else wrote first."""
    try:
        document = services.store.put(record.key, to_data(record), if_generation=loaded.generation)
    except ConflictError as error:
        raise StaleRecordError(f"{record.key} was changed by another tpuctl") from error
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
