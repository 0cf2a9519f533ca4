"""Attaching disks to nodes and detaching them: the whole list is read, changed, written and read again.

The API replaces the list and has no precondition. So who else changed it between our look and our change is
found afterwards, in the operations of the node: what they added is added again, what they removed, removed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tpuctl.engine.cloud_ports import Cloud
from tpuctl.engine.events import StepStarted
from tpuctl.engine.reconcile import Outcome, converge
from tpuctl.engine.services import Services
from tpuctl.errors import BusyError, NotFoundError, TpuctlError
from tpuctl.lib.text import counted
from tpuctl.model.cloud import Api, NodeInfo, OperationInfo
from tpuctl.model.disks import DataDisk
from tpuctl.model.shipped_files import load_error_table
from tpuctl.model.verdict import Done, Failed, Wait
from tpuctl.state.journal import record_decision

List = tuple[DataDisk, ...]
Change = Callable[[List], List]


def attach(
    services: Services,
    zone: str,
    nodes: Sequence[str],
    disk: DataDisk,
    *,
    api: Api = Api.TPU,
    deadline: float | None = None,
) -> None:
    """Until each of the nodes has `disk`, beside all that it has already."""

    def add(now: List) -> List:
        return now if disk in now else (*now, disk)

    what = f"attach {disk.name} ({disk.mode.short})"
    change_disks(services, zone, nodes, add, what, api=api, deadline=deadline)


def detach(
    services: Services,
    zone: str,
    nodes: Sequence[str],
    name: str,
    *,
    api: Api = Api.TPU,
    deadline: float | None = None,
) -> None:
    """Until none of the nodes has the disk called `name`; all others stay."""

    def remove(now: List) -> List:
        return tuple(each for each in now if each.name != name)

    change_disks(services, zone, nodes, remove, f"detach {name}", api=api, deadline=deadline)


def merge(base: List, now: List, theirs: List) -> List:
    """`now` with what others did who began at `base` and came to `theirs`. Pure."""
    kept = tuple(each for each in now if each in theirs or each not in base)
    return (*kept, *(each for each in theirs if each not in base and each not in kept))


def change_disks(
    services: Services,
    zone: str,
    nodes: Sequence[str],
    change: Change,
    what: str,
    *,
    api: Api = Api.TPU,
    deadline: float | None = None,
) -> None:
    """Brings the data disks of nodes to where `change` has nothing left to do, and nobody else's is lost. All
    nodes change at the same time."""
    cloud = services.tpus(api)
    left = {node: _change_of(services, cloud, zone, node, change, what) for node in nodes}

    def step() -> Outcome:
        waits: Outcome | None = None
        for node, advance in list(left.items()):
            outcome = advance()
            if isinstance(outcome.verdict, Failed):
                return outcome
            if isinstance(outcome.verdict, Done):
                del left[node]
            else:
                waits = waits or outcome
        return waits or Outcome(Done(), acted=False)

    converge(services, nodes[0], step, deadline=deadline)


def _change_of(
    services: Services, cloud: Cloud, zone: str, node: str, change: Change, what: str
) -> Callable[[], Outcome]:
    """What brings one node a step further; it remembers what it saw and asked for."""
    begun: list[OperationInfo] = []
    seen: list[tuple[List, frozenset[str]]] = []
    """The list that ours was made from, and the changes that were known then."""

    def step() -> Outcome:
        wait = f"{node}: {what}"
        others: list[List] = []
        operation = cloud.find_operation(begun[-1].name) if begun else None
        if operation is not None and not operation.done:
            return Outcome(Wait(wait), acted=False)
        if operation is not None and operation.error is not None:
            return Outcome(Failed(_refused(node, operation.error.message)), acted=False)
        changes = cloud.list_disk_changes(zone, node)
        if seen:  # a call of ours whose answer was lost counts as another's: what it wanted is wanted still
            ours = {each.name for each in begun}
            for name, disks in changes.items():
                if name in seen[-1][1] or name in ours:
                    continue
                if disks is None:
                    return Outcome(Wait(f"{node}: another change of its disks"), acted=False)
                others.append(disks)
        known = frozenset(name for name, disks in changes.items() if disks is not None)
        found = _node(cloud, zone, node)
        now = found.data_disks
        merged = now
        for theirs in others:
            merged = merge(seen[-1][0], merged, theirs)
        wanted = change(merged)
        if wanted == now:
            return Outcome(Done(), acted=False)
        record_decision(services, f"nodes/{node}", what, f"data disks of {node} in {zone}")
        services.emit(StepStarted(node, what, f"it has {counted(len(now), 'data disk')}"))
        seen.append((now, known))
        begun.clear()
        try:
            begun.append(cloud.set_data_disks(zone, node, wanted))
        except BusyError as error:
            seen.pop()
            return Outcome(Wait(error.message), acted=False)
        return Outcome(Wait(wait), acted=False)

    return step


def _refused(node: str, message: str) -> TpuctlError:
    rule = load_error_table().match(message)
    hint = (
        rule.hint if rule is not None else "the same command asks again; `tpuctl doctor` looks at the project"
    )
    return TpuctlError(f"{node}: {message}", hint=hint)


def _node(cloud: Cloud, zone: str, name: str) -> NodeInfo:
    found = cloud.find_node(zone, name)
    if found is None:
        raise NotFoundError(f"there is no node {name} in {zone}", hint="tpuctl ls")
    return found
