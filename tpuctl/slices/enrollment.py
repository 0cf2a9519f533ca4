"""Which machines may log in to hosts: their keys stand in the store and go to nodes that live already, too.

A key reaches a live node through its metadata, as gcloud does it before a first `tpu-vm ssh`: the guest agent
takes it from there. So it needs no machine that the hosts know already. Metadata is replaced as a whole and has
no etag: it is read right before, under the slice's lease, and everything else in it is sent back as it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.engine.services import Services
from tpuctl.errors import (
    BusyError,
    LeaseHeldError,
    NotFoundError,
    StaleRecordError,
)
from tpuctl.lib.names import node_names
from tpuctl.lib.text import counted
from tpuctl.lib.time import draw_by_minute
from tpuctl.model import timeouts
from tpuctl.model.cloud import NodeInfo, NodeState
from tpuctl.model.records import WITH_HOSTS, SliceRecord
from tpuctl.model.verdict import Blind, Blocked, Verdict, wait_for
from tpuctl.slices.observe import find_slice_node
from tpuctl.slices.validation import OS_LOGIN, OS_LOGIN_OFF
from tpuctl.state.journal import record_decision
from tpuctl.state.leases import take_lease
from tpuctl.state.repository import Repository, Versioned, get_slice, save

KEYS = "ssh-keys"
KEYS_PER_PASS = 30
"""Slices whose nodes one pass gives keys to: each takes two calls of the API, and runs wait for the pass. Keys
of machines that were removed are taken from all nodes at once."""


class EnrolledMachine(Struct, frozen=True, omit_defaults=True):
    """A machine that was ever enrolled, with its key and those that it had before."""

    public_key: str
    user: str = ""
    former_keys: tuple[str, ...] = ()
    removed: bool = False


ENROLLED = Repository(EnrolledMachine, "machines")


class MachineKeys(Struct, frozen=True):
    """The public keys of the machines that may log in, and those that open nothing any more: all of machines
    that were removed, and the `former` ones of machines that have another now.

    A key is the same whatever its comment says. One that two machines share stays as long as either may.
    """

    enrolled: tuple[str, ...]
    removed: tuple[str, ...] = ()
    former: tuple[str, ...] = ()

    def keys_for(self, login_user: str) -> str:
        """`ssh-keys` metadata of a new node."""
        return "\n".join(f"{login_user}:{key}" for key in self.enrolled)

    def metadata_of(self, node: NodeInfo, login_user: str) -> dict[str, str]:
        """The metadata that `node` should have. Lines that are not of these machines stay; OS Login, with which
        hosts ignore keys, is off."""
        away = self._away((*self.removed, *self.former), login_user)
        lines = [line for line in node.metadata.get(KEYS, "").splitlines() if _core(line) not in away]
        known = {_core(line) for line in lines}
        lines += [line for line in self.keys_for(login_user).splitlines() if _core(line) not in known]
        return {**node.metadata, OS_LOGIN: OS_LOGIN_OFF, KEYS: "\n".join(lines)}

    def opens_to_removed(self, node: NodeInfo, login_user: str) -> bool:
        """Whether `node` still lets a machine in that was removed."""
        away = self._away(self.removed, login_user)
        return any(_core(line) in away for line in node.metadata.get(KEYS, "").splitlines())

    def _away(self, keys: Iterable[str], login_user: str) -> set[str]:
        """The lines of `keys`, without those that nodes should have."""
        enrolled = {_core(f"{login_user}:{key}") for key in self.enrolled}
        return {_core(f"{login_user}:{key}") for key in keys} - enrolled

    @property
    def digest(self) -> str:
        """Changes when some key is to come or to go."""
        wanted = {_core(key) for key in self.enrolled}
        away = {_core(key) for key in (*self.removed, *self.former)}
        parts = [sorted(wanted), sorted(away - wanted)]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def lack(self, node: NodeInfo, login_user: str) -> bool:
        """Whether `node` does not have the keys that it should have."""
        return self.metadata_of(node, login_user)[KEYS] != node.metadata.get(KEYS, "")


def _core(line: str) -> str:
    """A line without the key's comment, which proves nothing."""
    return " ".join(line.split()[:2])


def enroll_machine(services: Services) -> None:
    """Writes this machine's public key into the store, so that hosts accept it: those created from now on, and
    by the next pass those that live. For a person who asks for it: one that was removed comes back."""
    _enroll(services, ENROLLED.find(services, services.machine))


def keep_enrolled(services: Services) -> None:
    """Enrolls a machine that the store has never seen, or whose key is another one now; not one that was
    removed."""
    stored = ENROLLED.find(services, services.machine)
    if stored is None or not stored.record.removed:
        _enroll(services, stored)


def was_enrolled(services: Services) -> bool:
    """Whether the store has ever seen this machine."""
    return bool(ENROLLED.generation(services, services.machine))


