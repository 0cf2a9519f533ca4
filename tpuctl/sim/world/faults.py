"""What shall go wrong, decided beforehand: the fault plan.

A fault matches calls by method (`nodes.create`, `*.list`, `*`), resource id and zone (`-` where a list is of
all zones), lets `skip` of them pass and then strikes `times` times (0: for ever).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, get_type_hints

from tpuctl.errors import UsageError
from tpuctl.lib.text import suggest
from tpuctl.model.shipped_files import load_sim_calls, load_sim_compute, load_sim_faults
from tpuctl.sim.wire.calls import tpu_calls
from tpuctl.sim.wire.status import ApiError, Code, location_denied, rate_limited
from tpuctl.sim.world.paths import ResourcePath


class FaultKind(StrEnum):
    """Those in `STANDING` stand until they are cleared. For what happens to hosts `method` plays no part."""

    ERROR = "error"
    """The call is refused with `code` and `message`, or its operation ends so when `in_operation`."""
    DROP = "drop"
    """The call takes effect, the client gets a cut connection."""
    SLOW_OPERATION = "slow-operation"
    """The operation ends `seconds` late (0: never) although its work is done."""
    HANG = "hang"
    """What is deleted stays DELETING for `seconds` longer (0: for ever)."""
    LATE = "late"
    """What a create makes is shown by get and list only `seconds` later, with all that comes of it."""
    UNREACHABLE = "unreachable"
    """List calls name the zone in `unreachable` and leave its resources out."""
    PREEMPT = "preempt"
    """A matching node is preempted `seconds` after it became READY."""
    QUEUED_FAILURE = "queued-failure"
    """A queued resource goes PROVISIONING → SUSPENDING → FAILED with `code` and `message`."""
    SERVICE_OFF = "service-off"
    """The API called `name`, such as compute.googleapis.com, is not enabled."""
    NO_PERMISSION = "no-permission"
    """The caller lacks the permission `name`, such as tpu.nodes.create."""
    EXPIRED_TOKEN = "expired-token"  # noqa: S105 - a word
    """Every API call is refused with 401."""
    CLOCK = "clock"
    """The cloud's clock, as its Date headers show it, is `seconds` ahead."""
    OS_LOGIN_POLICY = "os-login-policy"
    """The organisation forces OS Login on: hosts take no keys from metadata."""
    NO_NETWORK = "no-network"
    """The project has no network `name`."""
    NO_INTERNET = "no-internet"
    """Hosts reach Google's APIs and nothing else, as without an external address and NAT."""
    LATE_KEYS = "late-keys"
    """A matching node's hosts know their keys only `seconds` after they answer."""
    LOGIN_BAN = "login-ban"
    """A matching node's hosts let `skip` refused log-ins in a row pass and are deaf for `seconds` after the
    next. Process hosts only."""
    FLAP = "flap"
    """A queued resource falls back from PROVISIONING to WAITING_FOR_RESOURCES after `seconds`."""
    BILLING_OFF = "billing-off"
    """The project has no billing account."""
    NO_ATTRIBUTES = "no-attributes"
    """Guest attributes are read, and there are none."""
    SLOW_ANSWER = "slow-answer"
    """Cloud Storage answers `seconds` late (0: not before the fault is cleared, and then the connection is
    cut)."""
    HARD_DELETE = "hard-delete"
    """Deleting a matching node cuts the power of its hosts, which are not shut down in order."""
    HARD_PREEMPT = "hard-preempt"
    """A preemption of a matching node comes without notice and without a window."""
    PREEMPT_DELETES = "preempt-deletes"
    """A preemption of a matching instance deletes it, whatever its termination action says."""
    UNMARKED_DISKS = "unmarked-disks"
    """Data disks that a matching node gets have no names in /dev/disk/by-id."""
    DEVICE_ORDER = "device-order"
    """The kernel of a matching node's hosts finds data disks in another order at each boot, so that their
    devices have each other's names."""
    NO_METADATA = "no-metadata"
    """A matching node's hosts get no answer from their metadata servers."""


