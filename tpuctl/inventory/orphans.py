"""What this fleet made and no longer wants: collected on every pass, because dead requests eat quota."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from tpuctl.engine.services import Services
from tpuctl.errors import LeaseHeldError, TpuctlError, TransientError
from tpuctl.inventory.delete import delete_tpu
from tpuctl.inventory.ownership import Claim, Refusal
from tpuctl.inventory.resources import gather
from tpuctl.lib.names import label_value
from tpuctl.model.cloud import INCARNATION_LABEL, OWNER_LABEL, STORE_LABEL, CloudResource, NodeInfo, QueuedInfo
from tpuctl.model.records import SliceRecord, SliceState
from tpuctl.state.journal import record_decision
from tpuctl.state.leases import take_lease
from tpuctl.state.repository import Versioned


class Collected(Struct, frozen=True):
    """What became of one: whether its deletion was asked for, and why or why not."""

    name: str
    deleted: bool
    why: str


def collect_obsolete(
    services: Services,
    nodes: Iterable[NodeInfo],
    queued: Iterable[QueuedInfo],
    slices: Iterable[Versioned[SliceRecord]],
) -> list[Collected]:
    """Deletes what carries all labels of this store and an incarnation that its slice has left behind.

    Such a thing stays when the answer to a create was lost and a late read hid what it had made. The list that
    found it and a second read by name must agree. What is being worked on by others is left out.
    """
    records = {stored.record.name: stored.record for stored in slices}
    store_id = services.store.identity()
    found = []
    for each in gather(nodes, queued):
        record = records.get(each.slice_name)
        why = "" if record is None or each.state == "DELETING" else _left_behind(each, record, store_id)
        if record is not None and why:
            found.append(_collect(services, each, record, why))
    return [each for each in found if each is not None]


def _left_behind(found: CloudResource, record: SliceRecord, store_id: str) -> str:
    """Why `found` is certainly ours and certainly not wanted, or an empty string."""
    number = found.labels.get(INCARNATION_LABEL, "")
    if found.labels.get(STORE_LABEL) != store_id or not (number.isascii() and number.isdigit()):
        return ""
    gone = record.state is SliceState.GONE
    current = int(number) >= record.last_incarnation + (1 if gone else 0)
    if current or not _named(found.name, f"{record.name}-{number}"):
        return ""
    if gone:
        return f"incarnation {number} of {record.name}, which was taken down"
    return f"incarnation {number} of {record.name}, which is at {record.last_incarnation}"


def _named(name: str, base: str) -> bool:
    """Whether it is called like an incarnation, or like one of the nodes of a multislice."""
    return name == base or (name.startswith(f"{base}-") and name.removeprefix(f"{base}-").isdigit())


def _claim(found: CloudResource, record: SliceRecord, store_id: str) -> Claim:
    labels = {OWNER_LABEL: record.name, INCARNATION_LABEL: found.labels[INCARNATION_LABEL]}
    return Claim({**labels, STORE_LABEL: store_id}, None if record.any_user else label_value(record.owner))


def _collect(services: Services, found: CloudResource, record: SliceRecord, why: str) -> Collected | None:
    """Asks for the deletion of one of them; trouble with it does not stop the pass."""
    text = f"{found.name} in {found.location}: {why}; listed and read"
    try:
        with take_lease(services, record.name) as lease:

            def decide(_again: CloudResource) -> Refusal | None:
                record_decision(
                    services, record.key, "collect", text, incarnation=found.name, fence=lease.fence
                )
                return None

            claim = _claim(found, record, services.store.identity())
            refused = delete_tpu(services, found, claim, decide)
    except (LeaseHeldError, TransientError):
        return None  # the next pass finds it again
    except TpuctlError as error:
        return Collected(found.name, deleted=False, why=f"could not be deleted: {error.message}")
    if refused is not None:
        return Collected(found.name, deleted=False, why=f"not deleted: {refused.why}; {refused.hint}")
    return Collected(found.name, deleted=True, why="deleted: nothing wants it any more")
