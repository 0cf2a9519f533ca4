"""Long-running operations: made by mutating calls, ended by the schedule."""

from __future__ import annotations

import math
from collections.abc import Callable

from tpuctl.sim.wire.status import ApiError, Code, Json, failed_precondition, not_found
from tpuctl.sim.world.faults import FaultKind
from tpuctl.sim.world.listing import page_of
from tpuctl.sim.world.paths import ResourcePath, parse_path
from tpuctl.sim.world.state import Kernel, copy_json

KEPT_S = 86_400.0
"""How long an operation that is done can be asked for; how long the real API keeps them is not published."""
METADATA_TYPE = "type.googleapis.com/google.cloud.common.OperationMetadata"
"""As Google's servers answer, for every version (GoogleCloudPlatform/k8s-config-connector,
mockgcp/mocktpu/testdata/node/crud/_http.log); not the OperationMetadata that google.cloud.tpu has, too."""
KEPT = 10_000
"""How many are remembered."""
Made = tuple[str, Json | None]
EMPTY_TYPE = "type.googleapis.com/google.protobuf.Empty"


class Operations:
    """All methods but `get` and `list_all` expect the world's lock to be held."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def start(self, method: str, verb: str, target: ResourcePath, version: str) -> Json:
        """Creates an operation that is not done; `method` is `nodes.create` and the like.

        It holds its target until its work is done: another one gets 409, with the message of Google's operation
        queue.
        """
        if target.name in self._kernel.held:
            raise ApiError(Code.ABORTED, "unable to queue the operation")
        self._kernel.held.add(target.name)
        return self._make(method, verb, target, version)

    def start_idle(self, method: str, verb: str, target: ResourcePath, version: str) -> Json:
        """Creates an operation that is taken beside the one that holds the target, and does nothing."""
        operation = self._make(method, verb, target, version)
        operation["_idle"] = True
        return operation

    def _make(self, method: str, verb: str, target: ResourcePath, version: str) -> Json:
        kernel = self._kernel
        name = target.child("operations", kernel.ids.operation_id(kernel.clock.now())).name
        operation: Json = {
            "name": name,
            "metadata": {
                "@type": METADATA_TYPE,
                "createTime": kernel.timestamp(),
                "target": target.name,
                "verb": verb,
                "apiVersion": version,
            },
            "done": False,
        }
        self._make_room()
        kernel.operations[name] = operation
        self._slow(operation, method, target)
        return operation

    def _make_room(self) -> None:
        """Forgets the oldest of very many operations that are done, and the requests that began them."""
        known = self._kernel.operations
        if len(known) < KEPT:
            return
        for name in [name for name, each in known.items() if each["done"]][: KEPT // 10]:
            del known[name]
        requests = self._kernel.requests
        for key in [key for key, name in requests.items() if name not in known]:
            del requests[key]

    def _slow(self, operation: Json, method: str, target: ResourcePath) -> None:
        fault = self._kernel.faults.take(FaultKind.SLOW_OPERATION, method, target)
        if fault is not None:
            operation["_late_s"] = fault.seconds or float("inf")

    def run(
        self,
        method: str,
        verb: str,
        target: ResourcePath,
        version: str,
        delay_s: float,
        finish: Callable[[], Made],
        begin: Callable[[], None] = lambda: None,
    ) -> Json:
        """Starts an operation that ends after `delay_s` with what `finish` makes or raises: kind and resource
        as `succeed` takes them. `finish` is called without the world's lock, `begin` at once. Of one that was
        planned to fail neither is, and a deletion takes longer if that was planned."""
        operation = self.start(method, verb, target, version)
        planned = self.planned_error(method, target)

        def end() -> None:
            try:
                kind, response = finish()
            except ApiError as error:
                with self._kernel.lock:
                    self.fail(operation, error)
                return
            with self._kernel.lock:
                self.succeed(operation, kind, response)

        if planned is not None:
            self._kernel.after(delay_s, lambda: self.fail(operation, planned))
            return show_operation(operation)
        begin()
        if verb == "delete":
            fault = self._kernel.faults.take(FaultKind.HANG, method, target)
            delay_s += 0.0 if fault is None else fault.seconds or math.inf
        self._kernel.after(delay_s, end)
        return show_operation(operation)

    def planned_error(self, method: str, target: ResourcePath) -> ApiError | None:
        """What an operation was planned to fail with."""
        fault = self._kernel.faults.take(FaultKind.ERROR, method, target, in_operation=True)
        return None if fault is None else ApiError(fault.code, fault.text(target))

    def succeed(self, operation: Json, kind: str, response: Json | None) -> None:
        """Ends with a snapshot of the resource; `kind` is Node or QueuedResource, or '' for Empty.

        The node of a create has no `health` yet, as recorded.
        """
        version, verb = operation["metadata"]["apiVersion"], operation["metadata"]["verb"]
        result: Json = {"@type": EMPTY_TYPE}
        if kind:
            result = {"@type": f"type.googleapis.com/google.cloud.tpu.{version}.{kind}"}
            result |= copy_json(response or {})
            if verb == "create":
                result.pop("health", None)
        self._end(operation, lambda: operation.__setitem__("response", result))

    def fail(self, operation: Json, error: ApiError) -> None:
        self._end(operation, lambda: operation.__setitem__("error", error.to_status()))

    def _end(self, operation: Json, put: Callable[[], None]) -> None:
        if operation["done"]:
            return
        if not operation.get("_idle"):
            self._kernel.held.discard(operation["metadata"]["target"])
        late_s = operation.pop("_late_s", 0.0)

        def end() -> None:
            with self._kernel.lock:
                if operation["done"]:
                    return
                put()
                operation["done"] = True
                operation["metadata"]["endTime"] = self._kernel.timestamp()
                self._kernel.after(KEPT_S, lambda: self._forget(operation["name"]))

        if late_s == 0.0:
            end()
        elif late_s != float("inf"):
            self._kernel.after(late_s, end)

    def _forget(self, name: str) -> None:
        with self._kernel.lock:
            self._kernel.operations.pop(name, None)

    # What the API offers on operations.

    def _find(self, name: str) -> Json:
        operation = self._kernel.operations.get(name)
        if operation is None:
            raise not_found(name)
        return operation

    def get(self, request: Json) -> Json:
        return show_operation(self._find(request["name"]))

    def list_all(self, request: Json) -> Json:
        path = parse_path(request["name"])
        self._kernel.check_zone(path)
        prefix = f"{path.location}/operations/"
        known = self._kernel.operations.items()
        found = [(name, show_operation(op)) for name, op in known if name.startswith(prefix)]
        return page_of(found, request, "operations")

    def cancel(self, request: Json) -> Json:
        """The TPU API makes a best effort, which here means none: the work goes on, as it mostly does."""
        self._find(request["name"])["metadata"]["cancelRequested"] = True
        return {}

    def delete(self, request: Json) -> Json:
        operation = self._find(request["name"])
        if not operation["done"]:
            raise failed_precondition(f"Operation {request['name']} is still running.")
        del self._kernel.operations[request["name"]]
        return {}


def show_operation(operation: Json) -> Json:
    """An operation without the simulator's own fields; one that is not done has no `done`, as recorded."""
    shown = {key: copy_json(value) for key, value in operation.items() if not key.startswith("_")}
    if not shown["done"]:
        del shown["done"]
    return shown
