"""The disks of a slice: checked before anything is created, attached and mounted before it is ready.

What works on disks is imported where a slice has one: most have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tpuctl.engine.reconcile import Outcome
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, DeniedError, NotFoundError, PendingError, QuotaError, UsageError
from tpuctl.hosts.deadline import HOST_TIME_S
from tpuctl.model.records import Desired, SliceRecord, SliceState
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.model.verdict import Blocked, Wait
from tpuctl.slices.context import ReconcileContext
from tpuctl.state.repository import find_slice

if TYPE_CHECKING:
    from tpuctl.disks.hosts import Mounted


def with_disks(
    services: Services, said: Sequence[str], specs: tuple[SliceSpec, ...], name: str = ""
) -> tuple[SliceSpec, ...]:
    """The specifications with what `--disk` says of slice `name`, beside the disks that they have. Raises
    UsageError."""
    if not said:
        return specs
    from tpuctl.disks.follow import check_mounts, merge_refs, resolve_refs

    refs = resolve_refs(services, said, specs[0], [each.zone for each in specs], name)
    stored = find_slice(services, name) if name else None
    live = stored is not None and stored.record.desired is Desired.UP
    known = stored.record.spec if stored is not None and live else specs[0]
    check_mounts(refs, known.mounts)
    disks = merge_refs(known.disks, refs)
    return tuple(replace(each, disks=disks) for each in specs)


def adds_disks(record: SliceRecord, spec: SliceSpec) -> bool:
    """Whether `spec` names a disk that the slice has not been asked to have."""
    return any(each not in record.spec.disks for each in spec.disks)


def add_disks(record: SliceRecord, spec: SliceSpec) -> SliceRecord:
    """The slice, asked to have the disks of `spec`, too. While its hosts get them it is not ready."""
    state = SliceState.INITIALIZING if record.state is SliceState.READY else record.state
    return replace(record, spec=replace(record.spec, disks=spec.disks), state=state)


def desired_disks(services: Services, record: SliceRecord, asked_by: str = "") -> list[Mounted]:
    """What the slice asks of its hosts about disks."""
    if not record.spec.disks:
        return []
    from tpuctl.disks.follow import kinds_of

    return kinds_of(services, record, asked_by)


def attach_disks(context: ReconcileContext) -> Outcome | None:
    """One step towards a node that has the disks of its slice; None where it has them."""
    services, record = context.services, context.record
    if not record.spec.disks:
        return None
    from tpuctl.disks.follow import attach_all

    try:
        attach_all(services, record, deadline=services.clock.now() + HOST_TIME_S)
    except PendingError as error:
        return Outcome(Wait(error.message), acted=False)
    except (ConflictError, DeniedError, NotFoundError, QuotaError, UsageError) as error:
        return Outcome(Blocked(error.message, error.hint), acted=False)
    return None


def note_disks(services: Services, record: SliceRecord, rows: Sequence[Mapping[str, str]]) -> None:
    """Its hosts have said, in `rows`, that its disks are mounted."""
    if record.spec.disks:
        from tpuctl.disks.follow import note_mounted
        from tpuctl.disks.restore import refs_in_zone

        note_mounted(services, refs_in_zone(services, record.spec.disks, record.spec.zone), rows)


def disks_for_manifest(
    services: Services, record: SliceRecord | None, hosts: Sequence[Mapping[str, str]] = ()
) -> list[dict[str, Any]]:
    """What a run has of disks: with the copy's generation, its snapshot, and what was seen on its `hosts`: how
    many have it, and the id of its file system."""
    if record is None or not record.spec.disks:
        return []
    from tpuctl.disks.follow import disk_rows
    from tpuctl.disks.restore import refs_in_zone

    return disk_rows(services, refs_in_zone(services, record.spec.disks, record.spec.zone), hosts)