STANDING = frozenset(
    {
        *(FaultKind.SERVICE_OFF, FaultKind.NO_PERMISSION, FaultKind.EXPIRED_TOKEN, FaultKind.CLOCK),
        *(FaultKind.OS_LOGIN_POLICY, FaultKind.BILLING_OFF, FaultKind.NO_NETWORK, FaultKind.NO_INTERNET),
        *(FaultKind.NO_METADATA, FaultKind.HARD_DELETE, FaultKind.HARD_PREEMPT, FaultKind.UNMARKED_DISKS),
        *(FaultKind.DEVICE_ORDER, FaultKind.LOGIN_BAN, FaultKind.PREEMPT_DELETES),
    }
)
"""Kinds that are never used up."""
WITH_MESSAGE = frozenset({FaultKind.ERROR, FaultKind.QUEUED_FAILURE})
"""Kinds whose message a caller gets to see."""

STORAGE = "storage"


@cache
def fault_methods() -> Mapping[str, bool]:
    """Calls of all APIs that ask for faults, and whether their operations can be planned to fail
    (`in_operation`)."""
    found = {each.id: each.fails for each in tpu_calls()}
    for collection, row in load_sim_compute()["collections"].items():
        lists = ["list", *(["aggregatedList"] if row.get("aggregated", True) else []), *row.get("reads", ())]
        made = ["insert", *(["delete"] if row.get("inputs") else [])] if row.get("message") else []
        found |= {f"{collection}.{verb}": False for verb in lists}
        found |= {f"{collection}.{verb}": True for verb in (*made, *row.get("changes", ()))}
    return {**found, **{f"{STORAGE}.{verb}": False for verb in load_sim_calls()[STORAGE]}}


RATE_EXCEEDED = "Operation rate exceeded for resource"
"""How Compute Engine's operations fail that copy one source too often (gcpdiag, rule gce/ERR/2024_001)."""


def load_presets() -> Mapping[str, Mapping[str, Any]]:
    """Named faults: the rows of `manifests/tables/sim_faults.yaml`."""
    presets: Mapping[str, Mapping[str, Any]] = load_sim_faults()["presets"]
    return presets


@dataclass
class Fault:
    """One planned fault; `remaining` counts down, 0 in `times` means for ever."""

    id: int
    kind: FaultKind
    method: str = "*"
    name: str = "*"
    zone: str = "*"
    times: int = 1
    skip: int = 0
    code: int = int(Code.INTERNAL)
    message: str = "an internal error has occurred"
    in_operation: bool = False
    seconds: float = 0.0
    struck: int = 0
    passed: int = 0

    @property
    def spent(self) -> bool:
        return self.times > 0 and self.struck >= self.times

    def text(self, path: ResourcePath) -> str:
        """The message with `{zone}`, `{project}` and `{name}` filled in."""
        filled = self.message.replace("{zone}", path.zone).replace("{project}", path.project)
        return filled.replace("{name}", path.id)

    def error(self, path: ResourcePath) -> ApiError:
        """What a caller is refused with."""
        plain = ApiError(self.code, self.text(path))
        for known in (location_denied(path.project, path.zone), rate_limited()):
            if (known.code, known.message) == (plain.code, plain.message):
                return known
        return plain

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "kind": str(self.kind)}


_OWN = ("id", "struck", "passed")
_FIELDS: Mapping[str, type] = {
    **{name: type for name, type in get_type_hints(Fault).items() if name not in _OWN},
    "kind": str,
}


def check_word(what: str, word: str, known: Iterable[str]) -> str:
    """`word`, if it is one of `known`. Raises UsageError with what was meant."""
    names = list(known)
    if word in names:
        return word
    near = suggest(word, names)
    meant = f"did you mean {near}? " if near else ""
    raise UsageError(f"no {what} `{word}`", hint=f"{meant}one of: {', '.join(names)}")


