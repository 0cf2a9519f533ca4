"""Takes over a TPU that was made by hand, or by a store that is lost: checked, written down, labelled, reached.

The record comes first, with the server's ids as identity, because queued resources cannot be labelled later and
labelling may fail. Doing it again is a no-op, or does what is left to do.
"""

from __future__ import annotations

import hashlib

from msgspec import Struct
from msgspec.structs import asdict, replace

from tpuctl.engine.events import Note
from tpuctl.engine.services import Services
from tpuctl.errors import BusyError, ConflictError, DeniedError, NotFoundError, UsageError
from tpuctl.inventory.listing import TpuLists, list_tpus
from tpuctl.inventory.ownership import owner_labels
from tpuctl.lib.names import check_slice_name, label_value, parse_cloud_name
from tpuctl.model import timeouts
from tpuctl.model.accelerators import Catalog
from tpuctl.model.cloud import (
    INCARNATION_LABEL,
    OWNER_LABEL,
    STORE_LABEL,
    USER_LABEL,
    Api,
    NodeInfo,
    NodeState,
    QueuedInfo,
)
from tpuctl.model.records import Desired, Incarnation, SliceRecord, SliceState
from tpuctl.model.shipped_files import load_secret_patterns
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.money.coverage import Quote, quote
from tpuctl.slices.enrollment import KEYS, enroll_machine, read_machines
from tpuctl.slices.probing import find_workers, probe_workers
from tpuctl.slices.validation import OS_LOGIN, OWN_PREFIX, STARTUP_SCRIPT
from tpuctl.state.journal import record_decision
from tpuctl.state.leases import take_lease
from tpuctl.state.repository import Versioned, find_slice, get_slice, list_slices, save


class AdoptCandidate(Struct, frozen=True):
    """A node that may be taken over, with the queued resource that it belongs to, and the slice it becomes."""

    name: str
    node: NodeInfo
    queued: QueuedInfo | None
    number: int

    @property
    def store(self) -> str:
        """The fleet whose labels it carries, or an empty string."""
        return self.node.labels.get(STORE_LABEL, "")

    @property
    def evidence(self) -> str:
        request = f", queued resource {self.queued.name} of {self.queued.create_time}" if self.queued else ""
        labels = f"labels of the fleet {self.store}" if self.store else "no labels of a fleet"
        node = f"{self.node.kind} {self.node.name} in {self.node.zone}, id {self.node.uid}, {self.node.state}"
        return f"{node}{request}; {labels}"

    @property
    def script(self) -> str | None:
        """Its startup script."""
        return self.node.metadata.get(STARTUP_SCRIPT)

    @property
    def not_kept(self) -> tuple[str, ...]:
        """What its next TPU will not have: fields of the API, and what of them, as `FIELD: NAME`."""
        disks = tuple(f"dataDisks: {each.name}" for each in self.node.data_disks)
        return (*self.node.unsaid, *(f"metadata: {key}" for key in sorted(self._secrets)), *disks)

    @property
    def _secrets(self) -> frozenset[str]:
        """Keys of its metadata that records must not hold, as `up --metadata` refuses them."""
        patterns, metadata = load_secret_patterns(), self.node.options.metadata
        return frozenset(key for key, value in metadata.items() if patterns.find_named(key, value))

    def spec(self, catalog: Catalog, login_user: str) -> SliceSpec:
        """With which its next TPU is asked for, the blob of its script aside. Raises UsageError for an
        accelerator type that no table has."""
        node, offer = self.node, catalog.find(self.node.accelerator_type)
        if offer is None:
            raise UsageError(
                f"{node.name} is a {node.accelerator_type}, which no table has", hint="tpuctl types"
            )
        not_ours = {KEYS, OS_LOGIN, STARTUP_SCRIPT, *self._secrets}
        metadata = {key: value for key, value in node.options.metadata.items() if key not in not_ours}
        reservation = self.queued.reservation if self.queued else None
        options = replace(node.options, metadata=metadata, reservation=reservation)
        return SliceSpec(
            **asdict(options),
            accelerator_type=offer.name,
            zone=node.zone,
            tier=node.tier,
            runtime_version=node.runtime_version,
            hosts=len(node.endpoints),
            chips=offer.chips,
            queued=self.queued is not None,
            external_ips=all(endpoint.external_ip for endpoint in node.endpoints),
            login_user=login_user,
            tags=node.tags,
            labels={key: value for key, value in node.labels.items() if not key.startswith(OWN_PREFIX)},
            api=node.api,
            topology=offer.topology if node.api is Api.COMPUTE else None,
            machine_type=node.machine_type,
            startup_script=None if self.script is None else hashlib.sha256(self.script.encode()).hexdigest(),
        )


