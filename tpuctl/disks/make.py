"""Making and removing disks and snapshots: intent first, then the call, then waiting until it is so."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from tpuctl.disks.plan import STEPS, Step, owner_labels, see
from tpuctl.engine.events import StepStarted
from tpuctl.engine.reconcile import Outcome, converge
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, InvalidRequestError, NotFoundError, TpuctlError, UsageError
from tpuctl.lib.codec import to_data
from tpuctl.lib.names import label_value
from tpuctl.model.disks import ComputeOperation, DiskInfo, DiskRecord, DiskRequest, SnapshotInfo
from tpuctl.model.verdict import Done, Failed, Wait
from tpuctl.state.journal import record_decision
from tpuctl.state.repository import decode


def find_record(services: Services, name: str) -> tuple[DiskRecord, int] | None:
    """The record of a disk and its generation."""
    document = services.store.get(f"disks/{name}")
    return None if document is None else (decode(DiskRecord, document), document.generation)


def list_records(services: Services) -> list[DiskRecord]:
    return [decode(DiskRecord, document) for document in services.store.list("disks/")]


def get_record(services: Services, name: str) -> DiskRecord:
    """Raises NotFoundError with the names there are."""
    found = find_record(services, name)
    if found is None:
        known = ", ".join(record.name for record in list_records(services)) or "none"
        raise NotFoundError(f"no disk called {name} (known: {known})", hint="tpuctl disk ls")
    return found[0]


def save_record(services: Services, record: DiskRecord) -> DiskRecord:
    """Writes a record over what the store has of it."""
    found = find_record(services, record.name)
    generation = found[1] if found is not None else 0
    services.store.put(record.key, to_data(record), if_generation=generation)
    return record


def labels_of(services: Services, record: DiskRecord) -> dict[str, str]:
    store_id = services.store.identity()
    return owner_labels(record.master, record.generation, store_id, label_value(record.owner))


def ask_for(services: Services, record: DiskRecord) -> DiskRecord:
    """Writes down that a disk is wanted. The same request again is the same disk; another one under its name
    raises ConflictError."""
    found = find_record(services, record.name)
    if found is None:
        return save_record(services, record)
    known = found[0]
    if known.wanted and known.request == record.request and known.master == record.master:
        return known
    if known.wanted or services.disks.find_disk(known.request.zone, known.name) is not None:
        raise ConflictError(
            f"there is a disk {record.name} already ({known.request.size_gib} GiB, {known.request.type}, "
            f"{known.request.zone})",
            hint=f"tpuctl disk show {record.name}, or another name",
        )
    return save_record(services, record)


def bring_about(services: Services, name: str, *, deadline: float | None = None) -> DiskInfo | None:
    """Works until the disk is as its record says: made and READY, or gone (None)."""
    operation: list[ComputeOperation] = []
    seen: list[DiskInfo | None] = [None]

    def step() -> Outcome:
        record = get_record(services, name)
        disk = services.disks.find_disk(record.request.zone, name)
        seen[0] = disk
        failed = _failure(services, operation)
        if failed is not None:
            return Outcome(Failed(failed), acted=False)
        state = see(record, disk, services.store.identity())
        what = STEPS[record.wanted, state]
        if what is Step.CREATE:
            if operation:  # asked for, and not shown yet
                return Outcome(Wait(f"disk {name} to appear"), acted=False)
            operation.append(_create(services, record))
            return Outcome(Wait("its creation"), acted=True)
        if what is Step.DELETE:
            operation.extend(_delete(services, record, disk))
            return Outcome(Wait("its deletion"), acted=False)
        if what is Step.TAKEN:
            hint = f"gcloud compute disks describe {name} --zone={record.request.zone}, or another name"
            error = ConflictError(f"disk {name} in {record.request.zone} exists and is not ours", hint=hint)
            return Outcome(Failed(error), acted=False)
        if what is Step.FAIL:
            return Outcome(Failed(TpuctlError(f"disk {name} is {disk.status if disk else ''}")), acted=False)
        if what is Step.WAIT:
            status = disk.status if disk is not None else "on its way"
            return Outcome(Wait(f"disk {name} is {status}"), acted=False)
        return Outcome(Done(), acted=False)

    converge(services, f"disk {name}", step, deadline=deadline)
    return seen[0]


def _failure(services: Services, operation: list[ComputeOperation]) -> TpuctlError | None:
    """Why the last call failed after it was taken, if it did."""
    if not operation:
        return None
    found = services.disks.find_operation(operation[-1])
    return None if found is None or not found.error else operation_error(found)


def operation_error(operation: ComputeOperation) -> TpuctlError:
    """An operation of Compute Engine that failed, in its own words."""
    hint = None
    if operation.code == "RESOURCE_OPERATION_RATE_EXCEEDED":
        hint = "a source can be copied six times an hour: wait ten minutes and type it again"
    elif operation.code == "QUOTA_EXCEEDED":
        hint = "tpuctl quota; remove disks (tpuctl disk gc) or ask for more"
    return TpuctlError(operation.error, hint=hint, details={"code": operation.code})


def _create(services: Services, record: DiskRecord) -> ComputeOperation:
    request = replace(record.request, labels=labels_of(services, record))
    why = f"{request.size_gib} GiB, {request.type}, {request.zone}"
    if request.source_disk or request.source_snapshot:
        why += f", from {request.source_disk or request.source_snapshot}"
    record_decision(services, record.key, "create", why)
    services.emit(StepStarted(f"disk {record.name}", "create", why))
    return services.disks.create_disk(request, f"{record.key}/{record.created_at}")


def _delete(services: Services, record: DiskRecord, first: DiskInfo | None) -> list[ComputeOperation]:
    """Deletes what two reads agree on and proves ours. Raises UsageError for one that is used."""
    again = services.disks.find_disk(record.request.zone, record.name)
    if first is None or again is None or again.uid != first.uid:
        return []
    if again.users:
        raise UsageError(
            f"disk {record.name} is used by {', '.join(again.users)}",
            hint=f"tpuctl disk detach {record.name}",
        )
    record_decision(services, record.key, "delete", f"not wanted any more ({record.request.zone})")
    services.emit(StepStarted(f"disk {record.name}", "delete", "not wanted any more"))
    try:
        found = services.disks.delete_disk(record.request.zone, record.name)
    except InvalidRequestError as error:
        raise UsageError(error.message, hint=f"tpuctl disk detach {record.name}") from error
    return [] if found is None else [found]


def take_snapshot(services: Services, record: DiskRecord, name: str, generation: int) -> SnapshotInfo | None:
    """Asks for a snapshot of a disk where it is not there yet; what is there of it now. Raises ConflictError
    for one of that name that is not ours."""
    found = services.disks.find_snapshot(name)
    labels = owner_labels(record.master, generation, services.store.identity(), label_value(services.user))
    if found is not None:
        if any(found.labels.get(key) != value for key, value in labels.items()):
            raise ConflictError(f"snapshot {name} exists and is not this one", hint="another --name")
        return found
    why = f"of disk {record.name}"
    record_decision(services, record.key, f"snapshot {name}", why)
    services.emit(StepStarted(f"disk {record.name}", f"make snapshot {name}", why))
    key = f"snapshots/{name}/{record.created_at}"
    zone = record.request.zone
    operation = services.disks.create_snapshot(zone, record.name, name, labels, key)
    ended = wait_for(services, operation, lambda: _shows(services, name))
    if ended is not None and ended.error:
        raise operation_error(ended)
    return services.disks.find_snapshot(name)


def _shows(services: Services, name: str) -> bool:
    found = services.disks.find_snapshot(name)
    return found is not None and found.status in ("UPLOADING", "READY")


def wait_for(
    services: Services, operation: ComputeOperation, enough: Callable[[], bool] = lambda: False
) -> ComputeOperation | None:
    """Waits until an operation is done, or `enough()` says that no more is needed."""
    ended: list[ComputeOperation | None] = [None]

    def step() -> Outcome:
        ended[0] = services.disks.find_operation(operation)
        over = ended[0] is None or ended[0].done
        if over or enough():
            return Outcome(Done(), acted=False)
        return Outcome(Wait("an operation of Compute Engine"), acted=False)

    converge(services, "disks", step)
    return ended[0]


def new_record(
    services: Services, request: DiskRequest, *, master: str, generation: int, label: str, **more: object
) -> DiskRecord:
    """The intent of a disk of this user."""
    values = {"blank": generation == 0, "fs_label": label, **more}
    return DiskRecord(
        request.name,
        request,
        services.user,
        services.store.now(),
        master,
        generation,
        **values,  # type: ignore[arg-type]
    )
