"""Queued resources: a request that waits, yields nodes, and stays behind when they are gone."""

from __future__ import annotations

from functools import partial

from tpuctl.sim.wire.status import ApiError, Code, Json, failed_precondition, invalid_argument
from tpuctl.sim.wire.timestamps import rfc3339
from tpuctl.sim.world.faults import Fault, FaultKind
from tpuctl.sim.world.listing import list_resources
from tpuctl.sim.world.node_form import show_spec
from tpuctl.sim.world.nodes import Nodes
from tpuctl.sim.world.operations import Made, Operations, show_operation
from tpuctl.sim.world.paths import ResourcePath, check_id, parse_path
from tpuctl.sim.world.queued_form import check_provisioning, expand_specs, run_for, valid_after, valid_for
from tpuctl.sim.world.reservations import take_chips, wanted_reservation
from tpuctl.sim.world.state import Kernel, Node, Queued, copy_json
from tpuctl.sim.world.validation import check_quota, prepare_spec

_INPUT_FIELDS = frozenset(
    {
        "spot",
        "guaranteed",
        "bestEffort",
        "queueingPolicy",
        "reservationName",
        "provisioningModel",
        "runDuration",
    }
)
_STATE_DATA = {
    "CREATING": "creatingData",
    "ACCEPTED": "acceptedData",
    "PROVISIONING": "provisioningData",
    "ACTIVE": "activeData",
    "FAILED": "failedData",
    "DELETING": "deletingData",
    "SUSPENDING": "suspendingData",
    "SUSPENDED": "suspendedData",
}
_DELETABLE = frozenset({"ACCEPTED", "WAITING_FOR_RESOURCES", "FAILED", "SUSPENDED"})
"""States in which a request can be deleted, without `force`; with it also in ACTIVE
(GoogleCloudPlatform/python-docs-samples, tpu/test_queued_resources.py, waits for one of these)."""


