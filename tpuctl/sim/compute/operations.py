"""Compute Engine's long-running operations: PENDING, RUNNING and DONE are a matter of the clock alone."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tpuctl.sim.compute.catalog import ROOT, Kind, Scope, place
from tpuctl.sim.compute.refusals import absent
from tpuctl.sim.wire.status import HTTP_STATUS, ApiError, Code, Json
from tpuctl.sim.wire.timestamps import pacific
from tpuctl.sim.world.faults import RATE_EXCEEDED, Fault
from tpuctl.sim.world.paths import ACCOUNT
from tpuctl.sim.world.state import Ids

KEPT = 5000
"""How many operations can be asked for; older ones are forgotten."""
WAIT_S = 120.0
"""`operations.wait` answers after two minutes at the latest."""
POLL_S = 0.1
SYSTEM = "system@google.com"
"""Who preempts, in operations and audit logs that users quote."""
_ERROR_CODES = {
    Code.RESOURCE_EXHAUSTED: "QUOTA_EXCEEDED",
    Code.UNAVAILABLE: "ZONE_RESOURCE_POOL_EXHAUSTED",
    Code.NOT_FOUND: "RESOURCE_NOT_FOUND",
    Code.ALREADY_EXISTS: "RESOURCE_ALREADY_EXISTS",
    Code.PERMISSION_DENIED: "PERMISSIONS_ERROR",
    Code.FAILED_PRECONDITION: "CONDITION_NOT_MET",
    Code.INVALID_ARGUMENT: "INVALID_USAGE",
}
"""Codes that operations of Compute Engine end with; anything else is an internal error."""


@dataclass(frozen=True)
class Planned:
    """What shall become of an operation: `slow` keeps it PENDING for so long (0: for ever), it fails with
    `error`."""

    slow: Fault | None = None
    error: ApiError | None = None


class Resources(Protocol):
    """Keeps the resources of some collections. Each change answers with its operation."""

    def rows(self, kind: Kind) -> list[tuple[str, str, Json]]:
        """(scope, name, resource) of a collection, everywhere."""

    def insert(self, kind: Kind, scope: Scope, body: Json, planned: Planned) -> Json: ...

    def change(self, verb: str, kind: Kind, scope: Scope, name: str, body: Json, planned: Planned) -> Json: ...

    def delete(self, kind: Kind, scope: Scope, name: str, planned: Planned) -> Json: ...

    def reset(self) -> None: ...


class ComputeOperations:
    """Thread-safe. `delay_s`: how long an operation takes, in seconds of the clock."""

    def __init__(self, project: str, now: Callable[[], float], ids: Ids, delay_s: Callable[[], float]) -> None:
        self._base = f"{ROOT}/projects/{project}"
        self._now = now
        self._ids = ids
        self._delay_s = delay_s
        self._lock = threading.Lock()
        self._found: dict[str, Json] = {}
        self._requests: dict[tuple[str, str], str] = {}

    def reset(self) -> None:
        with self._lock:
            self._found.clear()
            self._requests.clear()

    def begin(
        self,
        verb: str,
        scope: Scope,
        data: Json,
        planned: Planned,
        extra_s: float = 0.0,
        *,
        held: bool = False,
        said: str = "",
    ) -> Json:
        """An operation on the resource `data`. One that is `held` does not end before its `release`. `said`:
        what Compute Engine itself says, whose own doing it is then."""
        now = self._now()
        name = self._ids.operation_id(now)
        name = name.replace("operation-", "systemevent-") if said else name
        pending_s = (planned.slow.seconds or math.inf) if planned.slow is not None else 0.0
        ends = now + pending_s + self._delay_s() + extra_s
        operation: Json = {
            "kind": "compute#operation",
            "id": self._ids.node_id(),
            "name": name,
            "operationType": verb,
            "targetLink": data["selfLink"],
            "targetId": data["id"],
            "user": SYSTEM if said else ACCOUNT,
            **({"statusMessage": said} if said else {}),
            "insertTime": pacific(now),
            "selfLink": f"{self._base}/{scope}/operations/{name}",
            **place(self._base, scope),
            "_scope": str(scope),
            "_begins": now + pending_s,
            "_ends": math.inf if held else ends,
            "_planned": ends,
            "_error": planned.error,
        }
        with self._lock:
            self._found[name] = operation
            while len(self._found) > KEPT:
                del self._found[next(iter(self._found))]
        return operation

    def release(self, operation: Json, error: ApiError | None) -> None:
        """What it waited for is done, or went wrong; it ends now or when its time is over."""
        operation["_error"] = operation["_error"] or error
        operation["_ends"] = max(self._now(), operation["_planned"])

    def once(self, method: str, request_id: str, act: Callable[[], Json]) -> Json:
        """`act`, unless a call with this `requestId` did it before: then its operation again."""
        key = (method, request_id)
        with self._lock:
            known = self._found.get(self._requests.get(key, "")) if request_id else None
        operation = known or act()
        with self._lock:
            if request_id:
                self._requests[key] = operation["name"]
                while len(self._requests) > KEPT:
                    del self._requests[next(iter(self._requests))]
        return self.show(operation)

    def show(self, operation: Json) -> Json:
        """As the API shows it now."""
        now = self._now()
        shown = {key: value for key, value in operation.items() if not key.startswith("_")}
        if now < operation["_begins"]:
            return {**shown, "status": "PENDING", "progress": 0}
        shown["startTime"] = pacific(operation["_begins"])
        if now < operation["_ends"]:
            share = (now - operation["_begins"]) / (operation["_ends"] - operation["_begins"])  # 0 while held
            return {**shown, "status": "RUNNING", "progress": int(100 * share)}
        shown |= {"status": "DONE", "progress": 100, "endTime": pacific(operation["_ends"])}
        return {**shown, **_failure(operation["_error"])}

    def rows(self) -> list[tuple[str, str, Json]]:
        """(scope, name, operation), all of them."""
        with self._lock:
            found = list(self._found.values())
        return [(each["_scope"], each["name"], self.show(each)) for each in found]

    def wait(self, scope: Scope, name: str) -> Json:
        """The operation when it is done or two minutes are over. Raises NOT_FOUND."""
        with self._lock:
            operation = self._found.get(name)
        if operation is None or operation["_scope"] != str(scope):
            base = self._base.removeprefix(f"{ROOT}/")
            raise absent(f"{base}/{scope}/operations/{name}")
        waited_s = 0.0
        while waited_s < WAIT_S and (left_s := operation["_ends"] - self._now()) > 0:
            # One that is held ends at a time that is not known yet.
            step_s = min(left_s, WAIT_S - waited_s, POLL_S if math.isinf(left_s) else WAIT_S)
            threading.Event().wait(step_s)
            waited_s += step_s
        return self.show(operation)


_BEGINNINGS = {
    RATE_EXCEEDED: "RESOURCE_OPERATION_RATE_EXCEEDED",
    "Invalid value for field": "INVALID_FIELD_VALUE",
}
"""Codes that are told by how a message begins, before those above."""


def error_row(error: ApiError) -> Json:
    """What went wrong, as operations and groups say it."""
    told = (code for begins, code in _BEGINNINGS.items() if error.message.startswith(begins))
    code = next(told, _ERROR_CODES.get(error.code, "INTERNAL_ERROR"))
    details = [dict(each) for each in error.details if "quotaInfo" in each]
    return {"code": code, "message": error.message, **({"errorDetails": details} if details else {})}


def _failure(error: ApiError | None) -> Json:
    if error is None:
        return {}
    return {
        "error": {"errors": [error_row(error)]},
        "httpErrorStatusCode": HTTP_STATUS[error.code],
        "httpErrorMessage": error.code.name.replace("_", " "),
    }
