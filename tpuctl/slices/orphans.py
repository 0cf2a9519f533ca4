"""What this fleet made and no longer wants: collected on every pass, because dead requests eat quota.

What can write a disk is asked first, as before any deletion; where its hosts prove nothing, it is left to a
person, who is told so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.engine.services import Services
from tpuctl.errors import LeaseHeldError, StaleRecordError, TpuctlError, TransientError
from tpuctl.inventory.delete import delete_owned, find_nodes
from tpuctl.inventory.ownership import Refusal, claim_as_labelled
from tpuctl.inventory.resources import Caller, Fate, gather, judge, listed_nodes, written_disks
from tpuctl.lib.names import label_value
from tpuctl.lib.time import parse_timestamp
from tpuctl.model import timeouts
from tpuctl.model.cloud import (
    INCARNATION_LABEL,
    CloudResource,
    NodeInfo,
    NodeState,
    QueuedInfo,
)
from tpuctl.model.records import Incarnation, Orphan, SliceRecord, SliceState
from tpuctl.model.verdict import Wait
from tpuctl.slices.leaving import HostsLeft, Written
from tpuctl.slices.observe import CloudInventory
from tpuctl.slices.probing import find_workers
from tpuctl.slices.vacate import ask_hosts
from tpuctl.state.journal import record_decision
from tpuctl.state.leases import Lease, acquire, release, renew
from tpuctl.state.repository import Versioned, get_slice, list_slices, save

NO_FENCE = 0
"""Disks need none: only what mounts buckets does, and nobody knows of those of an earlier life."""


class CollectedOrphan(Struct, frozen=True):
    """What became of one: whether its deletion was asked for, and why or why not. `waits`: not yet."""

    name: str
    deleted: bool
    why: str
    waits: bool = False


class Obsolete(Struct, frozen=True):
    """What carries all labels of this store and an incarnation that its slice has left behind. `hosts` are
    asked before it goes, for they can write a disk."""

    found: CloudResource
    record: SliceRecord
    hosts: int

    @property
    def key(self) -> str:
        return f"orphans/{self.found.location}/{self.found.name}"


def find_obsolete(
    nodes: Collection[NodeInfo],
    queued: Iterable[QueuedInfo],
    slices: Iterable[Versioned[SliceRecord]],
    store_id: str,
) -> list[Obsolete]:
    """Such a thing stays when the answer to a create was lost and a late read hid what it had made."""
    records = {stored.record.name: stored.record for stored in slices}
    found = []
    for each in gather(nodes, queued):
        if each.state != "DELETING" and _left_behind(each, records, store_id):
            writing = (node for node in listed_nodes(each, nodes) if written_disks(node))
            hosts = sum(max(1, len(node.endpoints)) for node in writing)
            found.append(Obsolete(each, records[each.slice_name], hosts))
    return found


def collect_obsolete(services: Services, obsolete: Iterable[Obsolete]) -> list[CollectedOrphan]:
    """Deletes what is obsolete. The list that found it and a second read by name must agree, and so must the
    records as they are then: what was adopted in between stays. What is being worked on by others is left
    out."""
    found = [_collect(services, each.found, each.record) for each in obsolete]
    return [each for each in found if each is not None]


def forget_orphans(
    services: Services, slices: Iterable[Versioned[SliceRecord]], inventory: CloudInventory
) -> None:
    """Takes those off the records that are gone, as far as the cloud could be read."""
    for stored in slices:
        kept = tuple(each for each in stored.record.orphans if not inventory.absent(each.zone, each.name))
        if kept != stored.record.orphans:
            with suppress(StaleRecordError):  # the next pass does it
                save(services, stored, replace(stored.record, orphans=kept))


def _left_behind(found: CloudResource, records: Mapping[str, SliceRecord], store_id: str) -> str:
    """Why `found` is certainly ours and certainly not wanted, or an empty string."""
    record = records.get(found.slice_name)
    number = found.labels.get(INCARNATION_LABEL, "")
    if record is None or not (number.isascii() and number.isdigit()):
        return ""
    if _is_current(record, int(number)) or not _named(found.name, f"{record.name}-{number}"):
        return ""
    # Last, for it compares with every record. Whose it is, is proved before the deletion: `claim_as_labelled`.
    if judge(found, records, Caller(store_id, user="", all_users=True)).fate is not Fate.DELETE:
        return ""
    if record.state is SliceState.GONE:
        return f"incarnation {number} of {record.name}, which was taken down"
    return f"incarnation {number} of {record.name}, which is at {record.last_incarnation}"


def _is_current(record: SliceRecord, number: int) -> bool:
    """Whether the loop sees to an incarnation itself, or nobody knows it yet."""
    if number > record.last_incarnation:
        return True
    lives = [place.incarnation for place in record.places]
    seen_to = any(life is not None and life.number == number for life in lives)
    return record.state is not SliceState.GONE and (seen_to or record.wants(number))


def _named(name: str, base: str) -> bool:
    """Whether it is called like an incarnation, or like one of the nodes of a multislice."""
    return name == base or (name.startswith(f"{base}-") and name.removeprefix(f"{base}-").isdigit())


def _collect(services: Services, found: CloudResource, record: SliceRecord) -> CollectedOrphan | None:
    """Asks for the deletion of one of them; trouble with it does not stop the pass."""
    try:
        return _Collecting(services, found, record).work()
    except (LeaseHeldError, StaleRecordError, TransientError):
        return None  # the next pass finds it again
    except TpuctlError as error:
        return CollectedOrphan(found.name, deleted=False, why=f"could not be deleted: {error.message}")


class _Collecting:
    """The deletion of one TPU, under the lease of its slice."""

    def __init__(self, services: Services, found: CloudResource, record: SliceRecord) -> None:
        self._services = services
        self._found = found
        self._record = record
        self._store_id = services.store.identity()
        self._left: HostsLeft | Wait = HostsLeft()

    def work(self) -> CollectedOrphan:
        services, found = self._services, self._found
        self._lease = acquire(services, self._record.name)
        try:
            user = None if self._record.any_user else label_value(self._record.owner)
            claim = claim_as_labelled(found, self._store_id, user)
            refused = delete_owned(services, found, claim, self._decide).refused
            left = self._left
            if isinstance(left, HostsLeft) and left.left != Written() and not left.working:
                _note(services, found, self._record.name, _said(left), self._lease)
        finally:
            release(services, self._lease)
        if isinstance(left, Wait):
            return CollectedOrphan(found.name, deleted=False, why=f"not deleted yet: {left.why}", waits=True)
        if refused is not None:
            return CollectedOrphan(found.name, deleted=False, why=f"not deleted: {refused.why}; {refused.hint}")
        return CollectedOrphan(found.name, deleted=True, why="deleted: nothing wants it any more")

    def _decide(self, again: CloudResource) -> Refusal | None:
        if not self._unwanted(again):
            return self._wanted()
        self._left = left = _ask(self._services, self._record, again)
        if isinstance(left, Wait):
            return Refusal(left.why, "tpuctl ls")
        if left.left != Written():
            return Refusal(_said(left), "tpuctl reap --force")
        # Hosts may have taken longer than the lease lasts, and others may have adopted it meanwhile.
        self._lease = renew(self._services, self._lease)
        why = self._unwanted(again)
        if not why:
            return self._wanted()
        text = f"{again.name} in {again.location}: {why}; listed and read"
        record_decision(
            self._services, self._record.key, "collect", text, incarnation=again.name, fence=self._lease.fence
        )
        return None

    def _unwanted(self, again: CloudResource) -> str:
        """Why it is not wanted, by the records as they are now."""
        records = {each.name: each for each in list_slices(self._services)}
        return _left_behind(again, records, self._store_id)

    def _wanted(self) -> Refusal:
        return Refusal(f"{self._record.name} wants it after all", "tpuctl ls")


def _ask(services: Services, record: SliceRecord, found: CloudResource) -> HostsLeft | Wait:
    """What may be lost with a TPU of an earlier life of a slice, after its hosts were asked. Wait where that
    cannot be known yet."""
    nodes = find_nodes(services, found)
    if nodes.unseen:
        return Wait(f"node {', '.join(nodes.unseen)} is not shown, and may be there")
    for node in nodes.shown:
        written = Written(written_disks(node))
        if written == Written():
            continue
        life = Incarnation(int(found.labels[INCARNATION_LABEL]), node.name, 0.0, node_uid=node.uid)
        spec = replace(record.spec, zone=node.zone, slices=1)
        earlier = replace(record, spec=spec, incarnation=life)
        workers = find_workers(services, earlier, node)
        if isinstance(workers, str):
            if _is_new(node, services.store.now()):
                return Wait(f"node {node.name} is {node.state}: its hosts cannot be asked yet")
            return HostsLeft(written, f"they cannot be asked for want of {workers}")
        earlier = replace(earlier, incarnation=replace(life, workers=workers))
        left = ask_hosts(services, earlier, written, NO_FENCE)
        if left.left != Written():
            return left
    return HostsLeft()


def _is_new(node: NodeInfo, now: float) -> bool:
    """Whether it is still being made; not for ever, for it costs."""
    made_at = parse_timestamp(node.create_time)
    made_now = made_at is not None and now < made_at + timeouts.UNCLEAR_MAX_S
    return node.state is NodeState.CREATING and made_now


def _said(left: HostsLeft) -> str:
    return f"its hosts can write {', '.join(left.left.disks)}: {left.said}"


def _note(services: Services, found: CloudResource, name: str, why: str, lease: Lease) -> None:
    """Once for each: in the journal, and in the record, so that passes look at it until it is gone."""
    stored = get_slice(services, name)
    known = {(each.zone, each.name) for each in stored.record.orphans}
    if (found.location, found.name) in known:
        return
    orphan = Orphan(found.location, found.name, services.store.now(), why)
    save(services, stored, replace(stored.record, orphans=(*stored.record.orphans, orphan)))
    # After the record, which may have changed meanwhile: the next pass would say it again.
    text = f"{found.name} in {found.location} stays and costs: {why}; tpuctl reap --force deletes it"
    record_decision(services, stored.record.key, "orphan", text, incarnation=found.name, fence=lease.fence)