class QueuedResources:
    """The world's lock is held during calls and taken by scheduled steps."""

    def __init__(self, kernel: Kernel, operations: Operations, nodes: Nodes) -> None:
        self._kernel = kernel
        self._operations = operations
        self._nodes = nodes
        self._parked: dict[str, tuple[Queued, Fault | None]] = {}
        """Requests whose turn came without capacity, oldest first."""
        nodes.on_queued_node_lost = self._node_lost
        nodes.on_room = self.retry_parked

    def find(self, name: str) -> Queued:
        return self._kernel.find(self._kernel.queued, name)

    def get(self, request: Json) -> Json:
        found: Json = copy_json(self._kernel.find(self._kernel.queued, request["name"], read=True).data)
        return found

    def list_all(self, request: Json) -> Json:
        shown = [queued for queued in self._kernel.queued.values() if self._kernel.shows(queued)]
        found = [(queued.path, queued.data) for queued in shown]
        return list_resources(self._kernel, request, "queuedResources", found)

    # Creation and the way to ACTIVE.

    def create(self, request: Json, version: str) -> Json:
        body = request.get("queuedResource") or {}
        id = request.get("queuedResourceId") or self._kernel.ids.short()
        path = parse_path(request["parent"]).child("queuedResources", id)
        policy = body.get("queueingPolicy") or {}
        valid_s = valid_for(policy, self._kernel.clock.now())
        check_provisioning(body, valid_s)
        queued = self._admit(path, body, version)
        queued.valid_after = valid_after(policy, self._kernel.clock.now())
        operation = self._operations.start("queuedResources.create", "create", path, version)
        fault = self._kernel.faults.take(FaultKind.QUEUED_FAILURE, "queuedResources.create", path)
        self._kernel.after(self._kernel.delays.queued_accept, lambda: self._accept(queued, operation, fault))
        if valid_s is not None:
            self._kernel.schedule.after(valid_s, lambda: self._expire(queued))
        return show_operation(operation)

    def _admit(self, path: ResourcePath, body: Json, version: str) -> Queued:
        check_id("queued resource", path.id)
        self._kernel.check_zone(path)
        if path.name in self._kernel.queued:
            raise ApiError(Code.ALREADY_EXISTS, f"Resource '{path.name}' already exists")
        given = (body.get("tpu") or {}).get("nodeSpec") or []
        specs = [each for spec in given for each in expand_specs(spec, path.id, version)]
        if not specs:
            raise invalid_argument("QueuedResource.tpu.node_spec is required.")
        model = body.get("provisioningModel")
        spot = "spot" in body or model == "SPOT"
        offers = []
        wanted: list[Json] = []
        for spec in specs:
            node_path = path.child("nodes", spec["nodeId"])
            check_id("node", node_path.id)
            clean, offer = prepare_spec(self._kernel, node_path, spec.get("node") or {})
            if node_path.name in self._kernel.nodes:
                raise ApiError(Code.ALREADY_EXISTS, f"Resource '{node_path.name}' already exists")
            scheduling = clean.get("schedulingConfig") or {}
            if spot and not scheduling.get("preemptible"):
                # spotax asks for spot requests of preemptible nodes, and gets them.
                clean["schedulingConfig"] = {**scheduling, "spot": True}
            if len(specs) > 1:
                clean["multisliceNode"] = True
            wanted.append(clean)
            offers.append(offer)
        chips = sum(offer.chips for offer in offers)
        check_quota(self._kernel, path, offers[0], chips, spot=spot or model == "FLEX_START")
        data: Json = {key: copy_json(value) for key, value in body.items() if key in _INPUT_FIELDS}
        shown = [show_spec(spec, spec.get("node") or {}, path) for spec in specs]
        data |= {"name": path.name, "createTime": self._kernel.timestamp(), "tpu": {"nodeSpec": shown}}
        node_paths = [path.child("nodes", spec["nodeId"]) for spec in specs]
        queued = Queued(path, data, node_paths, chips, offers[0], wanted)
        self._set_state(queued, "CREATING", "USER")
        self._kernel.queued[path.name] = queued
        return queued

    @staticmethod
    def _set_state(queued: Queued, state: str, initiator: str, data: Json | None = None) -> None:
        shown: Json = {"state": state, "stateInitiator": initiator}
        if state in _STATE_DATA:
            shown[_STATE_DATA[state]] = data or {}
        queued.data["state"] = shown

    def _move(self, queued: Queued, before: str, after: str, data: Json | None = None) -> bool:
        """Goes on unless somebody else took the queued resource elsewhere meanwhile."""
        with self._kernel.lock:
            if queued.state != before or self._kernel.queued.get(queued.path.name) is not queued:
                return False
            self._set_state(queued, after, "SERVICE", data)
            return True

    def _flex_start_refusal(self, queued: Queued) -> ApiError | None:
        """The API finds out late, in the operation, where flex-start is not offered."""
        flexible = queued.data.get("provisioningModel") == "FLEX_START"
        if not flexible or queued.path.zone in queued.offer.flex_start_zones:
            return None
        return invalid_argument(
            "FLEX_START provisioning model is not supported for accelerator type "
            f'"{queued.offer.name}" in location "{queued.path.zone}"'
        )

    def _accept(self, queued: Queued, operation: Json, fault: Fault | None) -> None:
        planned = self._operations.planned_error("queuedResources.create", queued.path)
        refusal = planned or self._flex_start_refusal(queued)
        if refusal is not None:
            with self._kernel.lock:
                if queued.state == "CREATING":
                    self._kernel.queued.pop(queued.path.name, None)
                self._operations.fail(operation, refusal)
            return
        if not self._move(queued, "CREATING", "ACCEPTED"):
            with self._kernel.lock:
                self._operations.fail(operation, ApiError(Code.ABORTED, "Deleted while it was created."))
            return
        with self._kernel.lock:
            self._operations.succeed(operation, "QueuedResource", queued.data)
        self._kernel.after(self._kernel.delays.queued_assign, lambda: self._wait(queued, fault))

    def _wait(self, queued: Queued, fault: Fault | None) -> None:
        if not self._move(queued, "ACCEPTED", "WAITING_FOR_RESOURCES"):
            return
        wait_s = self._kernel.delays.queued_wait / self._kernel.speed
        early_s = queued.valid_after - self._kernel.clock.now()
        self._kernel.schedule.after(max(wait_s, early_s), lambda: self._provision(queued, fault))

    def _provision(self, queued: Queued, fault: Fault | None) -> None:
        """Capacity is there: the nodes appear as CREATING."""
        with self._kernel.lock:
            reserved = wanted_reservation(queued.specs[0], queued.data)
            if queued.path.zone not in queued.offer.zones:
                return  # the API lists the type there, but there is none: it waits for ever
            if not reserved and queued.chips > self._kernel.room(queued.path.zone):
                self._parked[queued.path.name] = (queued, fault)
                return
            self._parked.pop(queued.path.name, None)
            if not self._move(queued, "WAITING_FOR_RESOURCES", "PROVISIONING"):
                return
            flap = self._kernel.faults.take(FaultKind.FLAP, "queuedResources.create", queued.path)
            if flap is not None:
                self._kernel.after(flap.seconds, lambda: self._fall_back(queued, fault))
                return
            if fault is None:
                try:
                    for spec, path in zip(queued.specs, queued.node_paths, strict=True):
                        node = self._nodes.admit(path, spec, queued.path)
                        if reserved and queued.failure is None:
                            queued.failure = take_chips(self._kernel, node, reserved)
                except ApiError as error:
                    queued.failure = error
            else:
                queued.failure = fault.error(queued.path)
        if queued.failure is None:
            self._kernel.after(self._kernel.delays.node_create, lambda: self._activate(queued))
        else:
            self._kernel.after(self._kernel.delays.create_failure, lambda: self._fail(queued))

    def _fall_back(self, queued: Queued, fault: Fault | None) -> None:
        if self._move(queued, "PROVISIONING", "WAITING_FOR_RESOURCES"):
            self._kernel.after(self._kernel.delays.queued_wait, lambda: self._provision(queued, fault))

    def retry_parked(self) -> None:
        """Chips may have become free: whoever waits for some gets another turn, in order."""
        with self._kernel.lock:
            for name, (queued, fault) in list(self._parked.items()):
                if queued.state != "WAITING_FOR_RESOURCES" or self._kernel.queued.get(name) is not queued:
                    del self._parked[name]
                elif queued.chips <= self._kernel.room(queued.path.zone):
                    self._kernel.after(0.0, partial(self._provision, queued, fault))

    def _expire(self, queued: Queued) -> None:
        """`validUntil…` passed while it waited: FAILED, and it stays until it is deleted."""
        error = ApiError(Code.DEADLINE_EXCEEDED, "The request expired before capacity was available.")
        for state in ("ACCEPTED", "WAITING_FOR_RESOURCES"):
            self._move(queued, state, "FAILED", {"error": error.to_status()})

    def _activate(self, queued: Queued) -> None:
        for node in self._nodes_of(queued):
            error = self._nodes.boot(node)
            if error is not None:
                queued.failure = error
                self._fail(queued)
                return
        if not self._move(queued, "PROVISIONING", "ACTIVE"):
            return
        end_s = run_for(queued.data, self._kernel.clock.now())
        if end_s is not None:
            self._show_end(queued, self._kernel.clock.now() + end_s)
            self._kernel.schedule.after(end_s, lambda: self._end_run(queued))

    def _show_end(self, queued: Queued, at: float) -> None:
        """When its nodes will be deleted, which v2alpha1 shows on them."""
        for node in self._nodes_of(queued):
            with self._kernel.lock:
                scheduling = node.data.get("schedulingConfig") or {}
                node.data["schedulingConfig"] = {**scheduling, "terminationTimestamp": rfc3339(at)}

    def _end_run(self, queued: Queued) -> None:
        """The run duration is over: the nodes are deleted and the request is SUSPENDED."""
        for node in self._nodes_of(queued)[:1]:
            self._node_lost(node, "SERVICE")

    def _nodes_of(self, queued: Queued) -> list[Node]:
        with self._kernel.lock:
            found = [self._kernel.nodes.get(path.name) for path in queued.node_paths]
            return [node for node in found if node is not None and node.queued == queued.path]

    def _fail(self, queued: Queued) -> None:
        if not self._move(queued, "PROVISIONING", "SUSPENDING"):
            return
        error = queued.failure or ApiError(Code.INTERNAL, "an internal error has occurred")

        def finish() -> None:
            self._drop_nodes(queued)
            self._move(queued, "SUSPENDING", "FAILED", {"error": error.to_status()})

        self._kernel.after(self._kernel.delays.queued_suspend, finish)

    def _drop_nodes(self, queued: Queued) -> None:
        for node in self._nodes_of(queued):
            with self._kernel.lock:
                self._nodes.begin_deletion(node)
            self._nodes.finish_deletion(node)

    # The ways out.

    def _node_lost(self, node: Node, initiator: str) -> None:
        """A node was preempted or deleted: the whole request is suspended and its nodes go."""
        with self._kernel.lock:
            queued = self._kernel.queued.get(node.queued.name) if node.queued else None
            if queued is None or queued.state not in ("ACTIVE", "PROVISIONING"):
                return
            self._set_state(queued, "SUSPENDING", initiator)

        def finish() -> None:
            self._drop_nodes(queued)
            with self._kernel.lock:
                if queued.state == "SUSPENDING":
                    self._set_state(queued, "SUSPENDED", initiator)

        self._kernel.after(self._kernel.delays.queued_suspend, finish)

    def delete(self, request: Json, version: str) -> Json:
        queued = self.find(request["name"])
        force = str(request.get("force", "")).lower() == "true"
        if queued.state == "DELETING":
            raise failed_precondition(f"{queued.path.name} is already being deleted.")
        if queued.state == "ACTIVE" and not force and self._nodes_of(queued):
            raise failed_precondition(
                f"Queued resource {queued.path.name} is in state {queued.state} and has nodes. Delete the "
                "nodes first, or set force."
            )
        if queued.state not in _DELETABLE | {"ACTIVE"}:
            text = f"Queued resource {queued.path.name} is in state {queued.state}."
            raise failed_precondition(f"{text} Resource is not in a deletable state.")

        def begin() -> None:
            self._set_state(queued, "DELETING", "USER")
            for node in self._nodes_of(queued):
                self._nodes.begin_deletion(node)

        def finish() -> Made:
            for node in self._nodes_of(queued):
                self._nodes.finish_deletion(node)
            with self._kernel.lock:
                self._kernel.queued.pop(queued.path.name, None)
            return "", None

        method, delay_s = "queuedResources.delete", self._kernel.delays.queued_delete
        return self._operations.run(method, "delete", queued.path, version, delay_s, finish, begin)

    def reset(self, request: Json, version: str) -> Json:
        """Users report that it is refused from SUSPENDED; elsewhere its meaning is undocumented, so it does
        nothing to an ACTIVE request."""
        queued = self.find(request["name"])
        if queued.state != "ACTIVE":
            raise failed_precondition(f"reset is not supported while in state {queued.state}")
        operation = self._operations.start("queuedResources.reset", "reset", queued.path, version)
        self._operations.succeed(operation, "QueuedResource", queued.data)
        return show_operation(operation)

    def perform_maintenance(self, request: Json, version: str) -> Json:
        """Begins at once what was announced for the nodes of a request, or for those called `nodeNames`."""
        queued = self.find(request["name"])
        asked = [str(name).rsplit("/", 1)[-1] for name in request.get("nodeNames", [])]
        nodes = [node for node in self._nodes_of(queued) if not asked or node.path.id in asked]
        due = [node for node in nodes if "upcomingMaintenance" in node.data]
        if not due:
            raise failed_precondition(f"There is no upcoming maintenance for {queued.path.id}.")

        def begin() -> None:
            for node in due:
                self._nodes.perform_maintenance({"name": node.path.name}, version)

        method, delay_s = "queuedResources.performMaintenance", self._kernel.delays.node_start
        made: Made = ("QueuedResource", queued.data)
        return self._operations.run(method, "maintenance", queued.path, version, delay_s, lambda: made, begin)

    def maintenance_info(self, request: Json) -> Json:
        """The nodes of a request for which maintenance is announced."""
        return {
            "nodeUpcomingMaintenances": [
                {
                    "nodeName": node.path.id,
                    "nodeUid": node.data["id"],
                    "upcomingMaintenance": copy_json(node.data["upcomingMaintenance"]),
                }
                for node in self._nodes_of(self.find(request["name"]))
                if "upcomingMaintenance" in node.data
            ]
        }
