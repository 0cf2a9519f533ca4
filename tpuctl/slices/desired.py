"""Writes down the desired state of slices; nothing is created or deleted here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from tpuctl.engine.events import Note
from tpuctl.engine.services import Services, list_queued
from tpuctl.errors import ConflictError, StaleRecordError, UsageError
from tpuctl.lib.names import label_value, parse_cloud_name
from tpuctl.lib.parallel import read_all
from tpuctl.lib.retry import retry
from tpuctl.model.cloud import USER_LABEL, Api, Listing
from tpuctl.model.records import WITH_HOSTS, Desired, Incarnation, LifetimeLimits, SliceRecord, SliceState
from tpuctl.model.slice_spec import SliceSpec, option_of
from tpuctl.slices.capacity_notes import read_notes, zone_backoffs
from tpuctl.slices.lifetime import extend_lifetime
from tpuctl.slices.plan import hosts_end
from tpuctl.slices.race import end_race, is_out, is_unsent
from tpuctl.slices.things import apply_changes, find_changes
from tpuctl.slices.zones import choose_zone
from tpuctl.state.journal import record_decision
from tpuctl.state.repository import Versioned, find_run, find_slice, get_slice, save

_REQUEST_TRIES = 3
"""So often a request is read anew when somebody else writes the same slice down at the same moment."""
_DOWN_TRIES = 5
"""A pass may be writing the same record at that moment; it writes a few times and is done."""
UNLIMITED = LifetimeLimits()
_OF_THE_TYPE = frozenset({"hosts", "chips", "machine_type"})
"""They follow from the accelerator type, which is named instead."""


def request_slice(
    services: Services,
    name: str,
    spec: SliceSpec,
    *,
    pay: bool,
    run_id: str | None = None,
    zones: tuple[str, ...] = (),
    race_specs: tuple[SliceSpec, ...] = (),
    fleet: str = "",
    sweep: str = "",
    limits: LifetimeLimits = UNLIMITED,
    admit: Callable[[], None],
    bring: Callable[[], None] = lambda: None,
    without: Collection[str] = (),
) -> SliceRecord:
    """Writes down that slice `name` is wanted, with its first intent. Nothing is created yet.

    With several `zones` the slice may be in any of them, tried in order; `spec.zone` is then only the first.
    `race_specs` are the places of a race, where those differ in more.
    `limits` count from now and are part of the intent, so that nothing is ever created without them. `admit` is
    called before a new intent and raises when the create would cost money nobody agreed to. The same request
    again changes nothing else than what is asked of the hosts: `bring` is called first and brings that to where
    they get it; what is not said stays, but for the fields that it is to be `without`. Raises ConflictError
    when the name stands for another spec, or for a slice of somebody else of which more is asked. When another
    process asks at the same moment, its request is looked at.
    """
    wanted = SliceRecord(
        name=name,
        spec=spec,
        owner=services.user,
        desired=Desired.UP,
        state=SliceState.REQUESTED,
        last_incarnation=0,
        created_at=0.0,
        pay=pay,
        run_id=run_id,
        zones=zones if len(zones) > 1 else (),
        race_specs=race_specs,
        fleet=fleet,
        sweep=sweep,
    )
    asked = partial(_request_slice, services, wanted, limits, admit, bring, without)
    return retry(asked, (StaleRecordError,), tries=_REQUEST_TRIES)


def _request_slice(
    services: Services,
    wanted: SliceRecord,
    limits: LifetimeLimits,
    admit: Callable[[], None],
    bring: Callable[[], None],
    without: Collection[str],
) -> SliceRecord:
    """`wanted` is the record as it is to be, before its first incarnation."""
    from tpuctl.slices.enrollment import enroll_machine

    stored = find_slice(services, wanted.name)
    if stored is None:
        admit()
        enroll_machine(services)
        return _first_intent(services, wanted, limits)
    record = stored.record
    if record.state is SliceState.GONE or record.desired is Desired.DOWN:
        admit()
        enroll_machine(services)
        return _begin_again(services, stored, wanted, limits)
    check_same(record, wanted.requested_specs)
    if is_out(record):
        admit()
        return _begin_again(services, stored, wanted, limits)
    enroll_machine(services)
    return _keep(services, stored, wanted, limits, bring, without)


def check_same(record: SliceRecord, specs: Sequence[SliceSpec]) -> None:
    """Raises ConflictError when a slice differs from what is requested under its name."""
    differs = record.differs_from(specs)
    if differs:
        options = [option_of(name) for name in differs if name not in _OF_THE_TYPE] or list(differs)
        raise ConflictError(
            f"slice {record.name} exists as {record.spec.accelerator_type} in {record.spec.zone}"
            f" ({record.spec.tier}), not as asked: {', '.join(options)} would be another",
            hint=f"ask for it as before (`tpuctl status {record.name}`), or give the new slice another name; "
            f"`tpuctl down {record.name}` deletes the old one",
            details={"differs": list(differs)},
        )


def is_wanted(record: SliceRecord) -> bool:
    """Whether asking for it again makes no new intent: nothing more is to be permitted or paid."""
    over = record.state is SliceState.GONE or is_out(record)
    return record.desired is Desired.UP and not over


def _keep(
    services: Services,
    stored: Versioned[SliceRecord],
    wanted: SliceRecord,
    limits: LifetimeLimits,
    bring: Callable[[], None],
    without: Collection[str],
) -> SliceRecord:
    """A slice that exists: only its limits, its payer and what its hosts have may change."""
    record = stored.record
    changes = find_changes(record.spec, wanted.spec, without)
    if changes and record.owner != services.user:
        raise ConflictError(
            f"slice {record.name} is {record.owner}'s, who alone says what its hosts have", hint="ask them"
        )
    if changes:
        bring()
    for each in changes:
        record_decision(services, record.key, each.field, f"{each.names} asked for by {services.user}")
    record = apply_changes(record, changes)
    if limits != UNLIMITED:
        check_limitable(services, record)
        before = record
        record = replace(record, lifetime=extend_lifetime(record.lifetime, limits, services.store.now()))
        said = hosts_end(before, record)
        if said:
            services.emit(Note(record.name, said))
    if wanted.run_id is not None and _orphaned(services, record):
        record = replace(record, run_id=wanted.run_id)
    if wanted.pay and not record.pay and record.owner == services.user:
        record_decision(services, record.key, "pay", f"{services.user} pays for what no grant covers")
        record = replace(record, pay=True)
    return record if record == stored.record else save(services, stored, record).record


def check_limitable(services: Services, record: SliceRecord) -> None:
    """Raises ConflictError for a slice of another user, and for one that was created by hand."""
    name = record.name
    if record.by_hand:
        raise ConflictError(f"{name} was made by hand: nothing but `down` ends it", hint=f"tpuctl down {name}")
    if record.owner != services.user:
        raise ConflictError(
            f"slice {name} is {record.owner}'s, who alone says when it goes",
            hint=f"tpuctl up {name} without limits, or ask them",
        )


def _orphaned(services: Services, record: SliceRecord) -> bool:
    """Whether the slice was made for a run that was never written down (a crash in between) or is over."""
    if record.run_id is None:
        return False
    run = find_run(services, record.run_id)
    return run is None or run.record.state.final


def _choose_zone(services: Services, wanted: SliceRecord) -> tuple[SliceSpec, Mapping[str, float]]:
    """The spec with the zone to begin in, and which zones are left alone for now."""
    if not wanted.zones or wanted.race_specs:
        return wanted.spec, {}
    backoffs = zone_backoffs(services, wanted.spec, wanted.zones)
    notes = read_notes(services, wanted.spec, wanted.zones)
    choice = choose_zone(wanted.zones, backoffs, notes, services.store.now())
    record_decision(services, wanted.key, "zone", f"{choice.zone}: {choice.why}")
    return replace(wanted.spec, zone=choice.zone), backoffs


def _check_unrecorded(services: Services, name: str, api: Api) -> None:
    """Raises ConflictError when the cloud has a later life of this slice than its first: its record was lost,
    and names would be used twice. What cannot be read hinders nothing."""
    looks: dict[str, Callable[[], Listing[Any]]] = {
        "nodes": services.tpus(api).list_nodes,
        "queued resources": partial(list_queued, services, api),
    }
    for reading in read_all(looks).values():
        for found in reading.value.items if reading.value is not None else ():
            ours = found.labels.get(USER_LABEL) == label_value(services.user)
            base, later = parse_cloud_name(found.name) or ("", 0)
            if ours and base == name and later > 1:
                raise ConflictError(
                    f"{found.name} in {found.zone} is {found.state}: slice {name} lives on without its record",
                    hint=f"`tpuctl adopt {found.name}` takes it over, `tpuctl reap` deletes it",
                )


def _first_intent(services: Services, wanted: SliceRecord, limits: LifetimeLimits) -> SliceRecord:
    now, name = services.store.now(), wanted.name
    spec, backoffs = _choose_zone(services, wanted)
    _check_unrecorded(services, name, spec.api)
    record = replace(
        wanted,
        spec=spec,
        last_incarnation=1,
        created_at=now,
        incarnation=Incarnation(number=1, cloud_name=f"{name}-1", requested_at=now),
        zone_not_before=backoffs,
        lifetime=extend_lifetime(None, limits, services.store.now()),
    )
    record_decision(services, record.key, "up", f"{spec.accelerator_type} asked for by {services.user}")
    return save(services, Versioned(record, 0), record).record


def _begin_again(
    services: Services, stored: Versioned[SliceRecord], wanted: SliceRecord, limits: LifetimeLimits
) -> SliceRecord:
    """`up` after the slice was gone, removed or refused: what is left is deleted, then a new incarnation
    begins."""
    old = stored.record
    _check_successor(services, old)
    leaves = old.desired is Desired.DOWN and old.state is not SliceState.GONE
    if leaves and old.differs_from(wanted.requested_specs):
        raise ConflictError(
            f"slice {old.name} is still being deleted", hint=f"tpuctl down {old.name}, then up again"
        )
    record_decision(services, old.key, "up", f"{wanted.spec.accelerator_type} asked for by {services.user}")
    spec, backoffs = _choose_zone(services, wanted)
    if old.state is not SliceState.GONE and _place(spec) != _place(old.spec):
        # What is left lies in the old zone: it is cleaned there, and the next incarnation chooses again.
        there = [each for each in wanted.requested_specs if each.zone == old.spec.zone]
        same = [each for each in there if each.accelerator_type == old.spec.accelerator_type]
        spec = (same or [replace(spec, zone=old.spec.zone)])[0]
    record = replace(
        wanted,
        spec=spec,
        state=SliceState.LOST,
        last_incarnation=old.last_incarnation,
        created_at=old.created_at,
        incarnation=_ended_life(old, spec),
        rivals=end_race(old, f"{old.name} was asked for again", services.store.now()).rivals,
        zone_not_before=backoffs,
        lifetime=extend_lifetime(None, limits, services.store.now()),
    )
    return save(services, stored, record).record


def _ended_life(old: SliceRecord, spec: SliceSpec) -> Incarnation | None:
    """The last life as the next one finds it. The other API knows nothing of its operation."""
    life = old.incarnation
    if life is None:
        return None
    same = spec.api is old.spec.api
    return replace(life, leaves_since=None, may_lose=False, operation=life.operation if same else None)


def _place(spec: SliceSpec) -> tuple[str, str]:
    return spec.accelerator_type, spec.zone


def _check_successor(services: Services, old: SliceRecord) -> None:
    """What is left of a slice carries its owner's label, so nobody else may begin a new incarnation."""
    if old.state is SliceState.GONE or old.owner == services.user:
        return
    raise ConflictError(
        f"slice {old.name} is {old.owner}'s and not yet gone ({old.state}); you are {services.user}",
        hint=f"ask them, or tpuctl down {old.name} --all-users, then up again",
    )


