"""What this fleet made and no longer wants: collected on every pass, because dead requests eat quota."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from tpuctl.engine.services import Services
from tpuctl.errors import LeaseHeldError, TpuctlError, TransientError
from tpuctl.inventory.delete import delete_tpu, find_written
from tpuctl.inventory.ownership import Claim, Refusal
from tpuctl.inventory.resources import Caller, Fate, gather, judge
from tpuctl.lib.names import label_value
from tpuctl.model.cloud import INCARNATION_LABEL, OWNER_LABEL, STORE_LABEL, CloudResource, NodeInfo, QueuedInfo
from tpuctl.model.records import SliceRecord, SliceState
from tpuctl.state.journal import record_decision
from tpuctl.state.leases import take_lease
from tpuctl.state.repository import Versioned, list_slices


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
    found it and a second read by name must agree, and so must the records as they are then: what was adopted in
    between stays. What is being worked on by others is left out.
    """
    records = {stored.record.name: stored.record for stored in slices}
    store_id = services.store.identity()
    found = [
        _collect(services, each, records[each.slice_name])
        for each in gather(nodes, queued)
        if each.state != "DELETING" and _left_behind(each, records, store_id)
    ]
    return [each for each in found if each is not None]


def _left_behind(found: CloudResource, records: Mapping[str, SliceRecord], store_id: str) -> str:
    """Why `found` is certainly ours and certainly not wanted, or an empty string."""
    record = records.get(found.slice_name)
    number = found.labels.get(INCARNATION_LABEL, "")
    if record is None or not (number.isascii() and number.isdigit()):
        return ""
    # Whose it is, is proved right before the deletion: see `_claim`.
    if judge(found, records, Caller(store_id, user="", all_users=True)).fate is not Fate.DELETE:
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


def _collect(services: Services, found: CloudResource, record: SliceRecord) -> Collected | None:
    """Asks for the deletion of one of them; trouble with it does not stop the pass."""
    store_id = services.store.identity()
    try:
        with take_lease(services, record.name) as lease:

            def decide(again: CloudResource) -> Refusal | None:
                records = {each.name: each for each in list_slices(services)}
                why = _left_behind(again, records, store_id)
                if not why:
                    return Refusal(f"{record.name} wants it after all", "tpuctl ls")
                written = find_written(services, again)
                if written:
                    disks = ", ".join(written)
                    return Refusal(f"its hosts, which nobody can ask, can write {disks}", "tpuctl reap --force")
                text = f"{found.name} in {found.location}: {why}; listed and read"
                record_decision(
                    services, record.key, "collect", text, incarnation=found.name, fence=lease.fence
                )
                return None

            refused = delete_tpu(services, found, _claim(found, record, store_id), decide)
    except (LeaseHeldError, TransientError):
        return None  # the next pass finds it again
    except TpuctlError as error:
        return Collected(found.name, deleted=False, why=f"could not be deleted: {error.message}")
    if refused is not None:
        return Collected(found.name, deleted=False, why=f"not deleted: {refused.why}; {refused.hint}")
    return Collected(found.name, deleted=True, why="deleted: nothing wants it any more")
