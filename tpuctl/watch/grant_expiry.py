"""Grant expiry: warnings before it, and the end of its slices if so said."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from tpuctl.engine.services import Services
from tpuctl.errors import StaleRecordError, UsageError
from tpuctl.model.records import Desired, SliceRecord
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.money.coverage import list_grants
from tpuctl.money.grants import AtEnd, Grant, days_left, due_warning, ended_on, same_pool
from tpuctl.runs.request import request_stop
from tpuctl.slices.desired import request_down
from tpuctl.state.journal import record_decision
from tpuctl.state.repository import Repository, Versioned, active_runs


class Notice(Struct, frozen=True):
    """That something was said, so that nobody says it again."""

    at: float


NOTICES = Repository(Notice, "notices")


class GrantNews(Struct, frozen=True):
    """Something that a pass did or found out about a grant or a slice under it."""

    subject: str
    text: str


def announce_grant_ends(services: Services, slices: Iterable[Versioned[SliceRecord]]) -> list[GrantNews]:
    """Warns once at each threshold, and asks for the end of slices that were to go with their grant."""
    grants = list_grants(services)
    now = services.store.now()
    news = [_warn(services, grant, now) for grant in grants]
    ending = [_guarded(services, stored.record, grants, now) for stored in slices] if grants else []
    return [item for item in [*news, *ending] if item is not None]


def _warn(services: Services, grant: Grant, now: float) -> GrantNews | None:
    threshold = due_warning(grant, now)
    if threshold is None:
        return None
    left = days_left(grant, now)
    text = f"ends on {grant.ends}, in {left} days" if left != 1 else f"ends on {grant.ends}, tomorrow"
    subject = f"{grant.tier} {grant.generation} in {grant.zone}"
    if not NOTICES.create(services, f"grants/{grant.name}/{grant.ends}/{threshold}", Notice(now)):
        return None
    record_decision(services, "fleet", "grant-ends", f"the grant for {subject} {text}")
    return GrantNews(subject, f"the grant {text}; nothing is created or restarted after that day")


def _guarded(services: Services, record: SliceRecord, grants: Iterable[Grant], now: float) -> GrantNews | None:
    """The failure of one slice does not keep the others on a grant that is over."""
    try:
        return _take_along(services, record, grants, now)
    except (StaleRecordError, UsageError):
        # Somebody is at work on it, and the next pass looks again; or no table has its type any more, which the
        # look at the slice itself tells.
        return None


def _take_along(
    services: Services, record: SliceRecord, grants: Iterable[Grant], now: float
) -> GrantNews | None:
    if record.desired is not Desired.UP or record.pay or record.by_hand:
        return None
    generation = load_accelerators().of(record.spec.accelerator_type, record.spec.topology).generation
    spec = record.spec
    matching = [
        grant
        for grant in grants
        if grant.zone == spec.zone and grant.generation == generation and same_pool(grant.tier, spec.tier)
    ]
    last_day = ended_on(matching, generation, spec.zone, spec.tier, now)
    if last_day is None or not any(grant.at_end is AtEnd.DOWN for grant in matching):
        return None
    runs = active_runs(services, record.name)
    if runs:
        # The slice follows in a later pass, when its runs have ended in order and their logs are here.
        going = [run.id for run in runs if not run.stop_asked]
        for run_id in going:
            request_stop(services, run_id)
        why = f"stopped: the grant under slice {record.name} ended on {last_day}"
        return GrantNews(", ".join(going), why) if going else None
    why = f"its grant ended on {last_day}"
    request_down(services, record.name, why=why)
    return GrantNews(record.name, f"taken down: {why}")
