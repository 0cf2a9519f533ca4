"""Bring a slice up, keep its record true, take it down: observe, plan, apply for one slice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tpuctl.core import timeouts
from tpuctl.core.lifecycle import (
    CloudView,
    Effect,
    Sighting,
    SliceEvent,
    classify_slice,
    owner_labels,
)
from tpuctl.core.model import USER_LABEL, GuestHostKey, HostTarget, NodeInfo, OperationInfo
from tpuctl.core.naming import label_value
from tpuctl.core.plan import Done, Failed, Wait
from tpuctl.core.plan_slice import SlicePlan, next_incarnation, node_request, plan_slice
from tpuctl.core.records import (
    Desired,
    Incarnation,
    Loss,
    SliceRecord,
    SliceState,
    Worker,
)
from tpuctl.errors import (
    ConflictError,
    DeniedError,
    InvalidRequestError,
    NoCapacityError,
    QuotaError,
    RateLimitedError,
    TpuctlError,
    TransientError,
)
from tpuctl.workflows.documents import Loaded, get_slice, save
from tpuctl.workflows.events import Note, StepDone, StepStarted, Warn
from tpuctl.workflows.host_helper import HostHelper
from tpuctl.workflows.journal import record_decision
from tpuctl.workflows.leases import Lease, lease
from tpuctl.workflows.loop import Outcome, converge
from tpuctl.workflows.services import Services

_NEEDS_OPERATION = {
    SliceState.REQUESTED,
    SliceState.PROVISIONING,
    SliceState.LOST,
    SliceState.REFUSED,
    SliceState.DELETING,
}
"""States in which a running or failed create operation says more than the absence of its node."""


_HAD_A_NODE = {SliceState.PROVISIONING, SliceState.BOOTING, SliceState.READY}
"""States in which the cloud has shown the slice before."""


@dataclass(frozen=True)
class SliceLook:
    """One slice as seen in this pass."""

    loaded: Loaded[SliceRecord]
    sighting: Sighting
    view: CloudView

    @property
    def record(self) -> SliceRecord:
        return self.loaded.record


def observe_slice(services: Services, record: SliceRecord) -> CloudView:
    """Reads what the cloud shows of the current incarnation; passing trouble makes it unread, never empty."""
    incarnation = record.incarnation
    if incarnation is None or record.state is SliceState.GONE:
        return CloudView()
    cloud, zone, name = services.cloud, record.spec.zone, incarnation.cloud_name
    try:
        queued = cloud.find_queued(zone, name) if record.spec.queued else None
        node = cloud.find_node(zone, name)
        operation: OperationInfo | None = None
        if node is None and queued is None and incarnation.operation and record.state in _NEEDS_OPERATION:
            operation = cloud.find_operation(incarnation.operation)
        if node is None and queued is None and record.state in _HAD_A_NODE:
            return _confirm_absence(services, record, operation)
    except (TransientError, RateLimitedError) as error:
        return CloudView(unread=error.message)
    return CloudView(node=node, queued=queued, operation=operation)


def _confirm_absence(services: Services, record: SliceRecord, operation: OperationInfo | None) -> CloudView:
    """A second, different read before what was there counts as gone: one false answer proves nothing."""
    incarnation = record.incarnation
    zone = record.spec.zone
    nodes, queued = services.cloud.list_nodes(zone), services.cloud.list_queued(zone)
    if zone in nodes.unreachable | queued.unreachable:
        return CloudView(unread=f"{zone} could not be read")
    names = {node.name for node in nodes.items} | {request.name for request in queued.items}
    if incarnation is not None and incarnation.cloud_name in names:
        return CloudView(unread=f"{incarnation.cloud_name} is listed but was not found")
    return CloudView(operation=operation)


def look_at_slice(services: Services, name: str) -> SliceLook:
    loaded = get_slice(services, name)
    view = observe_slice(services, loaded.record)
    sighting = classify_slice(loaded.record, view, services.store.identity())
    return SliceLook(loaded, sighting, view)


def advance_slice(services: Services, name: str) -> tuple[Outcome, SliceLook]:
    """One wave for one slice. Returns what it came to and what was seen before it acted."""
    look = look_at_slice(services, name)
    plan = plan_slice(look.record, look.sighting, services.clock.now())
    if plan.effect is None and plan.state is look.record.state:
        return Outcome(plan.verdict, acted=False), look
    with lease(services, name) as held:
        if get_slice(services, name).generation != look.loaded.generation:
            # Somebody acted between our look and our lease: what was planned may no longer be right.
            return Outcome(Wait("another look"), acted=True), look
        outcome = _Wave(services, look, plan, held).apply()
    return outcome, look


class _Wave:
    """The effects of one plan, under one lease. Every effect is preceded by a written record of it."""

    def __init__(self, services: Services, look: SliceLook, plan: SlicePlan, held: Lease) -> None:
        self._services = services
        self._look = look
        self._plan = plan
        self._held = held
        self._loaded = look.loaded

    def apply(self) -> Outcome:
        actions: dict[Effect | None, Callable[[], Outcome]] = {
            None: self._move,
            Effect.CREATE: self._create,
            Effect.PROBE_HOSTS: self._probe_hosts,
            Effect.RECORD_LOSS: self._record_loss,
            Effect.DELETE: self._delete,
            Effect.RENEW: self._renew,
        }
        return actions[self._plan.effect]()

    @property
    def _record(self) -> SliceRecord:
        return self._loaded.record

    @property
    def _incarnation(self) -> Incarnation:
        incarnation = self._record.incarnation
        if incarnation is None:
            raise TpuctlError(f"slice {self._record.name} has no incarnation to act on")
        return incarnation

    def _save(self, record: SliceRecord) -> None:
        self._loaded = save(self._services, self._loaded, record)

    def _journal(self, action: str, reason: str) -> None:
        cloud_name = self._record.incarnation.cloud_name if self._record.incarnation else ""
        record_decision(
            self._services,
            self._record.key,
            action,
            reason,
            incarnation=cloud_name,
            fence=self._held.fence,
        )

    def _move(self) -> Outcome:
        self._journal(str(self._plan.state), self._plan.why)
        record = replace(self._record, state=self._plan.state)
        if self._look.view.node is not None and record.incarnation is not None:
            uid = self._look.view.node.uid
            record = replace(record, incarnation=replace(record.incarnation, node_uid=uid))
        if self._plan.state is SliceState.BOOTING and record.incarnation is not None:
            ready = replace(record.incarnation, cloud_ready_at=self._services.clock.now())
            record = replace(record, incarnation=ready)
        self._save(record)
        if record.state is SliceState.GONE:
            self._services.ssh_entries.remove(record.name)
        return Outcome(self._plan.verdict, acted=True)

    def _create(self) -> Outcome:
        services, record = self._services, self._record
        now = services.clock.now()
        self._journal("create", self._plan.why)
        called = replace(self._incarnation, create_called_at=now)
        self._save(replace(record, incarnation=called, state=SliceState.REQUESTED))
        kind = "queued resource" if record.spec.queued else "node"
        services.emit(StepStarted(record.name, f"create {kind} {called.cloud_name}", self._plan.why))
        try:
            operation = self._call_create(called)
        except ConflictError:
            # The name is taken: by an earlier call of ours whose answer was lost, or by a stranger.
            # The next look tells which.
            return Outcome(Wait("a look at what holds the name"), acted=True)
        except (NoCapacityError, QuotaError, RateLimitedError) as error:
            return self._create_failed(error)
        except (InvalidRequestError, DeniedError) as error:
            return self._create_refused(error)
        self._save(replace(self._record, incarnation=replace(called, operation=operation.name)))
        return Outcome(Wait("the cloud to take the request"), acted=True)

    def _call_create(self, incarnation: Incarnation) -> OperationInfo:
        services, record = self._services, self._record
        labels = owner_labels(record, incarnation, services.store.identity())
        labels[USER_LABEL] = label_value(record.owner)
        request = node_request(record, incarnation, labels, enrolled_keys(services, record.spec.login_user))
        if record.spec.queued:
            return services.cloud.create_queued(request)
        return services.cloud.create_node(request)

    def _create_failed(self, error: TpuctlError) -> Outcome:
        """Nothing was created, and asking again later may succeed."""
        self._lose("create-failed", error.message, failed=True)
        first = self._record.incarnation is not None and self._record.last_incarnation == 1
        if isinstance(error, QuotaError) and first:
            hint = f"the slice stays wanted; tpuctl down {self._record.name} gives it up"
            return Outcome(Failed(QuotaError(error.message, hint=hint, details=error.details)), acted=True)
        return Outcome(Wait(error.message, self._record.not_before), acted=True)

    def _create_refused(self, error: TpuctlError) -> Outcome:
        loss = Loss(self._services.clock.now(), "refused", error.message)
        self._journal("refused", error.message)
        self._save(replace(self._record, state=SliceState.REFUSED, loss=loss))
        return Outcome(Failed(error), acted=True)

    def _record_loss(self) -> Outcome:
        failed = self._look.sighting.event is not SliceEvent.PREEMPTED
        kind = "create-failed" if failed else "preempted"
        self._lose(kind, self._look.sighting.why, failed=failed, state=self._plan.state)
        self._services.emit(Note(self._record.name, f"{kind}: {self._look.sighting.why}"))
        return Outcome(Wait(self._look.sighting.why), acted=True)

    def _lose(self, kind: str, detail: str, *, failed: bool, state: SliceState = SliceState.LOST) -> None:
        now = self._services.clock.now()
        failures = self._record.failures + 1 if failed else 0
        not_before = now + timeouts.next_backoff(failures) if failed else now
        self._journal(kind, detail)
        self._save(
            replace(
                self._record,
                state=state,
                loss=Loss(now, kind, detail),
                failures=failures,
                not_before=not_before,
            )
        )

    def _delete(self) -> Outcome:
        services, record = self._services, self._record
        zone, name = record.spec.zone, self._incarnation.cloud_name
        began = services.clock.now()
        if record.state is not self._plan.state:
            self._save(replace(record, state=self._plan.state))
        self._journal("delete", self._plan.why)
        services.emit(StepStarted(record.name, f"delete {name}", self._plan.why))
        if record.spec.queued and self._look.view.queued is not None:
            services.cloud.delete_queued(zone, name)
        else:
            services.cloud.delete_node(zone, name)
        services.emit(StepDone(record.name, f"delete {name}", "asked", services.clock.now() - began))
        # Not "acted": the deletion takes its time, and looking again at once would only ask once more.
        return Outcome(Wait(f"{name} to be gone"), acted=False)

    def _renew(self) -> Outcome:
        incarnation = next_incarnation(self._record, self._services.clock.now())
        self._journal("renew", f"{self._plan.why}; asking again as {incarnation.cloud_name}")
        self._save(
            replace(
                self._record,
                state=SliceState.REQUESTED,
                incarnation=incarnation,
                last_incarnation=incarnation.number,
            )
        )
        return Outcome(Wait("the next incarnation"), acted=True)

    def _probe_hosts(self) -> Outcome:
        pinned = self._pin_workers()
        if isinstance(pinned, str):
            return Outcome(Wait(pinned), acted=False)
        silent = silent_workers(self._services, self._record)
        if silent:
            return Outcome(Wait(f"SSH on {silent}"), acted=False)
        now = self._services.clock.now()
        incarnation = replace(self._incarnation, ready_at=now)
        self._journal("ready", f"all {len(incarnation.workers)} hosts answered")
        self._save(replace(self._record, state=SliceState.READY, incarnation=incarnation, failures=0))
        took = now - incarnation.requested_at
        self._services.emit(
            StepDone(self._record.name, "ready", f"{len(incarnation.workers)} hosts answered", took)
        )
        return Outcome(Done("all hosts answered"), acted=True)

    def _pin_workers(self) -> str | None:
        """Writes addresses and host keys of all workers into the record; a reason to wait otherwise."""
        node = self._look.view.node
        if node is None or not node.endpoints:
            return "addresses of the workers"
        if self._incarnation.workers and self._incarnation.node_uid == node.uid:
            current = tuple(worker.endpoint for worker in self._incarnation.workers)
            if current == node.endpoints:
                return None
        keys = {key.worker: key for key in self._services.cloud.list_host_keys(node.zone, node.name)}
        if not keys and self._services.trust_first_use:
            keys = self._keys_at_first_use(node)
        missing = [index for index in range(len(node.endpoints)) if index not in keys]
        if missing:
            return f"host keys of {len(missing)} workers"
        workers = tuple(
            Worker(endpoint, keys[index].public_key, keys[index].hostname)
            for index, endpoint in enumerate(node.endpoints)
        )
        incarnation = replace(self._incarnation, workers=workers, node_uid=node.uid)
        self._save(replace(self._record, incarnation=incarnation))
        self._services.ssh_entries.update(self._record.name, host_targets(self._services, self._record))
        return None

    def _keys_at_first_use(self, node: NodeInfo) -> dict[int, GuestHostKey]:
        """The keys that hosts show, where the cloud has had time to publish them and did not."""
        since = self._incarnation.cloud_ready_at
        if since is None or self._services.clock.now() - since < timeouts.GUEST_ATTRIBUTES_S:
            return {}
        unproven = tuple(Worker(endpoint, "") for endpoint in node.endpoints)
        incarnation = replace(self._incarnation, workers=unproven)
        targets = host_targets(self._services, replace(self._record, incarnation=incarnation))
        shown = enumerate(self._services.remote.read_host_keys(targets))
        keys = {index: GuestHostKey(index, key) for index, key in shown if key is not None}
        if len(keys) == len(targets):
            text = (
                f"the cloud publishes no host keys of {node.name}: the keys that its hosts show are believed "
                "now, unproven, and pinned (setting host_keys: first-use)"
            )
            self._journal("host-keys-first-use", text)
            self._services.emit(Warn(self._record.name, text))
        return keys


def host_targets(services: Services, record: SliceRecord) -> list[HostTarget]:
    """How to reach every worker of the current incarnation, in worker order."""
    incarnation = record.incarnation
    if incarnation is None or not incarnation.workers:
        raise TpuctlError(
            f"slice {record.name} has no reachable workers ({record.state})",
            hint=f"tpuctl status {record.name}",
        )
    external = record.spec.external_ips and not services.internal_ip
    return [
        HostTarget(
            slice_name=record.name,
            worker=index,
            address=worker.endpoint.address if external else worker.endpoint.internal_ip,
            port=services.ssh_port,
            user=record.spec.login_user,
            host_key=worker.host_key,
            internal_ip=worker.endpoint.internal_ip,
        )
        for index, worker in enumerate(incarnation.workers)
    ]


def silent_workers(services: Services, record: SliceRecord) -> str:
    """Which workers do not answer the helper's greeting, in words; empty when all do."""
    helper = HostHelper(services.remote, services.helper_source)
    replies = helper.call(host_targets(services, record), "hello", {})
    silent = [reply for reply in replies if reply.data is None]
    if not silent:
        return ""
    first = silent[0]
    why = first.message or first.result.detail or str(first.result.failure or first.result.exit_status)
    return f"{len(silent)} of {len(replies)} workers (worker {first.worker}: {why})"


def enrolled_keys(services: Services, login_user: str) -> str:
    """`ssh-keys` metadata with the keys of every enrolled machine."""
    documents = services.store.list("machines/")
    return "\n".join(f"{login_user}:{document.data['public_key']}" for document in documents)


def wait_for_slice(services: Services, name: str, *, deadline: float | None = None) -> SliceRecord:
    """Runs the loop on one slice until it is ready. Raises as `converge` does."""

    def step() -> Outcome:
        outcome, look = advance_slice(services, name)
        if look.record.desired is Desired.DOWN:
            error = ConflictError(f"slice {name} is being taken down by another command", hint="tpuctl ls")
            return Outcome(Failed(error), acted=False)
        return outcome

    converge(services, name, step, deadline=deadline)
    return get_slice(services, name).record


def wait_until_gone(services: Services, name: str, *, deadline: float | None = None) -> None:
    """Runs the loop on one slice until the cloud says not-found."""

    def step() -> Outcome:
        return advance_slice(services, name)[0]

    converge(services, name, step, deadline=deadline)