def parse_fault(spec: Mapping[str, Any], id: int) -> Fault:
    """Makes a fault from plain data: the fields of `Fault`, or `preset` and fields that override it."""
    fields = dict(spec)
    preset = fields.pop("preset", None)
    if preset is not None:
        presets = load_presets()
        check_word("fault preset", str(preset), sorted(presets))
        fields = {**presets[preset], **fields}
    for key in fields:
        check_word("key of a fault", key, _FIELDS)
    check_word("kind of fault", str(fields.get("kind")), FaultKind)
    for key, value in fields.items():
        wanted = _FIELDS[key]
        if not isinstance(value, wanted) and not (wanted is float and isinstance(value, int)):
            raise UsageError(f"`{key}` of a fault must be a {wanted.__name__}, not {value!r}")
    method = str(fields.get("method", "*"))
    methods = fault_methods()
    if not any(fnmatchcase(known, method) for known in methods):
        check_word("method", method, methods)
    if "code" in fields and fields["code"] not in list(Code):
        raise UsageError(f"no google.rpc code {fields['code']}", hint="a number from 1 to 16")
    if fields.get("in_operation") and not methods.get(method):
        failing = ", ".join(each for each, fails in methods.items() if fails)
        raise UsageError(f"no operation of `{method}` can fail", hint=f"one of: {failing}")
    return Fault(id, **{**fields, "kind": FaultKind(fields["kind"])})


def preset_error(name: str, path: ResourcePath) -> ApiError:
    """What a named fault says of the resource at `path`, where the cloud says it of its own accord."""
    return parse_fault({"preset": name}, 0).error(path)


class FaultPlan:
    """The faults that are still to strike; thread-safe."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._number = itertools.count(1)
        self._lock = threading.Condition()

    def add(self, spec: Mapping[str, Any]) -> Fault:
        """Plans one fault; raises UsageError for a spec that makes no sense."""
        with self._lock:
            fault = parse_fault(spec, next(self._number))
            self._faults.append(fault)
            return fault

    def list_active(self) -> list[Fault]:
        with self._lock:
            return [each for each in self._faults if not each.spent]

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()
            self._lock.notify_all()

    def remove(self, id: int) -> None:
        with self._lock:
            self._faults = [each for each in self._faults if each.id != id]
            self._lock.notify_all()

    def wait_cleared(self, fault: Fault) -> None:
        """Comes back when somebody has cleared it."""
        with self._lock:
            self._lock.wait_for(lambda: fault not in self._faults)

    def take(
        self, kind: FaultKind, method: str, path: ResourcePath, *, in_operation: bool = False
    ) -> Fault | None:
        """The first fault that strikes here and now, counted as struck."""
        with self._lock:
            for fault in self._faults:
                if fault.spent or fault.kind != kind or fault.in_operation != in_operation:
                    continue
                if not (
                    fnmatchcase(method, fault.method)
                    and fnmatchcase(path.id, fault.name)
                    and fnmatchcase(path.zone, fault.zone)
                ):
                    continue
                if fault.passed < fault.skip:
                    fault.passed += 1
                    continue
                fault.struck += 1
                return fault
        return None

    def standing(self, kind: FaultKind, name: str) -> list[Fault]:
        """Faults of a kind that lasts; asking does not count as a strike, so reads change nothing."""
        with self._lock:
            return [f for f in self._faults if f.kind == kind and fnmatchcase(name, f.name)]

    def unreachable_zones(self, zones: list[str]) -> list[str]:
        """Which zones list calls cannot read; does not count as a strike, so reads change nothing."""
        with self._lock:
            patterns = [f.zone for f in self._faults if f.kind == FaultKind.UNREACHABLE and not f.spent]
        return [zone for zone in zones if any(fnmatchcase(zone, pattern) for pattern in patterns)]
