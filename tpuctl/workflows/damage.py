"""Records of the store that cannot be read, and which of them may be removed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tpuctl.core.capacity import CapacityNote
from tpuctl.core.evidence import Beats
from tpuctl.core.grants import Grant
from tpuctl.core.hooks import Ledger
from tpuctl.core.idle import IdleWatch
from tpuctl.core.prune import Retired
from tpuctl.core.records import Attempt, RunRecord, SliceRecord
from tpuctl.core.watch import Heartbeat
from tpuctl.errors import ConflictError, DamagedRecordError, NotFoundError
from tpuctl.ports import Document
from tpuctl.workflows.documents import decode
from tpuctl.workflows.leases import Holding
from tpuctl.workflows.pausing import Pause
from tpuctl.workflows.services import Services


@dataclass(frozen=True)
class _Machine:
    """What every reader of an enrolled machine needs."""

    public_key: str


KINDS: Mapping[str, type] = {
    "attempts": Attempt,
    "capacity": CapacityNote,
    "grants": Grant,
    "hooks": Ledger,
    "host-beats": Beats,
    "idle": IdleWatch,
    "leases": Holding,
    "machines": _Machine,
    "pause": Pause,
    "retired": Retired,
    "runs": RunRecord,
    "slices": SliceRecord,
    "watchdogs": Heartbeat,
}
"""What the documents below each of these prefixes are."""


def check_damaged(services: Services, key: str) -> Document:
    """The damaged record at `key`. Raises NotFoundError, and ConflictError for one that can be read."""
    document = services.store.get(key)
    if document is None:
        raise NotFoundError(f"there is no record {key} in the store", hint="tpuctl doctor")
    try:
        if key.partition("/")[0] in KINDS:
            decode(KINDS[key.partition("/")[0]], document)
        else:
            dict(document.data)
    except DamagedRecordError:
        return document
    raise ConflictError(f"the record {key} can be read; it is not removed", hint="tpuctl doctor")
