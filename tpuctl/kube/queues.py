"""What Kueue's objects say of a cluster's queues: chips by flavour, and who waits why. Pure.

Chips are `google.com/tpu`, of pods' requests as of quotas. The order of those that wait is Kueue's usual one:
by priority, then by age; with fair sharing or preemption the next may be another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from tpuctl.lib.time import parse_timestamp

CHIPS = "google.com/tpu"
_QUANTITY = re.compile(r"(\d{1,18})(?:([kMGTPE])|([KMGTPE])i|[eE](\d))?")
"""Of k8s.io/apimachinery/pkg/api/resource, those that are whole."""
Object = Mapping[str, Any]


class FlavorRow(Struct, frozen=True):
    """Chips of one flavour in one ClusterQueue. `queues` are the LocalQueues that lead there, as
    `NAMESPACE/NAME`."""

    cluster_queue: str
    flavor: str
    quota: int
    used: int
    borrowed: int
    queues: tuple[str, ...] = ()
    stopped: str = ""
    """Why the queue admits nothing."""

    @property
    def free(self) -> int:
        return max(0, self.quota - self.used)


class WaitingRow(Struct, frozen=True):
    """A workload that waits for admission. `position` counts from 1 in its ClusterQueue; None where it is in
    none. `since` is epoch seconds."""

    namespace: str
    name: str
    queue: str
    chips: int
    since: float | None
    position: int | None
    reason: str


def quantity(value: Any) -> int:
    """A whole number as Kubernetes writes it, such as 4, "32", "1k" or "1e3"; what is no such number is 0."""
    found = _QUANTITY.fullmatch(str(value))
    if found is None:
        return 0
    digits, decimal, binary, exponent = found.groups()
    power = int(exponent or 0) + 3 * (" kMGTPE".index(decimal) if decimal else 0)
    return int(digits + "0" * power) << 10 * (" KMGTPE".index(binary) if binary else 0)


def pod_chips(pod: Object) -> int:
    """The chips that a pod of this `spec` asks for."""
    total = 0
    for container in pod.get("containers") or ():
        resources = container.get("resources") or {}
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        total += quantity(asked.get(CHIPS, 0))
    return total


def workload_chips(workload: Object) -> int:
    """The chips of all pods of a workload."""
    sets = (workload.get("spec") or {}).get("podSets") or ()
    return sum(int(each.get("count") or 0) * pod_chips(each["template"].get("spec") or {}) for each in sets)


def condition(found: Object, kind: str) -> Object:
    """A condition of an object's status; empty where it has none of that kind."""
    rows = (found.get("status") or {}).get("conditions") or ()
    return next((row for row in rows if row.get("type") == kind), {})


def holds(found: Object, kind: str) -> bool:
    return bool(condition(found, kind).get("status") == "True")


def is_waiting(workload: Object) -> bool:
    """Whether it is not admitted yet: it has no quota, or a check is still to be passed."""
    return not holds(workload, "Finished") and not holds(workload, "Admitted")


def waiting_reason(workload: Object) -> str:
    """Why a workload is not admitted, in Kueue's words."""
    if (workload.get("spec") or {}).get("active") is False:
        return condition(workload, "Evicted").get("message") or "somebody deactivated it"
    if holds(workload, "QuotaReserved"):
        checks = (workload.get("status") or {}).get("admissionChecks") or ()
        open_checks = [each for each in checks if each.get("state") != "Ready"]
        said = [": ".join(filter(None, (each["name"], each.get("message")))) for each in open_checks]
        return f"quota is reserved; waits for {'; '.join(said)}" if said else "quota is reserved"
    reason = str(condition(workload, "QuotaReserved").get("message") or "")
    return reason or "Kueue has not looked at it yet"


def flavor_rows(cluster_queues: Iterable[Object], local_queues: Iterable[Object]) -> list[FlavorRow]:
    """Quota and use of chips, by ClusterQueue and flavour."""
    leading: dict[str, list[str]] = {}
    for each in local_queues:
        meta = each["metadata"]
        leading.setdefault((each.get("spec") or {}).get("clusterQueue", ""), []).append(
            f"{meta.get('namespace', '')}/{meta['name']}"
        )
    rows = []
    for queue in sorted(cluster_queues, key=lambda each: str(each["metadata"]["name"])):
        name, spec = queue["metadata"]["name"], queue.get("spec") or {}
        inactive = condition(queue, "Active")
        why = inactive.get("message", "inactive") if inactive.get("status") == "False" else ""
        held = f"stopped ({spec['stopPolicy']})" if spec.get("stopPolicy", "None") != "None" else ""
        reserved = _chips_of((queue.get("status") or {}).get("flavorsReservation") or ())
        for flavor, quota in quotas(spec).items():
            used = reserved.get(flavor, {})
            rows.append(
                FlavorRow(
                    cluster_queue=name,
                    flavor=flavor,
                    quota=quota,
                    used=quantity(used.get("total", 0)),
                    borrowed=quantity(used.get("borrowed", 0)),
                    queues=tuple(sorted(leading.get(name, ()))),
                    stopped=held or why,
                )
            )
    return rows


def quotas(spec: Object) -> dict[str, int]:
    """The quota of chips of each flavour."""
    flavors = [flavor for group in spec.get("resourceGroups") or () for flavor in group.get("flavors") or ()]
    return {name: quantity(chips.get("nominalQuota", 0)) for name, chips in _chips_of(flavors).items()}


def _chips_of(flavors: Iterable[Object]) -> dict[str, Object]:
    """What a list says of the chips of each flavour."""
    return {
        flavor["name"]: resource
        for flavor in flavors
        for resource in flavor.get("resources") or ()
        if resource.get("name") == CHIPS
    }


def waiting_rows(workloads: Iterable[Object], local_queues: Iterable[Object]) -> list[WaitingRow]:
    """The workloads that wait, those of one ClusterQueue in the order in which it takes them."""
    target = {
        (each["metadata"].get("namespace"), each["metadata"]["name"]): (each.get("spec") or {}).get(
            "clusterQueue"
        )
        for each in local_queues
    }
    waiting = sorted((each for each in workloads if is_waiting(each)), key=_order)
    counts: dict[str, int] = {}
    rows = []
    for each in waiting:
        meta, spec = each["metadata"], each.get("spec") or {}
        queue = str(spec.get("queueName") or "")
        into = target.get((meta.get("namespace"), queue))
        if into is not None:
            counts[into] = counts.get(into, 0) + 1
        rows.append(
            WaitingRow(
                namespace=str(meta.get("namespace") or ""),
                name=owner_name(each),
                queue=queue,
                chips=workload_chips(each),
                since=parse_timestamp(str(meta.get("creationTimestamp") or "")),
                position=None if into is None else counts[into],
                reason=waiting_reason(each),
            )
        )
    return rows


def _order(workload: Object) -> tuple[int, str, str]:
    """Kueue's order: the higher priority first, then the older one."""
    meta = workload["metadata"]
    priority = int((workload.get("spec") or {}).get("priority") or 0)
    return (-priority, str(meta.get("creationTimestamp") or ""), str(meta["name"]))


def owner_name(workload: Object) -> str:
    """What a person calls a workload: the job that it is for."""
    owners: Sequence[Object] = workload["metadata"].get("ownerReferences") or ()
    return str(owners[0]["name"] if owners else workload["metadata"]["name"])
