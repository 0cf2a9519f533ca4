"""Long-running operations: made by mutating calls, ended by the schedule."""

from __future__ import annotations

from collections.abc import Callable

from tpuctl.sim.faults import FaultKind
from tpuctl.sim.kernel import Json, Kernel, copy_json
from tpuctl.sim.paths import ResourcePath, parse_path
from tpuctl.sim.status import ApiError, Code, not_found

KEPT_S = 86_400.0
"""How long an operation that is done can be asked for; how long the real API keeps them is not published."""
EMPTY_TYPE = "type.googleapis.com/google.protobuf.Empty"


class Operations:
    """All methods but `get` and `list_all` expect the world's lock to be held."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def start(self, method: str, verb: str, target: ResourcePath, version: str) -> Json:
        """Creates an operation that is not done; `method` is `nodes.create` and the like."""
        kernel = self._kernel
        name = target.child("operations", kernel.ids.operation_id(kernel.clock.now())).name
        operation: Json = {
            "name": name,
            "metadata": {
                "@type": f"type.googleapis.com/google.cloud.tpu.{version}.OperationMetadata",
                "createTime": kernel.timestamp(),
                "target": target.name,
                "verb": verb,
                "cancelRequested": False,
                "apiVersion": version,
            },
            "done": False,
        }
        kernel.operations[name] = operation
        self._slow(operation, method, target)
        return operation

    def _slow(self, operation: Json, method: str, target: ResourcePath) -> None:
        fault = self._kernel.faults.take(FaultKind.SLOW_OPERATION, method, target)
        if fault is not None:
            operation["_late_s"] = fault.seconds or float("inf")

    def succeed(self, operation: Json, kind: str, response: Json | None) -> None:
        """Ends with a snapshot of the resource; `kind` is Node or QueuedResource, or '' for Empty."""
        version = operation["metadata"]["apiVersion"]
        result: Json = {"@type": EMPTY_TYPE}
        if kind:
            result = {"@type": f"type.googleapis.com/google.cloud.tpu.{version}.{kind}"}
            result |= copy_json(response or {})
        self._end(operation, lambda: operation.__setitem__("response", result))

    def fail(self, operation: Json, error: ApiError) -> None:
        self._end(operation, lambda: operation.__setitem__("error", error.to_status()))

    def _end(self, operation: Json, put: Callable[[], None]) -> None:
        if operation["done"]:
            return
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
        found = [show_operation(op) for name, op in self._kernel.operations.items() if name.startswith(prefix)]
        return {"operations": found}

    def cancel(self, request: Json) -> Json:
        """The TPU API makes a best effort, which here means none: the work goes on, as it mostly does."""
        self._find(request["name"])["metadata"]["cancelRequested"] = True
        return {}

    def delete(self, request: Json) -> Json:
        operation = self._find(request["name"])
        if not operation["done"]:
            raise ApiError(Code.FAILED_PRECONDITION, f"Operation {request['name']} is still running.")
        del self._kernel.operations[request["name"]]
        return {}


def show_operation(operation: Json) -> Json:
    """An operation without the simulator's own notes."""
    return {key: copy_json(value) for key, value in operation.items() if not key.startswith("_")}
