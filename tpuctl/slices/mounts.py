"""The mounts of a slice: checked before anything is created, on its hosts before it is ready.

What works on mounts is imported where a slice has one: most have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tpuctl.engine.services import Services
from tpuctl.hosts.facts import Facts
from tpuctl.model.records import SliceRecord, SliceState
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.state.repository import find_slice, get_slice

if TYPE_CHECKING:
    from tpuctl.mounts.hosts import Mounted


def with_mounts(
    services: Services,
    said: Sequence[str],
    specs: tuple[SliceSpec, ...],
    name: str | None,
    program: str | None,
    fleet: str = "",
) -> tuple[SliceSpec, ...]:
    """The specifications with what `--mount` says, beside the mounts that slice `name` has. `program` is the
    gcsfuse of this machine that hosts are to get. With `fleet`, that file says it, and what only it asked for
    before is left out. Raises UsageError."""
    if not said:
        return specs
    from tpuctl.mounts.follow import resolve_mounts, with_program
    from tpuctl.mounts.spec import merge_mounts

    stored = find_slice(services, name) if name is not None else None
    live = stored is not None and stored.record.state is not SliceState.GONE
    known = stored.record.spec.mounts if stored is not None and live else ()
    zones = [each.zone for each in specs]
    paths, asked = resolve_mounts(services, said, known, specs[0], zones, replaces=bool(fleet))
    new = tuple(replace(each, fleet=fleet) for each in with_program(asked, program))
    kept = tuple(each for each in known if not fleet or each.fleet != fleet or each.path in paths)
    return tuple(replace(each, mounts=merge_mounts(kept, new)) for each in specs)


def unlisted_mounts(record: SliceRecord, spec: SliceSpec, fleet: str) -> tuple[str, ...]:
    """The paths of the mounts that fleet file `fleet` asked for and that `spec`, made of it, has no more."""
    paths = {each.path for each in spec.mounts}
    return tuple(each.path for each in record.spec.mounts if each.fleet == fleet and each.path not in paths)


def end_mount(services: Services, name: str, path: str) -> None:
    """Unmounts what slice `name` has at `path`. Raises PartialError where somebody has it open."""
    from tpuctl.mounts.use import end_mount as end

    end(services, get_slice(services, name).record, path)


def check_home(spec: SliceSpec, variables: Mapping[str, str]) -> None:
    """Raises UsageError for a run whose HF_HOME is on a mount of its slice."""
    if spec.mounts:
        from tpuctl.mounts.spec import check_variables

        check_variables(variables, spec.mounts)


def adds_mounts(record: SliceRecord, spec: SliceSpec) -> bool:
    """Whether `spec` names a mount that the slice has not been asked to have."""
    return any(each not in record.spec.mounts for each in spec.mounts)


def add_mounts(record: SliceRecord, spec: SliceSpec) -> SliceRecord:
    """The slice, asked to have the mounts of `spec`, too. While its hosts get them it is not ready."""
    from tpuctl.mounts.spec import merge_mounts

    state = SliceState.INITIALIZING if record.state is SliceState.READY else record.state
    mounts = merge_mounts(record.spec.mounts, spec.mounts)
    return replace(record, spec=replace(record.spec, mounts=mounts), state=state)


def store_gcsfuse(services: Services, spec: SliceSpec, program: str | None) -> None:
    """Brings the gcsfuse of this machine to where hosts get it."""
    if spec.mounts and program is not None:
        from tpuctl.mounts.follow import store_program

        store_program(services, spec.mounts, program)


def desired_mounts(services: Services, record: SliceRecord, asked_by: str = "") -> list[Mounted]:
    """What the slice asks of its hosts about mounts."""
    if not record.spec.mounts:
        return []
    from tpuctl.mounts.follow import kinds_of

    return kinds_of(services, record, asked_by)


def lost_buckets(services: Services, record: SliceRecord | None) -> tuple[str, ...]:
    """The buckets of a slice that are gone."""
    if record is None or not record.spec.mounts:
        return ()
    from tpuctl.mounts.follow import is_gone

    buckets = sorted({each.bucket for each in record.spec.mounts})
    return tuple(each for each in buckets if is_gone(services, each))


def first_sick(hosts: Sequence[tuple[int, Facts | None]], kinds: Sequence[Mounted]) -> str:
    """The first mount that is not well by what hosts say, in words; empty for none."""
    from tpuctl.mounts.hosts import WELL, health

    said = (
        f"worker {worker}: {kind.ref.path}: {health(facts, kind)}"
        for worker, facts in hosts
        for kind in kinds
        if facts is not None and health(facts, kind) != WELL
    )
    return next(said, "")


def mounts_for_manifest(record: SliceRecord | None) -> list[dict[str, Any]]:
    """What a run has of mounts: with version and options as they are."""
    if record is None or not record.spec.mounts:
        return []
    from tpuctl.mounts.follow import mount_rows

    return mount_rows(record.spec.mounts)