def find_candidate(services: Services, node_name: str, zone: str | None, name: str | None) -> AdoptCandidate:
    """The one node, or queued resource with one node, of that name. Raises NotFoundError, UsageError or
    ConflictError saying why it cannot be taken over."""
    tpus = list_tpus(services, zone or "-")
    node = _only(node_name, tpus)
    request = tpus.queued.find(node.zone, node.queued_resource or "")
    if request is not None and len(request.node_ids) > 1:
        raise UsageError(
            f"{node.name} is one of {len(request.node_ids)} nodes of {request.name}; "
            "a request of several nodes cannot be taken over"
        )
    if node.state is not NodeState.READY:
        raise ConflictError(f"{node.name} in {node.zone} is {node.state}, not READY", hint="tpuctl ls")
    chosen = check_slice_name(name or _name_of(node))
    stored = find_slice(services, chosen)
    last = stored.record.last_incarnation if stored else 0
    return AdoptCandidate(chosen, node, request, _number_of(node, chosen, last))


def _only(name: str, tpus: TpuLists) -> NodeInfo:
    """Raises for what an API refused only where nothing else has the name."""
    found = [node for node in tpus.nodes.items if name in (node.name, node.queued_resource)]
    dark = tpus.unreachable
    if len(found) == 1 and not dark:
        return found[0]
    if dark:
        raise ConflictError(
            f"{', '.join(sorted(dark))} could not be read, so {name} may not be the only one",
            hint="name its zone with --zone, or try again",
        )
    if not found:
        waiting = next((request for request in tpus.queued.items if request.name == name), None)
        if waiting is not None:
            raise ConflictError(
                f"queued resource {name} is {waiting.state}: it has no node yet", hint="tpuctl ls"
            )
        for refused in tpus.refused.values():
            raise refused
        raise NotFoundError(f"no node, queued resource, group or instance called {name}", hint="tpuctl ls")
    places = sorted({node.zone for node in found})
    raise UsageError(
        f"{name} is the name of {len(found)} nodes", hint=f"--zone {places[0]}; also {', '.join(places[1:])}"
    )


def _name_of(node: NodeInfo) -> str:
    parsed = parse_cloud_name(node.name)
    return node.labels.get(OWNER_LABEL) or (parsed[0] if parsed else node.name)


def _number_of(node: NodeInfo, name: str, last: int) -> int:
    """Numbers go on where the last store stopped, so that no name is used twice."""
    label = node.labels.get(INCARNATION_LABEL, "")
    parsed = parse_cloud_name(node.name)
    if node.labels.get(OWNER_LABEL) == name and label.isascii() and label.isdigit():
        return int(label)
    if parsed is not None and parsed[0] == name:
        return parsed[1]
    return last + 1


def price_of(services: Services, catalog: Catalog, found: AdoptCandidate, login_user: str) -> Quote:
    """What its next TPU costs, and whether a grant covers it; the one that is there is not counted twice."""
    return quote(services, catalog, found.name, found.spec(catalog, login_user), without=found.node.name)


def adopt(
    services: Services, catalog: Catalog, found: AdoptCandidate, *, login_user: str, add_key: bool, pay: bool
) -> SliceRecord:
    """Writes the record, labels the node and, with `add_key`, lets this machine in. The slice is not ready yet.

    A node that an operation holds is waited for, as the PATCH of an adoption that broke off does. Raises
    NotCoveredError when no grant covers the slice, which is created again after a loss, and `pay` is not said;
    ConflictError when the name or the node is taken, DeniedError when the hosts do not let us in, and BusyError
    for a node that is held longer than `timeouts.ADOPT_BUSY_MAX_S`.
    """
    enroll_machine(services)
    until, warned = services.clock.now() + timeouts.ADOPT_BUSY_MAX_S, False
    while True:
        try:
            return _adopt(services, catalog, found, login_user=login_user, add_key=add_key, pay=pay)
        except BusyError as error:
            if services.clock.now() >= until:
                raise
            if not warned:
                services.emit(Note(found.node.name, f"{error.message}; waiting until it is free"))
                warned = True
        services.clock.sleep(timeouts.RETRY_FIRST_S)


