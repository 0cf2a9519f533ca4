"""Records of the store that cannot be read, and which of them may be removed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, DamagedRecordError, NotFoundError
from tpuctl.model.attempts import Attempt
from tpuctl.model.capacity import CapacityNote
from tpuctl.model.records import RunRecord, SliceRecord
from tpuctl.money.grants import Grant
from tpuctl.notify.events import Cursor
from tpuctl.slices.enrollment import EnrolledMachine
from tpuctl.slices.lifetime import IdleWatch
from tpuctl.slices.liveness import Heartbeats
from tpuctl.state.leases import LeaseRecord
from tpuctl.state.repository import Repository
from tpuctl.watch.heartbeat import Heartbeat
from tpuctl.watch.pause import Pause

KINDS: Mapping[str, type] = {
    "attempts": Attempt,
    "capacity": CapacityNote,
    "grants": Grant,
    "hooks": Cursor,
    "host-beats": Heartbeats,
    "idle": IdleWatch,
    "leases": LeaseRecord,
    "machines": EnrolledMachine,
    "pause": Pause,
    "runs": RunRecord,
    "slices": SliceRecord,
    "watchdogs": Heartbeat,
}
"""What the documents below each of these prefixes are."""


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
    records.delete(services, name, generation)


def _at(key: str) -> tuple[Repository[Any], str]:
    kind, _, name = key.partition("/")
    return Repository(KINDS.get(kind, dict), kind), name
