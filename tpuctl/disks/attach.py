"""Attaching disks to nodes and detaching them: the whole list is read, changed, written and read again.

The API replaces the list and has no precondition, so what another tool did in between would be lost. What two
looks agree on is kept; when the list after our change is not what we wrote, it is read and changed again.
"""

from __future__ import annotations

from collections.abc import Callable

from tpuctl.engine.events import StepStarted
from tpuctl.engine.reconcile import Outcome, converge
from tpuctl.engine.services import Services
from tpuctl.errors import BusyError, NotFoundError, TpuctlError
from tpuctl.model.cloud import NodeInfo, OperationInfo
from tpuctl.model.disks import DataDisk
from tpuctl.model.verdict import Done, Failed, Wait
from tpuctl.state.journal import record_decision

Change = Callable[[tuple[DataDisk, ...]], tuple[DataDisk, ...]]


def attach(services: Services, zone: str, node: str, disk: DataDisk, *, deadline: float | None = None) -> None:
    """Until the node has `disk`, beside all that it has already."""

    def add(now: tuple[DataDisk, ...]) -> tuple[DataDisk, ...]:
        return now if disk in now else (*now, disk)

    change_disks(services, zone, node, add, f"attach {disk.name} ({disk.mode.short})", deadline=deadline)


def detach(services: Services, zone: str, node: str, name: str, *, deadline: float | None = None) -> None:
    """Until the node does not have the disk called `name`; all others stay."""

    def remove(now: tuple[DataDisk, ...]) -> tuple[DataDisk, ...]:
        return tuple(each for each in now if each.name != name)

    change_disks(services, zone, node, remove, f"detach {name}", deadline=deadline)


def change_disks(
    services: Services, zone: str, node: str, change: Change, what: str, *, deadline: float | None = None
) -> None:
    """Brings the data disks of a node to where `change` has nothing left to do."""
    begun: list[OperationInfo] = []

    def step() -> Outcome:
        found = _node(services, zone, node)
        if begun:
            operation = services.cloud.find_operation(begun[-1].name)
            if operation is not None and not operation.done:
                return Outcome(Wait(f"{node}: {what}"), acted=False)
            if operation is not None and operation.error is not None:
                return Outcome(Failed(TpuctlError(f"{node}: {operation.error.message}")), acted=False)
            begun.clear()
            found = _node(services, zone, node)
        wanted = change(found.data_disks)
        if wanted == found.data_disks:
            return Outcome(Done(), acted=False)
        record_decision(services, f"nodes/{node}", what, f"data disks of {node} in {zone}")
        services.emit(StepStarted(node, what, f"it has {len(found.data_disks)} data disks"))
        try:
            begun.append(services.cloud.set_data_disks(zone, node, wanted))
        except BusyError as error:
            return Outcome(Wait(error.message), acted=False)
        return Outcome(Wait(f"{node}: {what}"), acted=False)

    converge(services, node, step, deadline=deadline)


def _node(services: Services, zone: str, name: str) -> NodeInfo:
    found = services.cloud.find_node(zone, name)
    if found is None:
        raise NotFoundError(f"there is no node {name} in {zone}", hint="tpuctl ls")
    return found
