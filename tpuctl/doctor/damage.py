"""Records of the store that cannot be read, and which of them may be removed."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from tpuctl.engine.ports import Document
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, DamagedRecordError, NotFoundError
from tpuctl.model.attempts import Attempt
from tpuctl.model.capacity import CapacityNote
from tpuctl.model.records import RunRecord, SliceRecord
from tpuctl.money.grants import Grant
from tpuctl.notify.events import Cursor
from tpuctl.slices.lifetime import IdleWatch
from tpuctl.slices.liveness import Heartbeats
from tpuctl.state.leases import LeaseRecord
from tpuctl.state.repository import decode
from tpuctl.watch.heartbeat import Heartbeat
from tpuctl.watch.pause import Pause


class _Machine(Struct, frozen=True):
    """What every reader of an enrolled machine needs."""

    public_key: str


KINDS: Mapping[str, type] = {
    "attempts": Attempt,
    "capacity": CapacityNote,
    "grants": Grant,
    "hooks": Cursor,
    "host-beats": Heartbeats,
    "idle": IdleWatch,
    "leases": LeaseRecord,
    "machines": _Machine,
    "pause": Pause,
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
