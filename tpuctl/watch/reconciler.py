"""One stateless pass over everything desired."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from tpuctl.engine.reconcile import Outcome
from tpuctl.engine.services import Services
from tpuctl.errors import TpuctlError
from tpuctl.hosts.deadline import HOST_TIME_S
from tpuctl.inventory.listing import TPUS_OF, apis_in_use
from tpuctl.lib.text import counted
from tpuctl.model import timeouts
from tpuctl.model.cloud import Api
from tpuctl.model.records import WITH_HOSTS, Desired, RunRecord, SliceRecord, SliceState
from tpuctl.runs.active import is_stop_confirmed, never_began
from tpuctl.slices.desired import goes_after_run, request_down
from tpuctl.slices.enrollment import in_turn, keep_enrolled, lacks_keys, read_machines, send_keys
from tpuctl.slices.observe import CloudInventory, list_inventory
from tpuctl.slices.orphans import Obsolete, collect_obsolete, find_obsolete, forget_orphans
from tpuctl.slices.probing import PartitionCheck
from tpuctl.slices.reconcile import advance_slice
from tpuctl.slices.revisit import is_revisited, revisit
from tpuctl.slices.ssh_entries import follow_slices
from tpuctl.slices.states import Effect
from tpuctl.state.repository import RUNS, SLICES, Repository, Versioned, get_run, get_slice
from tpuctl.watch.fair_share import Demand, share_hosts
from tpuctl.watch.grant_expiry import announce_grant_ends
from tpuctl.watch.heartbeat import FLEET, Heartbeat, PassLine, PassResult
from tpuctl.watch.lifetime import apply_lifetime, read_activity
from tpuctl.watch.listed import ListedSlice, plan_listed
from tpuctl.watch.pass_lines import advance_sweeps, guarded, guarded_lines, line_of, look_at_clusters, that_say
from tpuctl.watch.pause import paused_why

T = TypeVar("T")
STEPS_PER_PASS = 20
"""A pass goes on with one subject while steps succeed at once, but never for ever."""

LATER = "its hosts are connected to in another pass"
JUST_UP = "its node is there now; its hosts are asked in another pass"
_CLEANING = {SliceState.LOST, SliceState.DELETING, SliceState.REFUSED}
"""Their dead requests eat quota until they are deleted, so they come first."""


def run_pass(services: Services, previous: Heartbeat | None = None) -> list[PassLine]:
    """Looks at every slice and run that is not at rest and does what is ready to be done. `previous` is the
    last pass of this machine.

    Reads the whole project with two list calls; only what these show to be out of order is looked at by itself.
    One subject's trouble does not keep the others from theirs.
    """
    paused = paused_why(services)
    if paused:
        return [PassLine(FLEET, PassResult.PAUSED, paused, acted=False)]
    sweeps = advance_sweeps(services)
    slices, unread_slices = _readable(services, SLICES)
    follow_slices(services, [stored.record for stored in slices])
    stored_runs, unread_runs = _readable(services, RUNS)
    unfinished = [stored.record for stored in stored_runs if not stored.record.state.final]
    runs = [run for run in unfinished if run.cluster is None]
    if previous is not None:
        _remember(services, previous, runs)
    unread = [
        *sweeps,
        *unread_slices,
        *unread_runs,
        *_confirm_stops(services, [stored.record for stored in stored_runs]),
        *look_at_clusters(services, unfinished),
    ]
    now = services.store.now()
    if not runs and not any(_of_interest(stored.record, now) for stored in slices):
        return unread
    unread += guarded_lines("keys", partial(_enroll, services))
    try:
        records = [stored.record for stored in slices]
        zones = {zone for record in records for zone in _zones(record)}
        inventory = list_inventory(services, zones, apis_in_use(records))
    except TpuctlError as error:
        return [*unread, PassLine(FLEET, PassResult.FAILED, error.message, acted=False)]
    if inventory.unread:
        unread.append(PassLine(FLEET, PassResult.FAILED, inventory.unread, acted=False))
    if inventory.refused:
        # No trouble of the fleet, which has nothing there as far as anybody knows.
        why = f"not read: {inventory.refused}"
        unread.append(PassLine(TPUS_OF[Api.TPU], PassResult.WAITING, why, acted=False))
    return [*unread, *_Pass(services, slices, runs, inventory).work()]


def _enroll(services: Services) -> list[PassLine]:
    keep_enrolled(services)
    return []


def _remember(services: Services, previous: Heartbeat, runs: Iterable[RunRecord]) -> None:
    """The last pass saw the slices of runs that were in no trouble then."""
    troubled = {trouble.subject for trouble in previous.troubles}
    for run in runs:
        attempt = run.attempt
        if attempt is None or attempt.suspect_since is not None or attempt.created_at >= previous.at:
            continue
        if not troubled & {FLEET, run.id, run.slice_name}:
            services.sightings.saw(run.slice_name, attempt.incarnation, previous.at)


def _confirm_stops(services: Services, runs: Collection[RunRecord]) -> list[PassLine]:
    """Ends processes that a stop did not reach, where workers answer again, and reports what is still open."""
    lines = []
    for run in runs:
        if is_stop_confirmed(run):
            continue
        from tpuctl.runs.stops import confirm_stop_once, stop_error

        error = stop_error(services, confirm_stop_once(services, run))
        if error is not None:
            lines.append(PassLine(run.id, PassResult.WAITING, error.message, acted=False))
    return lines


def _of_interest(record: SliceRecord, now: float) -> bool:
    """Whether the cloud may show something of a slice: also of one that is gone, if the effect of its last
    create may come late, or some life of it is left. Nobody else would find that."""
    if record.state is not SliceState.GONE or record.orphans:
        return True
    called_at = (record.incarnation and record.incarnation.create_called_at) or 0.0
    return now < max(called_at, record.last_asked_at) + timeouts.LATE_EFFECT_S


def _zones(record: SliceRecord) -> set[str]:
    """Where the cloud may show something of a slice."""
    return {*(place.spec.zone for place in record.places), *(each.zone for each in record.orphans)}


def _readable(services: Services, records: Repository[T]) -> tuple[Sequence[Versioned[T]], Sequence[PassLine]]:
    """The records, and a line for each that cannot be read: a damaged one, or one of a newer tpuctl, must not
    leave the others unwatched."""
    found, damaged = records.load(services)
    lines = [PassLine(name, PassResult.FAILED, each.message, acted=False) for name, each in damaged.items()]
    return [*found.values()], lines


class _Pass:
    """One pass: the inventory from its start, and which hosts it has reached so far."""

    def __init__(
        self,
        services: Services,
        slices: Sequence[Versioned[SliceRecord]],
        runs: list[RunRecord],
        inventory: CloudInventory,
    ) -> None:
        self._services = services
        self._slices = slices
        self._runs = runs
        self._inventory = inventory
        self._partition = PartitionCheck(services)
        self._admitted: Collection[str] = ()

    def work(self) -> list[PassLine]:
        with_run = {run.slice_name for run in self._runs}
        now = self._services.store.now()
        planned = {
            stored.record.name: plan_listed(self._services, stored, self._inventory, now)
            for stored in self._slices
        }
        obsolete = self._obsolete()
        self._admitted = share_hosts(self._waiting(planned, obsolete, with_run), now)
        lines = guarded_lines("collecting", lambda: self._collected(obsolete))
        lines += guarded_lines("grants", self._grant_news)
        for stored in sorted(self._slices, key=lambda each: each.record.state not in _CLEANING):
            one = planned[stored.record.name]
            if stored.record.name not in with_run and not one.at_rest(now):
                lines.append(self._unused(one.record) or self._slice_line(one))
        lines += guarded_lines("keys", lambda: self._keys(planned, now))
        lines += self._revisits(with_run)
        lines += self._lifetimes(with_run)
        lines += [self._run_line(run, planned.get(run.slice_name)) for run in self._runs]
        return lines

    def _waiting(
        self,
        planned: Mapping[str, ListedSlice],
        obsolete: Iterable[Obsolete],
        with_run: Collection[str],
    ) -> list[Demand]:
        """All whose hosts are to be connected to: runs, slices in doubt, those that idleness ends, and those
        that go with what their hosts write, earlier lives among them."""
        found = [Demand(each.key, each.hosts) for each in obsolete if each.hosts]
        for one in planned.values():
            record = one.record
            if record.name in with_run:
                continue
            if one.probes or one.asks_to_leave or _ends_when_idle(record) or is_revisited(record):
                found.append(Demand(record.key, record.spec.hosts, in_need=one.probes))
        for run in self._runs:
            under = planned.get(run.slice_name)
            found.append(Demand(run.key, self._hosts_of(run), in_need=under is not None and under.probes))
        return found

    def _keys(self, planned: Mapping[str, ListedSlice], now: float) -> list[PassLine]:
        """Lets machines that came later into the hosts that live already, this one among them."""
        machines = read_machines(self._services)

        def send(name: str) -> PassLine:
            said = send_keys(self._services, name, machines)
            return PassLine(name, PassResult.DONE, said, acted=bool(said))

        seen = {name: (one.record, one.observation.info.node) for name, one in planned.items()}
        lacking = {name: one for name, one in seen.items() if lacks_keys(*one, machines, now)}
        turn = in_turn(lacking, machines, now)
        lines = [guarded(name, partial(send, name)) for name in turn]
        if lacking.keys() - set(turn):
            why = f"{counted(len(lacking) - len(turn), 'slice')} more: later passes send them"
            lines.append(PassLine("keys", PassResult.LATER, why, acted=False))
        return that_say(lines)

    def _obsolete(self) -> list[Obsolete]:
        nodes, queued = self._inventory.nodes, self._inventory.queued
        return find_obsolete(nodes, queued, self._slices, self._services.store.identity())

    def _collected(self, obsolete: Collection[Obsolete]) -> list[PassLine]:
        forget_orphans(self._services, self._slices, self._inventory)
        later = [each for each in obsolete if each.hosts and each.key not in self._admitted]
        lines = [PassLine(each.found.name, PassResult.LATER, LATER, acted=False) for each in later]
        for each in collect_obsolete(self._services, [each for each in obsolete if each not in later]):
            stays = PassResult.WAITING if each.waits else PassResult.BLOCKED
            result = PassResult.DONE if each.deleted else stays
            lines.append(PassLine(each.name, result, each.why, acted=each.deleted))
        return lines

    def _grant_news(self) -> list[PassLine]:
        news = announce_grant_ends(self._services, self._slices)
        return [PassLine(item.subject, PassResult.DONE, item.text, acted=True) for item in news]

    def _lifetimes(self, with_run: Collection[str]) -> list[PassLine]:
        """Warns and ends slices whose time is over or that nobody uses."""
        lines = []
        for listed in (each.record for each in self._slices if each.record.lifetime is not None):
            asks = _ends_when_idle(listed) and listed.name not in with_run
            may_ask = not asks or listed.key in self._admitted

            def work(name: str = listed.name, may_ask: bool = may_ask) -> PassLine:
                record = get_slice(self._services, name).record
                said = apply_lifetime(self._services, record, ask=read_activity if may_ask else None)
                return PassLine(name, PassResult.DONE, said, acted=bool(said))

            lines.append(guarded(listed.name, work))
        return that_say(lines)

    def _revisits(self, with_run: Collection[str]) -> list[PassLine]:
        """Looks at the disks and mounts of ready slices. With a look at a run its hosts say how its mounts
        are."""
        lines = []
        for listed in (each.record for each in self._slices if is_revisited(each.record)):
            if listed.name in with_run or listed.key not in self._admitted:
                continue

            def work(name: str = listed.name) -> PassLine:
                found = revisit(self._services, name)
                if not found.mends:
                    result = PassResult.FAILED if found.why else PassResult.DONE
                    return PassLine(name, result, found.why, acted=False)
                return self._steps(name, may_connect=True)

            lines.append(guarded(listed.name, work))
        return that_say(lines)

    def _hosts_of(self, run: RunRecord) -> int:
        if run.attempt is not None:
            return len(run.attempt.workers)
        return next((each.record.spec.hosts for each in self._slices if each.record.name == run.slice_name), 0)

    def _unused(self, record: SliceRecord) -> PassLine | None:
        """What was made for a run that never began costs for nothing: a person says how it goes on."""
        why = never_began(self._services, record)
        return PassLine(record.name, PassResult.BLOCKED, why, acted=False) if why else None

    def _slice_line(self, one: ListedSlice) -> PassLine:
        record = one.record
        name = record.name
        may_connect = record.key in self._admitted
        if one.asks_to_leave and not may_connect:
            return PassLine(name, PassResult.LATER, LATER, acted=False)
        if goes_after_run(record):
            return guarded(name, lambda: self._last_steps(name, may_connect=may_connect))
        if not one.moves:
            return line_of(name, Outcome(one.plan.verdict, acted=False), acted=False)
        if one.plan.effect is Effect.PROBE_HOSTS and not may_connect:
            return PassLine(name, PassResult.LATER, LATER, acted=False)
        return guarded(name, lambda: self._steps(name, may_connect=may_connect))

    def _last_steps(self, name: str, *, may_connect: bool) -> PassLine:
        """Of a slice whose run, for which it waited, has ended: who asked for both is not there any more."""
        request_down(self._services, name)
        return self._steps(name, may_connect=may_connect)

    def _steps(self, name: str, *, may_connect: bool) -> PassLine:
        def step() -> Outcome:
            return advance_slice(self._services, name, self._partition, may_connect=may_connect)[0]

        return self._repeat(name, name, step, may_connect=may_connect)

    def _run_line(self, run: RunRecord, one: ListedSlice | None) -> PassLine:
        # Not at the top: a pass over slices without runs needs none of it, and it is a tenth of its time.
        from tpuctl.runs.follow import step_run_and_slice
        from tpuctl.runs.reconcile import silence_is_proved

        may_connect = run.key in self._admitted
        moved = one is not None and one.moves and one.plan.effect is not Effect.PROBE_HOSTS
        cut_off = self._partition.cut_off and may_connect and not moved
        if cut_off and not silence_is_proved(self._services, run):
            why = "this machine reaches no host; another watchdog may"
            return PassLine(run.id, PassResult.BLIND, why, acted=False)
        has_hosts = one is None or one.record.state in WITH_HOSTS
        if not may_connect and not moved and has_hosts:
            return PassLine(run.id, PassResult.LATER, LATER, acted=False)

        seen = None if one is None else one.observation

        def work() -> PassLine:
            def step() -> Outcome:
                return step_run_and_slice(
                    self._services, run.id, self._partition, seen, may_connect=may_connect
                )

            line = self._repeat(run.id, run.slice_name, step, may_connect=may_connect)
            return _keep_logs(self._services, run.id, line) if may_connect else line

        return guarded(run.id, work)

    def _repeat(
        self, subject: str, slice_name: str, step: Callable[[], Outcome], *, may_connect: bool
    ) -> PassLine:
        acted = False
        for _ in range(STEPS_PER_PASS):
            outcome = step()
            acted = acted or outcome.acted or outcome.changed
            if not outcome.acted:
                break
            if not may_connect and get_slice(self._services, slice_name).record.state in WITH_HOSTS:
                return PassLine(subject, PassResult.LATER, JUST_UP, acted)
        return line_of(subject, outcome, acted)


def _ends_when_idle(record: SliceRecord) -> bool:
    """Whether hosts are asked how they are used."""
    idle = record.lifetime is not None and record.lifetime.idle_s is not None
    return idle and record.state is SliceState.READY and record.desired is Desired.UP


def _keep_logs(services: Services, run_id: str, line: PassLine) -> PassLine:
    """What a running attempt wrote since the last pass, within the time of a step: so logs outlive a preemption
    up to the last pass."""
    from tpuctl.runs.attempt import find_hosts
    from tpuctl.runs.log_archive import archive_logs, restore_logs

    run = get_run(services, run_id).record
    if run.state.final or line.result is PassResult.BLIND:
        return line
    until = services.clock.now() + HOST_TIME_S
    hosts = find_hosts(services, run, until)
    if hosts is not None and run.attempt is not None and run.attempt.started_at is not None:
        if not services.logs.has(run_id, run.attempt.number):
            restore_logs(services, run_id, run.attempt.number)
        while hosts.fetch_logs(emit=False).more and services.clock.now() < until:
            continue
        archive_logs(services, run, run.attempt)
    return line