def withdraw_if_unsent(services: Services, name: str, why: str) -> bool:
    """Takes back a request of which nothing was sent to the cloud yet; False where something may have been.

    A create is written down before it is called, in the same record: whoever is about to call it, here or on
    another machine, either wrote first, and the request stays, or writes in vain, and nothing is created.
    """
    stored = get_slice(services, name)
    record = stored.record
    if not never_sent(record):
        return False
    try:
        save(services, stored, replace(record, desired=Desired.DOWN, state=SliceState.GONE, rivals=()))
    except StaleRecordError:
        return False
    record_decision(services, record.key, "withdrawn", why)
    return True


def never_sent(record: SliceRecord) -> bool:
    """Whether nothing of the current incarnation can exist in any place."""
    return all(is_unsent(place) for place in record.places)


def check_owner(services: Services, records: Iterable[SliceRecord], *, all_users: bool) -> None:
    """Raises UsageError if one of `records` is somebody else's and not all users' slices are meant."""
    others = [record for record in records if record.owner != services.user]
    if others and not all_users:
        said = ", ".join(f"{record.name} ({record.owner}'s)" for record in others)
        names = " ".join(record.name for record in others)
        raise UsageError(
            f"not yours: {said}; you are {services.user}",
            hint=f"ask them, or tpuctl down {names} --all-users",
            details={"owners": {record.name: record.owner for record in others}},
        )