def _enroll(services: Services, stored: Versioned[EnrolledMachine] | None) -> None:
    """Writes the machine as it is. Keys that it had before are noted as what live hosts are to lose."""
    key = services.public_key
    known = () if stored is None else (*stored.record.former_keys, stored.record.public_key)
    former = tuple(each for each in dict.fromkeys(known) if _core(each) != _core(key))
    machine = EnrolledMachine(key, services.user, former)
    if stored is None or stored.record != machine:
        # Where that fails, another process of this machine has just written the same.
        ENROLLED.try_put(services, services.machine, machine, 0 if stored is None else stored.generation)


def remove_machine(services: Services, machine: str) -> bool:
    """Takes a machine's key out of what hosts accept, from the next pass on; False when it is out already.

    Its record stays as a note of what has to go from live nodes. Raises NotFoundError for one never enrolled.
    """
    stored = get_machine(services, machine)
    if stored.record.removed:
        return False
    ENROLLED.put(services, machine, replace(stored.record, removed=True), stored.generation)
    return True


def get_machine(services: Services, machine: str) -> Versioned[EnrolledMachine]:
    """Raises NotFoundError for one never enrolled."""
    stored = ENROLLED.find(services, machine)
    if stored is None:
        raise NotFoundError(f"no machine {machine} is enrolled", hint="tpuctl store machines")
    return stored


def list_machines(services: Services) -> list[dict[str, object]]:
    """One row per machine that was ever enrolled."""
    return [
        {
            "machine": name,
            "user": machine.user,
            "enrolled": not machine.removed,
            "this": name == services.machine,
            "public_key": machine.public_key,
        }
        for name, machine in ENROLLED.named(services).items()
    ]


def read_machines(services: Services) -> MachineKeys:
    """The keys of all machines. Raises DamagedRecordError for one that cannot be read: its key may be one that
    was removed elsewhere, and must not count as removed."""
    machines = ENROLLED.list(services)
    enrolled = tuple(each.public_key for each in machines if not each.removed)
    removed = [key for each in machines if each.removed for key in (each.public_key, *each.former_keys)]
    former = [key for each in machines if not each.removed for key in each.former_keys]
    return MachineKeys(enrolled, tuple(removed), tuple(former))


def lacks_keys(record: SliceRecord, node: NodeInfo | None, machines: MachineKeys, now: float) -> bool:
    """Whether it is time to send keys to the node of a slice that lives. Nothing is written into the metadata
    of what was made by hand: `adopt --add-key` does that when it is asked to."""
    incarnation = record.incarnation
    if record.state not in WITH_HOSTS or incarnation is None or incarnation.by_hand:
        return False
    if node is None or node.state is not NodeState.READY or not _is_ours(_parts(node), incarnation.node_uid):
        return False
    asked_at, same = incarnation.keys_sent_at, incarnation.keys_sent == machines.digest
    if asked_at is not None and same and 0 <= now - asked_at < timeouts.KEYS_RETRY_S:
        return False
    return any(machines.lack(part, record.spec.login_user) for part in _parts(node))


def in_turn(
    lacking: Mapping[str, tuple[SliceRecord, NodeInfo | None]], machines: MachineKeys, now: float
) -> Sequence[str]:
    """Which of the slices that lack keys this pass sends them to: all that let a removed machine in, and of the
    others as many as `KEYS_PER_PASS` leaves. With which of these it begins is drawn, so that those that take no
    keys now keep none of the others from theirs."""

    def lets_in(record: SliceRecord, node: NodeInfo | None) -> bool:
        return any(machines.opens_to_removed(part, record.spec.login_user) for part in _parts(node))

    urgent = [name for name, (record, node) in lacking.items() if lets_in(record, node)]
    others = [name for name in lacking if name not in set(urgent)]
    start = draw_by_minute(now) % max(1, len(others))
    drawn = [*others[start:], *others[:start]]
    return [*urgent, *drawn[: max(0, KEYS_PER_PASS - len(urgent))]]