def _adopt(
    services: Services, catalog: Catalog, found: AdoptCandidate, *, login_user: str, add_key: bool, pay: bool
) -> SliceRecord:
    with take_lease(services, found.name):
        record = _existing(services, found)
        if record is None:
            price = price_of(services, catalog, found, login_user)
            price.check(pay=pay)
            services.emit(Note("", price.line))
            fresh = _record(services, found, found.spec(catalog, login_user), pay=pay)
            record = _pinned(services, fresh, found.node)
            if not add_key:
                _check_access(services, record)
            record_decision(services, record.key, "adopt", found.evidence, incarnation=found.node.name)
            if found.script is not None:
                services.store.put_blob(found.script.encode())
            old = find_slice(services, found.name)
            save(services, Versioned(record, old.generation if old else 0), record)
        _update_node(services, found, add_key=add_key)
    return record


def _existing(services: Services, found: AdoptCandidate) -> SliceRecord | None:
    """The slice that this node is already; None if neither the node nor the name is taken."""
    for other in (place for each in list_slices(services) for place in each.places):
        held = other.incarnation if other.state is not SliceState.GONE else None
        same = held is not None and (other.spec.zone, held.cloud_name) == (found.node.zone, found.node.name)
        if same and other.name != found.name:
            why = f"{found.node.name} is slice {other.name} already"
            raise ConflictError(why, hint=f"tpuctl status {other.name}")
        if same:
            return other
        if held is not None and other.name == found.name:
            why = f"there is another slice called {found.name}"
            raise ConflictError(why, hint="choose a name with --name NAME")
    return None


def _record(services: Services, found: AdoptCandidate, spec: SliceSpec, *, pay: bool) -> SliceRecord:
    node, now, old = found.node, services.store.now(), find_slice(services, found.name)
    incarnation = Incarnation(
        number=found.number,
        cloud_name=node.name,
        requested_at=now,
        node_uid=node.uid,
        cloud_ready_at=now,
        adopted_uid=",".join((node.uid, *node.holds)),
        adopted_request=found.queued.create_time if found.queued else "",
        request_name=found.queued.name if found.queued and found.queued.name != node.name else "",
        by_hand=OWNER_LABEL not in node.labels,
    )
    return SliceRecord(
        name=found.name,
        spec=spec,
        owner=services.user,
        desired=Desired.UP,
        state=SliceState.BOOTING,
        last_incarnation=max(found.number, old.record.last_incarnation if old else 0),
        created_at=now,
        incarnation=incarnation,
        pay=pay,
    )


def _pinned(services: Services, record: SliceRecord, node: NodeInfo) -> SliceRecord:
    workers = find_workers(services, record, node)
    if isinstance(workers, str) or record.incarnation is None:
        raise ConflictError(
            f"{node.name} does not show {workers}: its hosts cannot be proved to be the right ones",
            hint="try again in a minute; the setting host_keys: first-use believes what hosts show",
        )
    return replace(record, incarnation=replace(record.incarnation, workers=workers))


def _check_access(services: Services, record: SliceRecord) -> None:
    answers = probe_workers(services, record)
    if answers.all_well:
        return
    user = record.spec.login_user
    raise DeniedError(
        f"cannot log in to {record.name} as {user}: {answers.trouble}",
        hint="`--add-key` puts this machine's key into the node's metadata, which takes minutes; "
        "the setting login_user names another user",
    )


def _update_node(services: Services, found: AdoptCandidate, *, add_key: bool) -> None:
    """One PATCH of what is not yet as it should be. Metadata is replaced as a whole, so all of it is sent."""
    stored, node = get_slice(services, found.name), found.node
    record = stored.record
    if record.incarnation is None:
        return
    ours = owner_labels(record, record.incarnation, services.store.identity())
    labels = {**node.labels, **ours, USER_LABEL: label_value(record.owner)}
    machines = read_machines(services)
    metadata = machines.metadata_of(node, record.spec.login_user) if add_key else None
    if labels == dict(node.labels) and metadata in (None, dict(node.metadata)):
        return
    if metadata not in (None, dict(node.metadata)):
        sent = replace(record.incarnation, keys_sent_at=services.store.now(), keys_sent=machines.digest)
        save(services, stored, replace(record, incarnation=sent))
    services.tpus(node.api).update_node(node.zone, node.name, labels=labels, metadata=metadata)
