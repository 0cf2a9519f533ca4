"""Nodes: their calls and their life from CREATING to gone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial

from tpuctl.errors import TpuctlError
from tpuctl.sim.wire.payload import camel
from tpuctl.sim.wire.status import (
    ApiError,
    Code,
    Json,
    failed_precondition,
    invalid_argument,
)
from tpuctl.sim.world.data_disks import check_disks, number_node
from tpuctl.sim.world.faults import FaultKind, preset_error
from tpuctl.sim.world.listing import list_resources
from tpuctl.sim.world.node_form import change_node, fill_addresses, fill_node, number_project
from tpuctl.sim.world.operations import Made, Operations, show_operation
from tpuctl.sim.world.paths import ResourcePath, check_id, check_labels, parse_path
from tpuctl.sim.world.quotas import Quotas
from tpuctl.sim.world.reservations import take_chips, wanted_reservation
from tpuctl.sim.world.state import Kernel, Node, copy_json, guest_items
from tpuctl.sim.world.tpu_vms import TpuVms
from tpuctl.sim.world.validation import check_quota, prepare_spec

log = logging.getLogger(__name__)

UPDATABLE = frozenset({"description", "labels", "tags", "metadata", "dataDisks", "networkConfig"})
"""Fields that `nodes.patch` accepts (gcloud 528 sends no others)."""
LIVE = frozenset({"READY", "STOPPED"})


class Nodes:
    """Calls take the world's lock for decisions and changes of state; host work happens outside of it."""

    def __init__(self, kernel: Kernel, operations: Operations, machines: TpuVms) -> None:
        self._kernel = kernel
        self._operations = operations
        self._machines = machines
        self.on_queued_node_lost: Callable[[Node, str], None] = lambda _node, _initiator: None
        """Set by the queued resources: (node, USER or SERVICE)."""
        self.on_room: Callable[[], None] = lambda: None
        """Set by the queued resources: chips have become free."""

    # Reads.

    def find(self, name: str) -> Node:
        return self._kernel.find(self._kernel.nodes, name)

    def get(self, request: Json) -> Json:
        found: Json = copy_json(self._kernel.find(self._kernel.nodes, request["name"], read=True).data)
        return found

    def list_all(self, request: Json) -> Json:
        shown = [node for node in self._kernel.nodes.values() if self._kernel.shows(node)]
        return list_resources(self._kernel, request, "nodes", [(node.path, node.data) for node in shown])

    def guest_attributes(self, request: Json) -> Json:
        """One entry per asked worker, in worker order; `workerIds` of `[""]` or nothing means all."""
        node = self.find(request["name"])
        wanted = [each for each in request.get("workerIds", []) if each != ""]
        workers = range(len(node.addresses)) if not wanted else sorted(self._worker(node, w) for w in wanted)
        query = str(request.get("queryPath") or "")
        if self._kernel.faults.take(FaultKind.NO_ATTRIBUTES, "nodes.getGuestAttributes", node.path):
            return {"guestAttributes": [{"queryPath": query, "queryValue": {}} for _ in workers]}
        return {"guestAttributes": [self._attributes_of(node, worker, query) for worker in workers]}

    @staticmethod
    def _worker(node: Node, text: str) -> int:
        if not text.isdecimal() or int(text) >= node.offer.hosts:
            raise invalid_argument(f'Invalid worker id "{text}" for node {node.path.id}.')
        return int(text)

    @staticmethod
    def _attributes_of(node: Node, worker: int, query: str) -> Json:
        if worker >= len(node.addresses):
            return {"queryPath": query, "queryValue": {"items": []}}
        kind, _, key = node.addresses[worker].host_key.partition(" ")
        found = {
            f"hostkeys/{kind}": key.split(" ")[0],
            "deviceInfo/hostname": node.hostname(worker),
            **node.guest.get(worker, {}),
        }
        return {"queryPath": query, "queryValue": {"items": guest_items(found, query)}}

    # Creation.

    def create(self, request: Json, version: str) -> Json:
        path = parse_path(request["parent"]).child("nodes", request.get("nodeId") or self._kernel.ids.short())
        spec = request.get("node") or {}
        room = self._kernel.room(path.zone)
        node = self.admit(path, spec, queued=None, version=version)
        operation = self._operations.start("nodes.create", "create", path, version)
        error = self._create_failure(node, room)
        if error is not None:
            node.phantom = True
            delay = self._kernel.delays.create_failure
            self._kernel.after(delay, lambda: self._vanish(node, operation, error))
        else:
            self._kernel.after(self._kernel.delays.node_create, lambda: self._boot_direct(node, operation))
        return show_operation(operation)

    def _create_failure(self, node: Node, room: float) -> ApiError | None:
        """A planned fault, no capacity now, or a type that the API lists for the zone although there never is
        one."""
        fault = self._kernel.faults.take(FaultKind.ERROR, "nodes.create", node.path, in_operation=True)
        if fault is not None:
            return fault.error(node.path)
        reserved = wanted_reservation(node.data, {})
        if reserved:
            return take_chips(self._kernel, node, reserved)
        if node.path.zone not in node.offer.zones or node.offer.chips > room:
            return preset_error("stockout", node.path)
        return None

    def admit(self, path: ResourcePath, spec: Json, queued: ResourcePath | None, version: str = "v2") -> Node:
        """Checks a request and lists the node as CREATING. Expects the lock to be held."""
        check_id("node", path.id)
        clean, offer = prepare_spec(self._kernel, path, spec)
        if path.name in self._kernel.nodes:
            raise ApiError(Code.ALREADY_EXISTS, f"Resource '{path.name}' already exists")
        scheduling = clean.get("schedulingConfig") or {}
        if queued is None:
            spot = bool(scheduling.get("spot") or scheduling.get("preemptible"))
            check_quota(self._kernel, path, offer, offer.chips, spot=spot)
        Quotas(self._kernel).check_side(path, offer, clean)
        check_disks(self._kernel, path, offer, clean.get("dataDisks") or ())
        uid = self._kernel.ids.node_id()
        data = {
            **fill_node(clean, path),
            "name": path.name,
            "state": "CREATING",
            "apiVersion": version.upper().replace("ALPHA", "_ALPHA"),
            "id": uid,
            "createTime": self._kernel.timestamp(),
        }
        if queued is not None:
            data["queuedResource"] = number_project(queued).name
            if spec.get("multisliceNode"):
                data["multisliceNode"] = True
        tag = self._kernel.ids.short()
        node = Node(path, f"{path.id[:20]}-{tag}", data, offer, tag, queued, life=self)
        number_node(self._kernel, node)
        self._kernel.nodes[path.name] = node
        return node

    def _boot_direct(self, node: Node, operation: Json) -> None:
        error = self.boot(node)
        with self._kernel.lock:
            if error is None:
                self._operations.succeed(operation, "Node", node.data)
        if error is not None:
            self._vanish(node, operation, error)

    def boot(self, node: Node) -> ApiError | None:
        """Creates the hosts and makes the node READY; the error when it did not come to that."""
        cancelled = ApiError(Code.ABORTED, "The node was deleted while it was being created.")
        try:
            if not self._machines.create(node):
                return cancelled
        except (TpuctlError, OSError) as error:
            log.exception("hosts of %s could not be created", node.path.name)
            return ApiError(Code.INTERNAL, f"the simulator could not create the hosts: {error}")
        with self._kernel.lock:
            if node.state != "CREATING":
                return cancelled
            fill_addresses(node.data, node.addresses)
            node.data |= {"state": "READY", "health": "HEALTHY"}
            fault = self._kernel.faults.take(FaultKind.PREEMPT, "preempt", node.path)
            if fault is not None:
                self._kernel.after(fault.seconds, lambda: self.preempt(node))
        return None

    def _vanish(self, node: Node, operation: Json, error: ApiError) -> None:
        """A create that failed: the node is not listed any more and the operation says why."""
        with self._kernel.lock:
            if node.state == "CREATING" and self._kernel.current(node):
                del self._kernel.nodes[node.path.name]
            self._operations.fail(operation, error)

    # Deletion.

    def delete(self, request: Json, version: str) -> Json:
        node = self.find(request["name"])
        if node.state == "DELETING":
            raise self._not_supported("delete", node)
        if node.state == "CREATING":
            return self._drop_delete(node, version)

        def finish() -> Made:
            self.finish_deletion(node)
            if node.queued is not None:
                self.on_queued_node_lost(node, "USER")
            return "", None

        delay_s, begin = self._kernel.delays.node_delete, partial(self.begin_deletion, node)
        return self._operations.run("nodes.delete", "delete", node.path, version, delay_s, finish, begin)

    def _drop_delete(self, node: Node, version: str) -> Json:
        """While a create settles, a delete is taken and does nothing, as a user measured on the real API."""
        operation = self._operations.start_idle("nodes.delete", "delete", node.path, version)
        self._kernel.after(
            self._kernel.delays.node_delete, lambda: self._operations.succeed(operation, "", None)
        )
        return show_operation(operation)

    def begin_deletion(self, node: Node) -> None:
        """Expects the lock to be held."""
        node.data["state"] = "DELETING"

    def finish_deletion(self, node: Node) -> None:
        """Ends the hosts, then frees the name."""
        self._machines.delete(node)
        with self._kernel.lock:
            if self._kernel.current(node):
                del self._kernel.nodes[node.path.name]
            number_node(self._kernel, node)
        self.on_room()

    # Stop, start, patch.

    def _not_supported(self, verb: str, node: Node) -> ApiError:
        return self._kernel.bad_request(f"{verb} is not supported while in state {node.state}")

    def _check_power(self, verb: str, node: Node, state: str) -> None:
        """Only single-host on-demand nodes that were made directly can be stopped and started."""
        if node.state != state:
            raise self._not_supported(verb, node)
        scheduling = node.data.get("schedulingConfig") or {}
        if node.queued is not None:
            raise self._kernel.bad_request(f"{verb} is not supported for nodes of queued resources")
        if node.offer.hosts > 1:
            raise self._kernel.bad_request(f"{verb} is not supported for multi-host slices")
        if scheduling.get("spot") or scheduling.get("preemptible"):
            raise self._kernel.bad_request(f"{verb} is not supported for preemptible nodes")

    def stop(self, request: Json, version: str) -> Json:
        node = self.find(request["name"])
        self._check_power("stop", node, "READY")
        return self._power(node, "stop", "STOPPING", "STOPPED", self._machines.stop, version)

    def start(self, request: Json, version: str) -> Json:
        node = self.find(request["name"])
        self._check_power("start", node, "STOPPED")
        return self._power(node, "start", "STARTING", "READY", self._machines.start, version)

    def _power(
        self, node: Node, verb: str, during: str, after: str, work: Callable[[Node], None], version: str
    ) -> Json:
        delays = self._kernel.delays
        delay_s = delays.node_stop if verb == "stop" else delays.node_start

        def finish() -> Made:
            try:
                work(node)
            except (TpuctlError, OSError) as error:
                log.exception("%s of %s failed", verb, node.path.name)
                raise ApiError(Code.INTERNAL, f"the simulator failed: {error}") from error
            with self._kernel.lock:
                if node.state == during:
                    node.data["state"] = after
            return "Node", node.data

        begin = partial(node.data.__setitem__, "state", during)
        return self._operations.run(f"nodes.{verb}", verb, node.path, version, delay_s, finish, begin)

    def patch(self, request: Json, version: str) -> Json:
        change = request.get("node") or {}
        node = self.find(change["name"])
        fields = [camel(each.split(".")[0]) for each in str(request.get("updateMask") or "").split(",") if each]
        if not fields or not set(fields) <= UPDATABLE:
            raise invalid_argument(f'Invalid update mask "{request.get("updateMask")}".')
        if node.state not in LIVE:
            raise self._not_supported("update", node)
        if "labels" in fields:
            check_labels(change.get("labels") or {})
        if "dataDisks" in fields:
            self._check_disks(node, change)

        def finish() -> Made:
            with self._kernel.lock:
                if "dataDisks" in fields:
                    self._check_disks(node, change)
                change_node(node.data, fields, change, node.addresses)
                number_node(self._kernel, node)
            if "metadata" in fields:
                self._machines.apply_keys(node)
            if "dataDisks" in fields:
                self._machines.apply_disks(node)
            return "Node", node.data

        delay_s = self._kernel.delays.node_patch
        return self._operations.run("nodes.patch", "update", node.path, version, delay_s, finish)

    def _check_disks(self, node: Node, change: Json) -> None:
        check_disks(self._kernel, node.path, node.offer, change.get("dataDisks") or (), node)

    # What the cloud does by itself.

    def preempt(self, node: Node) -> None:
        """Shuts the hosts down now and shows it a while later: a direct node becomes PREEMPTED and stays
        listed.

        The metadata server says so before the hosts hear of it.
        """
        with self._kernel.lock:
            if node.state != "READY" or node.preempted:
                return
            node.preempted = True
            number_node(self._kernel, node)
        self.on_room()
        self._machines.preempt(node)
        visible_s = self._kernel.delays.preempt_visible
        if visible_s == 0:
            self._show_preemption(node)
        else:
            self._kernel.after(visible_s, lambda: self._show_preemption(node))

    def _show_preemption(self, node: Node) -> None:
        with self._kernel.lock:
            if node.state != "READY":
                return
            node.data["state"] = "PREEMPTED"
            node.data.pop("health", None)
        if node.queued is not None:
            self.on_queued_node_lost(node, "SERVICE")

    def reboot(self, node: Node, workers: Collection[int] | None) -> None:
        """Hosts go down in order and come back as another boot, while the API goes on calling the node
        READY."""
        self._machines.stop(node, workers)
        self._kernel.after(self._kernel.delays.host_reboot, lambda: self._machines.start(node))

    def apply_keys(self, node: Node) -> None:
        self._machines.apply_keys(node)

    def load(self, node: Node, workers: Collection[int] | None, fields: Mapping[str, str] | None) -> None:
        """Programs seem to run on the hosts, as `fields` say; None for none."""
        self._machines.load(node, workers, fields)

    def simulate_maintenance(self, request: Json, version: str) -> Json:
        """`simulateMaintenanceEvent`: the hosts of the named workers, or all, are shut down in order, and the
        node is unhealthy until a repair that takes as long as a start has booted them again."""
        node = self.find(request["name"])
        if node.state != "READY":
            raise self._not_supported("simulateMaintenanceEvent", node)
        workers = frozenset(self._worker(node, worker) for worker in request.get("workerIds", []))
        operation = self._operations.start("nodes.simulateMaintenanceEvent", "maintenance", node.path, version)
        node.data["health"] = "UNHEALTHY_MAINTENANCE"
        node.maintenance = workers or frozenset(range(node.offer.hosts))

        def begin() -> None:
            self._machines.stop(node, node.maintenance)
            self._kernel.after(self._kernel.delays.node_start, recover)

        def recover() -> None:
            self._machines.start(node)
            with self._kernel.lock:
                node.maintenance = frozenset()
                if node.state == "READY":
                    node.data["health"] = "HEALTHY"
                self._operations.succeed(operation, "Node", node.data)

        self._kernel.after(0.0, begin)
        return show_operation(operation)

    def perform_maintenance(self, request: Json, version: str) -> Json:
        """Begins at once what was announced."""
        node = self.find(request["name"])
        if node.data.pop("upcomingMaintenance", None) is None:
            raise failed_precondition(f"There is no upcoming maintenance for node {node.path.id}.")
        return self.simulate_maintenance({"name": node.path.name}, version)