def send_keys(services: Services, name: str, machines: MachineKeys) -> str:
    """Gives the nodes of a slice the keys that they lack; what was done in words, empty for nothing."""
    with take_lease(services, name) as lease:
        stored = get_slice(services, name)
        record, incarnation = stored.record, stored.record.incarnation
        if incarnation is None or record.state not in WITH_HOSTS:
            return ""
        cloud = services.tpus(record.spec.api)
        found = [
            cloud.find_node(record.spec.zone, each)
            for each in node_names(incarnation.cloud_name, record.spec.slices)
        ]
        user = record.spec.login_user
        lacking = [node for node in found if node is not None and machines.lack(node, user)]
        if not _is_ours(found, incarnation.node_uid) or not lacking:
            return ""
        why = f"its hosts get the keys of {counted(len(machines.enrolled), 'enrolled machine')}"
        record_decision(
            services, record.key, "keys", why, incarnation=incarnation.cloud_name, fence=lease.fence
        )
        sent = replace(incarnation, keys_sent_at=services.store.now(), keys_sent=machines.digest)
        save(services, stored, replace(record, incarnation=sent))
        for node in lacking:
            metadata = machines.metadata_of(node, user)
            try:
                cloud.update_node(node.zone, node.name, labels=node.labels, metadata=metadata)
            except BusyError as error:
                record_decision(services, record.key, "not-now", error.message, fence=lease.fence)
                soon = services.store.now() + timeouts.KEYS_BUSY_S - timeouts.KEYS_RETRY_S
                fresh = get_slice(services, name)
                life = fresh.record.incarnation
                if life is not None:
                    save(services, fresh, replace(fresh.record, incarnation=replace(life, keys_sent_at=soon)))
                return f"{node.name} does not take keys now: they are sent again in a minute"
        return why


def send_own_key(services: Services, name: str) -> str:
    """Sends this machine's key to hosts that refused it, as its passes would; what was done in words, empty for
    nothing: it was sent moments ago, they are not to have it, or another process is at work on the slice."""
    keep_enrolled(services)
    record = get_slice(services, name).record
    machines = read_machines(services)
    node = find_slice_node(services, record)
    if not lacks_keys(record, node, machines, services.store.now()):
        return ""
    try:
        return send_keys(services, name, machines)
    except (LeaseHeldError, StaleRecordError):
        return ""  # who asks goes on all the same; the next pass sends it


def why_closed(services: Services, record: SliceRecord, trouble: str) -> Blocked | Blind:
    """What it means that hosts answer but do not accept this machine's key, as `trouble` says."""
    incarnation = record.incarnation
    if incarnation is not None and incarnation.by_hand:
        why = f"{trouble}; nothing is written into what was made by hand unless that is asked for"
        return Blocked(why, f"tpuctl adopt {incarnation.cloud_name} --add-key")
    machine = ENROLLED.record(services, services.machine)
    if machine is not None and machine.removed:
        why = f"{trouble}; this machine was taken out of those that may log in"
        return Blocked(why, f"tpuctl up {record.name} lets it in again")
    return Blind(f"{trouble}; its key is not there yet: passes send it")


def judge_refusal(services: Services, record: SliceRecord, node: NodeInfo, trouble: str) -> Verdict:
    """What it means that hosts of a node that has just come up refuse this machine's key, as `trouble` says:
    accounts are made after SSH answers, so that only a key that never comes is for a person."""
    incarnation, now = record.incarnation, services.store.now()
    closed = why_closed(services, record, trouble)
    if incarnation is None or (isinstance(closed, Blocked) and not incarnation.by_hand):
        return closed
    sent = f"{record.spec.login_user}:{services.public_key}"
    parts = _parts(node)
    there = all(_core(sent) in map(_core, part.metadata.get(KEYS, "").splitlines()) for part in parts)
    since = max(incarnation.cloud_ready_at or now, incarnation.keys_sent_at or 0.0)
    until = since + timeouts.KEY_SHOWS_S
    if now < until and (there or incarnation.keys_sent_at is not None):
        return wait_for(f"hosts that take this machine's key: {trouble}", until)
    if not there:
        return closed
    why, hint = _why_ignored(services, record, parts)
    late = f"{trouble} after {timeouts.KEY_SHOWS_S / 60:.0f} min, although its metadata has the key"
    return Blocked(f"{late}: {why}", hint)


def _why_ignored(services: Services, record: SliceRecord, parts: Sequence[NodeInfo]) -> tuple[str, str]:
    """Why hosts ignore the keys of their node's metadata, and the command that mends it."""
    at = f"--project={services.project}"
    if all(part.metadata.get(OS_LOGIN, "").upper() == OS_LOGIN_OFF for part in parts):
        policy = "compute.requireOsLogin"
        why = f"a policy of the organisation ({policy}) may force OS Login, with which hosts take no such keys"
        why = f"{why}; its administrator can exempt the project"
        return why, f"gcloud resource-manager org-policies disable-enforce {policy} {at}"
    why = "OS Login is not turned off for it, and the project may turn it on"
    if record.incarnation is not None and record.incarnation.by_hand:
        return why, f"tpuctl adopt {record.incarnation.cloud_name} --add-key"
    return why, f"gcloud compute project-info add-metadata --metadata={OS_LOGIN}={OS_LOGIN_OFF} {at}"


def _parts(node: NodeInfo | None) -> Sequence[NodeInfo]:
    """The nodes that `node` stands for."""
    return () if node is None else node.parts or (node,)


def _is_ours(found: Sequence[NodeInfo | None], uid: str | None) -> bool:
    """Whether these are the nodes that were pinned, all of them."""
    return uid is not None and ",".join("" if node is None else node.uid for node in found) == uid
