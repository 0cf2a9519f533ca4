"""Requests: a run that is to begin, under an id that nobody has, and one that is to stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, LeaseHeldError, StaleRecordError
from tpuctl.lib.names import check_run_id
from tpuctl.lib.retry import retry
from tpuctl.lib.text import counted
from tpuctl.model import timeouts
from tpuctl.model.records import RunRecord
from tpuctl.provenance.manifest import Row, SettingSection
from tpuctl.runs.chips import ONE, claim_chips, describe_chips
from tpuctl.state.journal import NEW_RUN, record_decision
from tpuctl.state.leases import Lease, is_unbroken, take_lease
from tpuctl.state.repository import (
    ATTEMPTS,
    RUNS,
    Versioned,
    active_runs,
    find_run,
    find_slice,
    get_run,
    save,
)

_REQUEST_TRIES = int(timeouts.LEASE_TTL_S / timeouts.POLL_FIRST_S)
"""So long another process may hold the lease of a slice."""


def request_run(
    services: Services,
    run: RunRecord,
    *,
    named: bool = False,
    configuration: Mapping[str, SettingSection] | None = None,
    checks: Sequence[Row] = (),
    why: str = "",
    start: Row | None = None,
) -> RunRecord:
    """Writes down a run. The same request while it is under way means that run, which is returned, unless
    somebody chose another id for this one (`named`). `configuration` and `checks` are for its manifest, or
    `start` is what that begins with; `why` is for its journal.

    Raises ConflictError while other runs have its chips. Under the slice's lease, because two requests at once
    are two documents, which nothing else would make collide.
    """

    def once() -> RunRecord:
        with take_lease(services, run.slice_name) as lease:
            return _request_run(services, lease, run, named, configuration or {}, checks, why, start)

    def ask() -> RunRecord:
        # Waits are counted, not hours: a laptop that was closed in between has not waited.
        return retry(
            once,
            (LeaseHeldError, StaleRecordError),
            tries=_REQUEST_TRIES,
            pause_s=timeouts.POLL_FIRST_S,
            growth=1.0,
            sleep=services.clock.sleep,
        )

    try:
        return ask()
    except ConflictError:
        if run.cluster is not None:
            raise
        others = [other for other in active_runs(services, run.slice_name) if other.id != run.id]
        from tpuctl.runs.reconcile import find_end  # which brings all steps of runs

        # All of them: each that is over on its hosts is noted so.
        ends = [find_end(services, other.id).state.final for other in _claim(services, run, others)[1]]
        if not any(ends):
            raise
    return ask()


def _claim(
    services: Services, run: RunRecord, others: Sequence[RunRecord]
) -> tuple[tuple[int, ...], list[RunRecord]]:
    """As `claim_chips`."""
    stored = find_slice(services, run.slice_name)
    return claim_chips(run.spec, stored.record.spec if stored is not None else None, others)


def find_same(others: Sequence[RunRecord], run_id: str, digest: str, *, named: bool) -> RunRecord | None:
    """The run of `others` that a request of this fingerprint means: the one of its id, or any unless it is
    `named`."""
    for other in others:
        if (other.id == run_id or not named) and other.fingerprint == digest and not other.stop_asked:
            return other
    return None


def _request_run(
    services: Services,
    lease: Lease,
    run: RunRecord,
    named: bool,
    configuration: Mapping[str, SettingSection],
    checks: Sequence[Row],
    why: str,
    start: Row | None,
) -> RunRecord:
    from tpuctl.provenance.parts import begin_manifest

    others = active_runs(services, run.slice_name)
    same = find_same(others, run.id, run.fingerprint, named=named)
    if same is not None:
        _hand_slice_over(services, run.id, same)
        return same
    rest = [other for other in others if other.id != run.id]
    # Queues of a cluster say who has its chips.
    chips, in_the_way = _claim(services, run, rest) if run.cluster is None else ((), [])
    if in_the_way:
        one = replace(run, spec=replace(run.spec, chips=ONE, chip=None))
        raise _taken(run, in_the_way, free=bool(in_the_way[0].chips) and not _claim(services, one, rest)[1])
    run = replace(run, chips=chips)
    check_new_id(services, run.id, again=False)
    services.logs.set_aside(run.id)
    said = describe_chips(chips)
    why = why or f"asked for by {services.user}"
    record_decision(services, run.key, NEW_RUN, f"{why}, on {said}" if said else why)
    stored = find_slice(services, run.slice_name)
    begin_manifest(services, run, stored.record if stored is not None else None, configuration, checks, start)
    saved = save(services, Versioned(run, 0), run)
    if not is_unbroken(services, lease):
        # This process slept: whoever took the lease meanwhile did not see this run, and may choose its chips.
        with suppress(StaleRecordError):
            RUNS.delete(services, run.id, saved.generation)
        raise LeaseHeldError(f"another tpuctl has begun to work on {run.slice_name} meanwhile")
    return saved.record


def _taken(run: RunRecord, in_the_way: Sequence[RunRecord], free: bool) -> ConflictError:
    """Says which runs have the chips, and what to type."""
    shared = any(each.chips for each in in_the_way)
    said = [
        f"run {each.id} is still {each.state}" + (f" on {describe_chips(each.chips)}" if shared else "")
        for each in in_the_way
    ]
    first = in_the_way[0].id
    beside = ", or `tpuctl run --chips 1` for a free chip" if free else ""
    return ConflictError(
        f"{', '.join(said)} {'of' if shared else 'on'} slice {run.slice_name}",
        hint=f"tpuctl attach {first}, or tpuctl stop {first}{beside}",
        details={"runs": [each.id for each in in_the_way]},
    )


def _hand_slice_over(services: Services, asked_for: str, run: RunRecord) -> None:
    """A slice that was wanted for run `asked_for` goes with `run`, which takes its place."""
    stored = find_slice(services, run.slice_name)
    if stored is not None and run.spec.owns_slice and stored.record.run_id == asked_for != run.id:
        save(services, stored, replace(stored.record, run_id=run.id))


def choose_run_id(services: Services, name: str | None) -> str:
    """The id of a new run: its `name`, or one that nobody has. Raises UsageError, and as `check_new_id`."""
    run_id = check_run_id(name or services.ids.new_id())
    check_new_id(services, run_id)
    return run_id


def check_new_id(services: Services, run_id: str, *, again: bool = True) -> None:
    """Raises ConflictError for the id of another run, also of one whose damaged record was removed: a new one
    would take the attempts of the old one for its own. `again`: one that is under way may be meant again."""
    stored = find_run(services, run_id)
    if stored is None:
        left = ATTEMPTS.names(services, f"{run_id}/")
        if left:
            raise ConflictError(
                f"{counted(len(left), 'attempt')} of an earlier run called {run_id}, whose record was removed, "
                "are in the store",
                hint="give the new run another --name, or none",
            )
        return
    if again and not stored.record.state.final:
        return
    final = stored.record.state.final
    shows = f"tpuctl logs {run_id} shows the old one" if final else f"tpuctl attach {run_id} follows this one"
    raise ConflictError(
        f"there is a run called {run_id} already; it is {stored.record.state}",
        hint=f"give the new one another --name, or none; {shows}",
    )


def request_stop(services: Services, run_id: str, *, grace_s: float | None = None) -> RunRecord:
    """Writes down that a run is to stop; the loop does it. Final runs are left as they are."""
    stored = get_run(services, run_id)
    run = stored.record
    if run.state.final or run.stop_asked:
        return run
    record_decision(services, run.key, "stop", f"asked for by {services.user}")
    policy = run.spec.policy if grace_s is None else replace(run.spec.policy, grace_s=grace_s)
    return save(services, stored, replace(run, stop_asked=True, spec=replace(run.spec, policy=policy))).record
