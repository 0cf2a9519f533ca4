"""Records of the store by their kinds: the one way in which they are read, changed and removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from tpuctl.engine.ports import Document
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, DamagedRecordError, NotFoundError, StaleRecordError
from tpuctl.lib.codec import from_data, to_data
from tpuctl.lib.retry import retry
from tpuctl.lib.text import suggest
from tpuctl.model.attempts import Attempt
from tpuctl.model.disks import DiskRecord, KeptRun
from tpuctl.model.records import RunRecord, RunState, SliceRecord, SliceState
from tpuctl.state.documents import DamagedData, UnreadData

R = TypeVar("R", SliceRecord, RunRecord)
T = TypeVar("T")
Where = Callable[[Mapping[str, Any]], bool]
"""A condition on the data of a record, asked before one is made of it: thousands of them take time."""


class RequestTime(Struct, frozen=True):
    """The part of a run that tells which is the newest."""

    id: str
    created_at: float


class _Requested(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def created_at(self) -> float: ...


Requested = TypeVar("Requested", bound=_Requested)


class Versioned(Struct, Generic[T], frozen=True):
    """A record and the generation it was read at (0: not stored yet)."""

    record: T
    generation: int


class Repository(Generic[T]):
    """The records of one kind. Their keys in the store are `KIND/NAME`."""

    def __init__(self, cls: type[T], kind: str) -> None:
        self.cls = cls
        self.kind = kind

    def key(self, name: str) -> str:
        return f"{self.kind}/{name}" if name else self.kind

    def find(self, services: Services, name: str) -> Versioned[T] | None:
        """Raises DamagedRecordError."""
        document = services.store.get(self.key(name))
        return None if document is None else Versioned(decode(self.cls, document), document.generation)

    def record(self, services: Services, name: str) -> T | None:
        """As `find`, for who does not write over it."""
        found = self.find(services, name)
        return None if found is None else found.record

    def generation(self, services: Services, name: str) -> int:
        """The generation of the record, readable or not; 0 where there is none."""
        document = services.store.get(self.key(name))
        return 0 if document is None else document.generation

    def names(self, services: Services, under: str = "") -> Sequence[str]:
        """The names of all records, readable or not, or of those that begin with `under`; sorted."""
        start = len(self.kind) + 1
        return [document.key[start:] for document in services.store.list(f"{self.kind}/{under}")]

    def load(
        self, services: Services, under: str = "", where: Where | None = None
    ) -> tuple[Mapping[str, Versioned[T]], Mapping[str, DamagedRecordError]]:
        """The records whose names begin with `under`, by name in order, and what is wrong with those that are
        none: one record says nothing of another."""
        prefix = f"{self.kind}/{under}"
        if where is None:
            read = services.store.read_all(prefix, self._read)
        else:
            read = [self._read(each) for each in services.store.list(prefix) if _is(where, each)]
        found = {name: made for name, made in read if isinstance(made, Versioned)}
        return found, {name: made for name, made in read if isinstance(made, DamagedRecordError)}

    def _read(self, document: Document) -> tuple[str, Versioned[T] | DamagedRecordError]:
        name = document.key[len(self.kind) + 1 :]
        try:
            return name, Versioned(decode(self.cls, document), document.generation)
        except DamagedRecordError as error:
            return name, error

    def readable(
        self, services: Services, under: str = "", where: Where | None = None
    ) -> tuple[list[T], list[DamagedRecordError]]:
        """As `load`, for what is only shown: what deletes or spends takes `list`."""
        found, damaged = self.load(services, under, where)
        return [each.record for each in found.values()], [*damaged.values()]

    def named(self, services: Services, under: str = "", where: Where | None = None) -> Mapping[str, T]:
        """The records by their names. Raises DamagedRecordError where one is."""
        found, damaged = self.load(services, under, where)
        for error in damaged.values():
            raise error.with_traceback(None)  # it is kept, and would keep the frames of each time it was raised
        return {name: each.record for name, each in found.items()}

    def list(self, services: Services, under: str = "", where: Where | None = None) -> list[T]:
        """As `named`, without the names."""
        return [*self.named(services, under, where).values()]

    def create(self, services: Services, name: str, record: T) -> bool:
        """Writes a record once; one that is there already stands (False)."""
        return not self.generation(services, name) and self.try_put(services, name, record, 0)

    def put(self, services: Services, name: str, record: T, generation: int) -> Versioned[T]:
        """Writes over what was read at `generation`, 0 for nothing. Raises StaleRecordError when somebody else
        wrote first."""
        key = self.key(name)
        try:
            document = services.store.put(key, to_data(record), if_generation=generation)
        except ConflictError as error:
            raise _stale(key) from error
        return Versioned(record, document.generation)

    def try_put(self, services: Services, name: str, record: T, generation: int) -> bool:
        """As `put`; False where somebody else wrote first."""
        try:
            self.put(services, name, record, generation)
        except StaleRecordError:
            return False
        return True

    def update(self, services: Services, name: str, change: Callable[[T | None], T]) -> T:
        """Reads a record, changes and writes it, however many do so at the same time: `change` gets what is
        there (None: nothing), and gets it again when somebody else wrote first. What comes out as it was is not
        written."""

        def once() -> T:
            there = self.find(services, name)
            changed = change(None if there is None else there.record)
            if there is None or changed != there.record:
                self.put(services, name, changed, 0 if there is None else there.generation)
            return changed

        return _despite_others(services, once)

    def overwrite(self, services: Services, name: str, record: T) -> T:
        """Writes over whatever is there, also what cannot be read; of several who do so the last counts."""

        def once() -> T:
            return self.put(services, name, record, self.generation(services, name)).record

        return _despite_others(services, once)

    def delete(self, services: Services, name: str, generation: int | None = None) -> bool:
        """Removes a record, readable or not; False where there is none. Raises StaleRecordError when it changes
        meanwhile, or since it was read at `generation`."""
        generation = self.generation(services, name) if generation is None else generation
        if not generation:
            return False
        try:
            services.store.delete(self.key(name), if_generation=generation)
        except ConflictError as error:
            raise _stale(self.key(name)) from error
        return True


def _despite_others(services: Services, once: Callable[[], T]) -> T:
    """However many write the same: one of them gets through each time."""
    sleep = services.clock.sleep
    return retry(once, (StaleRecordError,), tries=40, pause_s=0.05, growth=1.1, sleep=sleep)


def _stale(key: str) -> StaleRecordError:
    hint = "the same command again looks at what is there now"
    return StaleRecordError(f"{key} was changed by another tpuctl", hint=hint)


def _is(where: Where, document: Document) -> bool:
    """A damaged document is not passed over."""
    try:
        return where(document.data)
    except DamagedRecordError:
        return True


def decode(cls: type[T], document: Document) -> T:
    """The record in `document`. Raises DamagedRecordError for one that is none."""
    data = document.data
    try:
        return data.record(cls) if isinstance(data, UnreadData | DamagedData) else from_data(cls, data)
    except ValueError as error:
        raise DamagedRecordError(document.key, str(error)) from error


SLICES = Repository(SliceRecord, "slices")
RUNS = Repository(RunRecord, "runs")
_REQUESTED = Repository(RequestTime, "runs")
ATTEMPTS = Repository(Attempt, "attempts")
"""Attempts that have ended, as `RUN/NUMBER`: nobody changes them."""
DISKS = Repository(DiskRecord, "disks")
KEPT_RUNS = Repository(KeptRun, "kept")

find_slice, list_slices, readable_slices = SLICES.find, SLICES.list, SLICES.readable
find_run, list_runs, readable_runs = RUNS.find, RUNS.list, RUNS.readable


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
"""Names that are said in an error."""


def known_names(records: Sequence[SliceRecord]) -> str:
    """The names of slices that are not gone; the first of them, if they are many."""
    names = [record.name for record in records if record.state is not SliceState.GONE]
    return ", ".join(names[:MAX_KNOWN] + ["…"] * (len(names) > MAX_KNOWN)) or "none"


def get_run(services: Services, run_id: str) -> Versioned[RunRecord]:
    """The run called `run_id`; `last` means the newest. Raises NotFoundError."""
    if run_id == "last":
        newest = _find_newest(services)
        if newest is None:
            raise NotFoundError("there is no run yet", hint="tpuctl run SCRIPT")
        return newest
    stored = find_run(services, run_id)
    if stored is None:
        near = _nearest_run(run_id, readable_runs(services)[0])
        hint = f"did you mean {near}? `tpuctl runs` lists them" if near else "tpuctl runs"
        raise NotFoundError(f"no run called {run_id}", hint=hint)
    return stored


def _find_newest(services: Services) -> Versioned[RunRecord] | None:
    """The newest run that can be read. Of all others only the time is."""
    for run in newest_first(_REQUESTED.readable(services)[0], services.store.now()):
        with suppress(DamagedRecordError):
            if (stored := find_run(services, run.id)) is not None:
                return stored
    return None


AHEAD_S = 60.0
"""Clocks of machines that share a store agree to about a second (NTP, the bucket's time)."""


def newest_first(runs: Iterable[Requested], now: float) -> list[Requested]:
    """Runs by when they were asked for; those from a machine whose clock was ahead come last: nobody asked for
    them later than now, and one wrong clock must not decide for ever what "the newest run" is."""
    return sorted(runs, key=lambda run: (run.created_at <= now + AHEAD_S, run.created_at, run.id), reverse=True)


def _nearest_run(word: str, runs: Sequence[RunRecord]) -> str | None:
    """The id that `word` was meant for: the newest run of that name in a fleet file, or that begins so."""
    newest = sorted(runs, key=lambda run: (run.created_at, run.id), reverse=True)
    begun = [run.id for run in newest if run.fleet_run == word or run.id.startswith(word)]
    return begun[0] if begun else suggest(word, [run.id for run in newest])


def active_runs(services: Services, slice_name: str) -> list[RunRecord]:
    """The runs that are not over yet on a slice: one, or several that each have their own chips of it. Raises
    DamagedRecordError for one of this slice that cannot be read, and for one that does not say where it is."""
    found = RUNS.list(services, where=lambda data: _slice_said(data) in (slice_name, None))
    return [run for run in found if run.slice_name == slice_name and not run.state.final]


def _slice_said(data: Mapping[str, Any]) -> str | None:
    """The slice of a run, as far as its document says one."""
    spec = data.get("spec")
    said = spec.get("slice_name") if isinstance(spec, Mapping) else None
    return said if isinstance(said, str) else None


_OVER = tuple(str(state) for state in RunState if state.final)
"""No set: a damaged run may say anything, also what has no hash."""


def runs_under_way(services: Services) -> list[RunRecord]:
    """The readable runs that are not over yet. Those of years are not made records for that."""
    return RUNS.readable(services, where=lambda data: data.get("state") not in _OVER)[0]


def save(services: Services, stored: Versioned[R], record: R) -> Versioned[R]:
    """Writes the record of a slice or run over what was loaded. Raises StaleRecordError as `put` does."""
    if isinstance(record, SliceRecord):
        return SLICES.put(services, record.name, record, stored.generation)
    return RUNS.put(services, record.id, record, stored.generation)


def save_attempt_history(services: Services, run: RunRecord, attempt: Attempt) -> None:
    """Writes the ended attempt once, beside the run; a repeat is a no-op."""
    ATTEMPTS.create(services, f"{run.id}/{attempt.number:05d}", attempt)


def list_attempts(services: Services, run_id: str) -> list[Attempt]:
    """Ended attempts of a run, oldest first."""
    return ATTEMPTS.list(services, f"{run_id}/")
