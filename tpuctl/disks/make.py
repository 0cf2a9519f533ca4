"""Making and removing disks and snapshots: intent first, then the call, then waiting until it is so."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from tpuctl.disks.plan import STEPS, Step, claim_of, owner_labels, see
from tpuctl.engine.events import StepStarted
from tpuctl.engine.reconcile import Outcome, converge
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, InvalidRequestError, NotFoundError, TpuctlError, UsageError
from tpuctl.inventory.delete import delete_owned, find_owned
from tpuctl.inventory.ownership import Claim, check_ownership
from tpuctl.lib.names import label_value
from tpuctl.lib.text import sized
from tpuctl.model.cloud import STORE_LABEL, CloudResource, ResourceKind
from tpuctl.model.disks import ComputeOperation, DiskInfo, DiskRecord, DiskRequest, SnapshotInfo
from tpuctl.model.error_table import ERRORS
from tpuctl.model.shipped_files import load_error_table
from tpuctl.model.verdict import Done, Failed, Verdict, Wait
from tpuctl.state.journal import record_decision
from tpuctl.state.repository import DISKS, KEPT_RUNS

T = TypeVar("T")


find_record, list_records = DISKS.record, DISKS.list


def get_record(services: Services, name: str) -> DiskRecord:
    """Raises NotFoundError with the names there are."""
    found = find_record(services, name)
    if found is None:
        raise no_disk(services, name)
    return found


def no_disk(services: Services, name: str) -> NotFoundError:
    known = ", ".join(record.name for record in list_records(services)) or "none"
    return NotFoundError(f"no disk called {name} (known: {known})", hint="tpuctl disk ls")


def get_disk(services: Services, record: DiskRecord) -> DiskInfo:
    """Raises NotFoundError."""
    found = services.disks.find_disk(record.request.zone, record.name)
    if found is None:
        raise NotFoundError(f"disk {record.name} is not in {record.request.zone}", hint="tpuctl disk ls")
    return found


def save_record(services: Services, record: DiskRecord) -> DiskRecord:
    """Writes the record over whatever is there."""
    return DISKS.overwrite(services, record.name, record)


def kept_disks(services: Services) -> dict[str, str]:
    """Disks that are kept for a run → that run."""
    now = services.store.now()
    runs = KEPT_RUNS.list(services)
    return {disk: each.run for each in runs if each.until is None or each.until > now for disk in each.disks}


def labels_of(services: Services, record: DiskRecord) -> dict[str, str]:
    store_id = services.store.identity()
    return owner_labels(record.master, record.generation, store_id, label_value(record.owner))


def ask_for(services: Services, record: DiskRecord) -> DiskRecord:
    """Writes down that a disk is wanted. The same request again is the same disk; another one under its name
    raises ConflictError."""

    def ask(known: DiskRecord | None) -> DiskRecord:
        if known is None:
            return record
        if known.wanted and known.request == record.request and known.master == record.master:
            return known
        if known.wanted or services.disks.find_disk(known.request.zone, known.name) is not None:
            raise ConflictError(
                f"there is a disk {record.name} already ({known.request.size_gib} GiB, {known.request.type}, "
                f"{known.request.zone})",
                hint=f"tpuctl disk show {record.name}, or another name",
            )
        return record

    return DISKS.update(services, record.name, ask)


def perform(
    services: Services,
    subject: str,
    look: Callable[[], T],
    judge: Callable[[T], Verdict | None],
    call: Callable[[T], ComputeOperation | None] = lambda _: None,
    *,
    failed: Callable[[], object] = lambda: None,
    size_gib: int = 0,
    deadline: float | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> T:
    """Looks, calls where `judge` has nothing to say of what it sees (None), and looks until it says Done: what
    was seen last. Only what is there counts: an answer that is lost costs time. Raises what the operation
    failed with, after `failed`. Of what has `size_gib`, waits tell how far it is. `meanwhile` comes before each
    look."""
    begun: list[ComputeOperation] = []
    seen: list[T] = []

    def step() -> Outcome:
        meanwhile()
        found = services.disks.find_operation(begun[-1]) if begun else None
        if found is not None and found.error:
            failed()
            return Outcome(Failed(operation_error(found)), acted=False)
        seen[:] = [look()]
        verdict = judge(seen[0])
        if isinstance(verdict, Wait) and size_gib and found is not None and not found.done:
            verdict = replace(verdict, progress=f"{found.progress} % of {size_gib} GiB")
        if verdict is not None:
            return Outcome(verdict, acted=False)
        if begun:
            return Outcome(Wait(f"{subject}: what was asked for to be shown"), acted=False)
        operation = call(seen[0])
        begun.extend([] if operation is None else [operation])
        return Outcome(Wait(subject), acted=operation is not None)

    converge(services, subject, step, deadline=deadline)
    return seen[0]


def bring_about(
    services: Services,
    name: str,
    *,
    deadline: float | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> DiskInfo | None:
    """Works until the disk is as its record says: made and READY, or gone (None)."""
    record = get_record(services, name)
    zone, store_id = record.request.zone, services.store.identity()

    def judge(disk: DiskInfo | None) -> Verdict | None:
        status = disk.status if disk is not None else ""
        what = STEPS[record.wanted, see(record, disk, store_id)]
        if what in (Step.CREATE, Step.DELETE):
            return None
        if what is Step.TAKEN:
            hint = f"gcloud compute disks describe {name} --zone={zone}, or another name"
            return Failed(ConflictError(f"disk {name} in {zone} exists and is not ours", hint=hint))
        if what is Step.FAIL:
            return Failed(TpuctlError(f"disk {name} is {status}", hint=f"tpuctl disk rm {name}"))
        return Done() if what is Step.DONE else Wait(f"disk {name} is {status}")

    def call(disk: DiskInfo | None) -> ComputeOperation | None:
        return _create(services, record) if disk is None else _delete(services, record, disk)

    def failed() -> None:
        """The request of the next command is another one: this one has failed for good."""
        save_record(services, replace(get_record(services, name), created_at=services.store.now()))

    look = partial(services.disks.find_disk, zone, name)
    more: dict[str, Any] = {"deadline": deadline, "meanwhile": meanwhile}
    size_gib = record.request.size_gib if record.wanted else 0
    return perform(services, f"disk {name}", look, judge, call, failed=failed, size_gib=size_gib, **more)


def operation_error(operation: ComputeOperation) -> TpuctlError:
    """An operation of Compute Engine that failed, in its own words, with what the table of messages advises."""
    rule = load_error_table().match(f"{operation.code}: {operation.error}")
    made = TpuctlError if rule is None else ERRORS[rule.kind]
    hint = rule.hint if rule is not None else None
    return made(operation.error, hint=hint, details={"code": operation.code})


def _create(services: Services, record: DiskRecord) -> ComputeOperation:
    request = replace(record.request, labels=labels_of(services, record))
    why = f"{request.size_gib} GiB, {request.type}, {request.zone}"
    if request.source_disk or request.source_snapshot:
        why += f", from {request.source_disk or request.source_snapshot}"
    record_decision(services, record.key, "create", why)
    services.emit(StepStarted(f"disk {record.name}", "create", why))
    return services.disks.create_disk(request, f"{record.key}/{record.created_at}")


def _delete(services: Services, record: DiskRecord, disk: DiskInfo) -> ComputeOperation | None:
    """Raises UsageError for one that is used."""

    def decide(again: CloudResource) -> None:
        if again.used_by:
            why = f"disk {record.name} is used by {', '.join(again.used_by)}"
            raise UsageError(why, hint=f"tpuctl disk detach {record.name}")
        record_decision(services, record.key, "delete", f"not wanted any more ({record.request.zone})")
        services.emit(StepStarted(f"disk {record.name}", "delete", "not wanted any more"))

    claim = claim_of(record, services.store.identity())
    try:
        return delete_owned(services, disk.resource, claim, decide).compute
    except InvalidRequestError as error:
        raise UsageError(error.message, hint=f"tpuctl disk detach {record.name}") from error


def take_snapshot(
    services: Services,
    record: DiskRecord,
    name: str,
    generation: int,
    *,
    deadline: float | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> SnapshotInfo | None:
    """Asks for a snapshot of a disk where it is not there yet, until it has begun; what is there of it then.
    Raises ConflictError for one of that name that is not ours."""
    labels = owner_labels(record.master, generation, services.store.identity(), label_value(services.user))
    claim = Claim(labels, user=None)
    asked_at = services.store.now()

    def judge(found: SnapshotInfo | None) -> Verdict | None:
        if found is None:
            return None
        if check_ownership(found.resource, found.resource, claim) is not None:
            return Failed(ConflictError(f"snapshot {name} exists and is not this one", hint="another --name"))
        return Done() if found.status != "CREATING" else Wait(f"snapshot {name} is CREATING")

    def call(_: SnapshotInfo | None) -> ComputeOperation:
        why = f"of disk {record.name}"
        record_decision(services, record.key, f"snapshot {name}", why)
        services.emit(StepStarted(f"disk {record.name}", f"make snapshot {name}", why))
        zone, key = record.request.zone, f"snapshots/{name}/{asked_at}"
        return services.disks.create_snapshot(zone, record.name, name, labels, key)

    look = partial(services.disks.find_snapshot, name)
    return perform(services, f"snapshot {name}", look, judge, call, deadline=deadline, meanwhile=meanwhile)


def wait_snapshot(services: Services, name: str, *, deadline: float | None = None) -> None:
    """Until a snapshot can be restored. Raises NotFoundError where there is none."""

    def judge(found: SnapshotInfo | None) -> Verdict:
        if found is None:
            return Failed(NotFoundError(f"no snapshot called {name}", hint="tpuctl disk ls"))
        if found.status in ("READY", "FAILED"):
            error = TpuctlError(f"snapshot {name} is {found.status}")
            return Done() if found.status == "READY" else Failed(error)
        stored = f"{sized(found.stored_bytes)} stored of {found.disk_gib} GiB"
        return Wait(f"snapshot {name} is {found.status}", progress=stored)

    look = partial(services.disks.find_snapshot, name)
    perform(services, f"snapshot {name}", look, judge, deadline=deadline)


def remove_snapshot(services: Services, record: DiskRecord, *, deadline: float | None = None) -> None:
    """Only one that carries our labels goes."""
    claim = Claim({STORE_LABEL: services.store.identity()}, label_value(record.owner))

    def judge(found: CloudResource | None) -> Verdict | None:
        if found is None or check_ownership(found, found, claim) is not None:
            return Done()
        return Wait(f"snapshot {record.snapshot} is DELETING") if found.state == "DELETING" else None

    def call(found: CloudResource | None) -> ComputeOperation | None:
        return None if found is None else delete_owned(services, found, claim, decide).compute

    def decide(_: CloudResource) -> None:
        record_decision(services, record.key, f"delete snapshot {record.snapshot}", "its copy is gone")

    look = partial(find_owned, services, CloudResource(ResourceKind.SNAPSHOT, record.snapshot, "global"))
    perform(services, f"snapshot {record.snapshot}", look, judge, call, deadline=deadline)


def new_record(
    services: Services, request: DiskRequest, *, master: str, generation: int, label: str, blank: bool = False
) -> DiskRecord:
    """The intent of a disk of this user."""
    record = DiskRecord(request.name, request, services.user, services.store.now(), master, generation)
    return replace(record, blank=blank, fs_label=label)
