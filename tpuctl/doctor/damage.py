"""Records of the store that cannot be read, and which of them may be removed."""

from __future__ import annotations

from typing import Any

from tpuctl.datasets.receipt import RECEIPTS
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, DamagedRecordError, NotFoundError
from tpuctl.money.coverage import GRANTS
from tpuctl.notify.deliver import HOOKS
from tpuctl.provenance.parts import PARTS
from tpuctl.runs.log_archive import ARCHIVES
from tpuctl.runs.sweep_record import SWEEPS
from tpuctl.slices.capacity_notes import NOTES
from tpuctl.slices.enrollment import ENROLLED
from tpuctl.slices.heartbeats import HOST_BEATS
from tpuctl.state.documents import is_entry
from tpuctl.state.journal import ENTRIES
from tpuctl.state.leases import LEASES
from tpuctl.state.repository import ATTEMPTS, DISKS, KEPT_RUNS, RUNS, SLICES, Repository
from tpuctl.watch.cycle import WATCHDOGS
from tpuctl.watch.grant_expiry import NOTICES
from tpuctl.watch.lifetime import IDLE
from tpuctl.watch.pause import PAUSE

_OF_RUNS = (RUNS, ATTEMPTS, SWEEPS, PARTS, ARCHIVES, KEPT_RUNS, RECEIPTS)
_OF_SLICES = (SLICES, DISKS, ENROLLED, HOST_BEATS, IDLE, NOTES, GRANTS, NOTICES)
REPOSITORIES: tuple[Repository[Any], ...] = (
    *_OF_RUNS,
    *_OF_SLICES,
    *(LEASES, HOOKS, PAUSE, WATCHDOGS, ENTRIES),
)
"""Those of all kinds of records."""


def check_damaged(services: Services, key: str) -> int:
    """The generation of the damaged record at `key`. Raises NotFoundError, and ConflictError for one that is
    not."""
    records, name = _at(key)
    generation = records.generation(services, name)
    if not generation:
        raise NotFoundError(f"there is no record {key} in the store", hint="tpuctl doctor")
    try:
        records.find(services, name)
    except DamagedRecordError:
        return generation
    raise ConflictError(f"the record {key} can be read; it is not removed", hint="tpuctl doctor")


def remove_damaged(services: Services, key: str, generation: int) -> None:
    """Removes what `check_damaged` found. Raises StaleRecordError when it changed since."""
    records, name = _at(key)
    if is_entry(key):
        services.store.remove_entries([key])
    else:
        records.delete(services, name, generation)


def _at(key: str) -> tuple[Repository[Any], str]:
    kind, _, name = key.partition("/")
    return next((each for each in REPOSITORIES if each.kind == kind), Repository(dict, kind)), name