def request_down(
    services: Services,
    name: str,
    *,
    why: str = "",
    all_users: bool = False,
    run_first: bool = False,
    may_lose: bool = False,
) -> SliceRecord:
    """Writes down that slice `name` is to go, and why, unless a person asked for it; with `all_users` whoever's
    label its TPUs carry. `run_first`: where it has hosts it keeps them until this is called without, for its
    run ends on them; what takes them away meanwhile ends it, too: nothing is asked for in their place.
    `may_lose`: a person said that it goes although its hosts cannot bring what they wrote to its disks.

    A record that another process changes at the same moment is read again: what it says does not matter here.
    """

    def once() -> SliceRecord:
        stored = get_slice(services, name)
        record = stored.record
        any_user = record.any_user or all_users
        keeps = run_first and record.state in WITH_HOSTS
        state = record.state if keeps or record.state is SliceState.GONE else SliceState.DELETING
        life = record.incarnation
        if life is not None and may_lose:
            life = replace(life, may_lose=True)
        wanted = replace(record, desired=Desired.DOWN, state=state, any_user=any_user, incarnation=life)
        if record.state is SliceState.GONE or wanted == record:
            return record
        if record.desired is not Desired.DOWN or any_user != record.any_user or life != record.incarnation:
            said = " with --all-users" * all_users + " with --force" * may_lose
            record_decision(services, record.key, "down", why or f"asked for by {services.user}{said}")
        return save(services, stored, wanted).record

    return retry(once, (StaleRecordError,), tries=_DOWN_TRIES)


def goes_after_run(record: SliceRecord) -> bool:
    """Whether it is to go and has its hosts until its run has ended."""
    return record.desired is Desired.DOWN and record.state not in {SliceState.DELETING, SliceState.GONE}
