"""What this fleet made and no longer wants: collected on every pass, because dead requests eat quota."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tpuctl.core.model import INCARNATION_LABEL, OWNER_LABEL, STORE_LABEL, NodeInfo, QueuedInfo, QueuedState
from tpuctl.core.records import SliceRecord, SliceState
from tpuctl.errors import LeaseHeldError, TpuctlError
from tpuctl.workflows.documents import Loaded
from tpuctl.workflows.events import Warn
from tpuctl.workflows.journal import record_decision
from tpuctl.workflows.leases import lease
from tpuctl.workflows.observe import Snapshot
from tpuctl.workflows.services import Services


@dataclass(frozen=True)
class _Obsolete:
    """A node or queued resource of an earlier incarnation of one of our slices."""

    slice_name: str
    zone: str
    name: str
    queued: bool
    labels: Mapping[str, str]
    why: str


def collect_obsolete(
    services: Services, snapshot: Snapshot, slices: Iterable[Loaded[SliceRecord]]
) -> list[str]:
    """Deletes what carries all labels of this store and an incarnation that its slice has left behind.

    Such a thing stays when the answer to a create was lost and a late read hid what it had made. The list that
    found it and a second read by name must agree. Returns the names that a deletion was asked for.
    """
    records = {loaded.record.name: loaded.record for loaded in slices}
    found = list(_find_obsolete(snapshot, records, services.store.identity()))
    return [each.name for each in found if _collect(services, each)]


def _find_obsolete(
    snapshot: Snapshot, records: Mapping[str, SliceRecord], store_id: str
) -> Iterable[_Obsolete]:
    for queued in snapshot.queued.values():
        why = _left_behind(queued, records, store_id)
        if why and queued.state is not QueuedState.DELETING:
            yield _Obsolete(queued.labels[OWNER_LABEL], queued.zone, queued.name, True, queued.labels, why)
    for node in snapshot.nodes.values():
        why = _left_behind(node, records, store_id)
        # A queued resource takes its node along.
        if why and not node.queued_resource and node.state != "DELETING":
            yield _Obsolete(node.labels[OWNER_LABEL], node.zone, node.name, False, node.labels, why)


def _left_behind(thing: NodeInfo | QueuedInfo, records: Mapping[str, SliceRecord], store_id: str) -> str:
    """Why `thing` is certainly ours and certainly not wanted, or an empty string."""
    labels = thing.labels
    record = records.get(labels.get(OWNER_LABEL, ""))
    number = labels.get(INCARNATION_LABEL, "")
    if labels.get(STORE_LABEL) != store_id or record is None or not number.isdigit():
        return ""
    gone = record.state is SliceState.GONE
    current = int(number) >= record.last_incarnation + (1 if gone else 0)
    if thing.name != f"{record.name}-{number}" or current:
        return ""
    if gone:
        return f"incarnation {number} of {record.name}, which was taken down"
    return f"incarnation {number} of {record.name}, which is at {record.last_incarnation}"


def _collect(services: Services, found: _Obsolete) -> bool:
    """Asks for the deletion of one of them; trouble with it is told and does not stop the pass."""
    try:
        with lease(services, found.slice_name) as held:
            cloud = services.cloud
            again: QueuedInfo | NodeInfo | None = (
                cloud.find_queued(found.zone, found.name)
                if found.queued
                else cloud.find_node(found.zone, found.name)
            )
            if again is None or dict(again.labels) != dict(found.labels):
                return False
            key = f"slices/{found.slice_name}"
            why = f"{found.name} in {found.zone}: {found.why}; listed and read"
            record_decision(services, key, "collect", why, incarnation=found.name, fence=held.fence)
            if found.queued:
                cloud.delete_queued(found.zone, found.name)
            else:
                cloud.delete_node(found.zone, found.name)
    except LeaseHeldError:
        return False
    except TpuctlError as error:
        services.emit(Warn(found.slice_name, f"{found.name} could not be deleted: {error.message}"))
        return False
    return True
