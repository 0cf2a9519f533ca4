"""What a slice asks of its hosts, whatever kind of thing that is: one row a kind, in the order of the work.

A kind is imported where a slice has one: most have none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.engine.reconcile import Outcome
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, DeniedError, NotFoundError, PendingError, QuotaError, UsageError
from tpuctl.hosts.deadline import HOST_TIME_S
from tpuctl.model.records import SliceRecord, SliceState
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.model.verdict import Blocked, Wait

if TYPE_CHECKING:
    from tpuctl.hosts.provision import Kind
    from tpuctl.things.of_slice import Asked, Revisitable, Specs, ThingChange, ThingOfSlice


def _disks() -> ThingOfSlice:
    from tpuctl.disks.thing import DISKS

    return DISKS


def _mounts() -> ThingOfSlice:
    from tpuctl.mounts.thing import MOUNTS

    return MOUNTS


def _environment() -> ThingOfSlice:
    from tpuctl.envs.thing import ENVIRONMENT

    return ENVIRONMENT


class ThingRow(Struct, frozen=True):
    """A kind of thing: its field of `SliceSpec`, its option, which is its key in fleet files, too, and its word
    in sentences. What is `fleeting` is gone after a reboot of hosts, of which the cloud says nothing."""

    field: str
    option: str
    word: str
    load: Callable[[], ThingOfSlice]
    empty: tuple[()] | None = ()
    fleeting: bool = True


THINGS = (
    ThingRow("disks", "disk", "disk", _disks),
    ThingRow("mounts", "mount", "mount", _mounts),
    ThingRow("env", "env", "environment", _environment, None, fleeting=False),
)
"""A disk before what is mounted on it, and both before an environment, which may lie there."""


def _had(*specs: SliceSpec, fleeting: bool = False) -> Iterator[ThingOfSlice]:
    for row in THINGS:
        if (row.fleeting or not fleeting) and any(getattr(each, row.field) for each in specs):
            yield row.load()


def resolve_things(services: Services, asked: Asked, specs: Specs) -> Specs:
    """The specifications with what is asked of hosts, beside what the slice has. Raises UsageError."""
    for row in THINGS:
        if getattr(asked.request, row.option):
            specs = row.load().resolve(services, asked, specs)
    return specs


def find_changes(known: SliceSpec, wanted: SliceSpec, without: Collection[str] = ()) -> tuple[ThingChange, ...]:
    """What of the things of a slice becomes another one when it is `wanted` so; what is not said stays, unless
    it is to be `without` that field."""
    found = [each.change(known, wanted) for each in _had(wanted)]
    return (
        *(each for each in found if each is not None),
        *(_removal(row) for row in THINGS if row.field in without and getattr(known, row.field)),
    )


def _removal(row: ThingRow) -> ThingChange:
    from tpuctl.things.of_slice import ThingChange

    told = f"{row.word} none is asked for"
    return ThingChange(row.field, row.option, row.empty, "none", f"no {row.word}", told, adds=False)


def apply_changes(record: SliceRecord, changes: Sequence[ThingChange]) -> SliceRecord:
    """The slice, asked to have its things so. While its hosts get them it is not ready."""
    waits = record.state is SliceState.READY and any(each.adds for each in changes)
    spec = replace(record.spec, **{each.field: each.value for each in changes})
    return replace(record, spec=spec, state=SliceState.INITIALIZING if waits else record.state)


def kinds_on_hosts(
    services: Services, record: SliceRecord, asked_by: str = "", *, fleeting: bool = False
) -> Sequence[Kind]:
    """What a slice requires of each host by itself, in the order of the work. `asked_by` names who asks, this
    life of the slice if left out: failures of others are not its own."""
    life = record.incarnation
    owner = asked_by or (life.cloud_name if life is not None else "")
    return [
        kind for each in _had(record.spec, fleeting=fleeting) for kind in each.kinds(services, record, owner)
    ]


def fleeting_on_hosts(services: Services, record: SliceRecord, asked_by: str = "") -> Sequence[Revisitable]:
    """The same, of what hosts may lose while they live."""
    return cast("Sequence[Revisitable]", kinds_on_hosts(services, record, asked_by, fleeting=True))


def has_fleeting(spec: SliceSpec) -> bool:
    """Whether hosts may lose something of what they are asked."""
    return any(getattr(spec, row.field) for row in THINGS if row.fleeting)


def attach_things(services: Services, record: SliceRecord) -> Outcome | None:
    """One step towards what the cloud has to do first; None where that is done."""
    for each in _had(record.spec):
        try:
            each.attach(services, record, services.clock.now() + HOST_TIME_S)
        except PendingError as error:
            return Outcome(Wait(error.message), acted=False)
        except (ConflictError, DeniedError, NotFoundError, QuotaError, UsageError) as error:
            return Outcome(Blocked(error.message, error.hint), acted=False)
    return None


def note_reached(services: Services, record: SliceRecord, rows: Sequence[Mapping[str, str]]) -> None:
    """Its hosts have said, in `rows`, what of it they have."""
    for each in _had(record.spec):
        each.reached(services, record, tuple(rows))


def lost_buckets(services: Services, record: SliceRecord | None) -> tuple[str, ...]:
    """The buckets of a slice that are gone."""
    things = _had(record.spec) if record is not None else ()
    return tuple(lost for each in things if record is not None for lost in each.lost(services, record))


def things_for_manifest(
    services: Services, record: SliceRecord | None, rows: Sequence[Mapping[str, str]]
) -> dict[str, list[dict[str, Any]]]:
    """What a run has of each kind, by its field: `rows` is what was seen on its hosts."""
    if record is None:
        return {}
    return {
        row.field: said
        for row in THINGS
        if row.fleeting
        and getattr(record.spec, row.field)
        and (said := row.load().manifest(services, record, tuple(rows)))
    }


def check_home(spec: SliceSpec, variables: Mapping[str, str]) -> None:
    """Raises UsageError for a run whose HF_HOME is on a mount of its slice."""
    if spec.mounts:
        from tpuctl.mounts.spec import check_variables

        check_variables(variables, spec.mounts)
