"""The state between hosts that answer and a slice that is ready: they are brought to what is asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest
from msgspec.structs import replace

from tests.support.jobs import bring_up
from tests.support.memory.process import scripted
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.engine.reconcile import Outcome
from tpuctl.hosts.facts import Facts, Section
from tpuctl.hosts.provision import Operation, job_id
from tpuctl.model.records import SliceRecord, SliceState
from tpuctl.model.verdict import Blocked, Done, Wait
from tpuctl.slices.context import ReconcileContext
from tpuctl.slices.initialize import initialize
from tpuctl.slices.observe import observe_slice
from tpuctl.slices.plan import plan_slice
from tpuctl.slices.probing import PartitionCheck
from tpuctl.slices.reconcile import advance_slice
from tpuctl.state.leases import take_lease
from tpuctl.state.repository import get_slice, save
from tpuctl.watch.reconciler import run_pass
from tpuctl.workers.exec import execute


@pytest.fixture
def place() -> Iterator[MemoryPlace]:
    made = MemoryPlace(cut_cable=True)
    yield made
    made.close()


@pytest.fixture
def services(place: MemoryPlace) -> MemoryServices:
    return place.machine()


class Ran:
    """Wants that a program ran well on this host since it was made."""

    name = "a program"
    sections = frozenset({Section.JOBS})

    def __init__(self, program: str) -> None:
        self.operation = Operation("run", f"running {program}", {"argv": [program]})

    def plan(self, facts: Facts) -> Sequence[Operation]:
        done = {job.attempt for job in facts.jobs or () if job.succeeded}
        return () if job_id([self.operation]) in done else [self.operation]

    def row(self, _facts: Facts) -> Mapping[str, str]:
        return {}


def initializing(services: MemoryServices) -> SliceRecord:
    """The slice `big` of two hosts, as it is once they answered and something is asked of them."""
    bring_up(services, "big")
    stored = get_slice(services, "big")
    save(services, stored, replace(stored.record, state=SliceState.INITIALIZING))
    return get_slice(services, "big").record


def step(services: MemoryServices, *kinds: Ran) -> Outcome:
    """The effect of one pass, for what is asked here."""
    observation = observe_slice(services, "big")
    plan = plan_slice(observation.record, observation.observed, services.store.now())
    with take_lease(services, "big") as context:
        return initialize(
            ReconcileContext(services, observation, plan, context, PartitionCheck(services)), kinds
        )


def commands(place: MemoryPlace) -> int:
    return sum(len(host.commands_seen) for host in place.hosts.all())


def test_where_nothing_is_asked_hosts_are_ready_without_another_call(place, services):
    initializing(services)
    before = commands(place)
    outcome, _ = advance_slice(services, "big")
    assert (outcome.acted, isinstance(outcome.verdict, Done)) == (True, True)
    assert get_slice(services, "big").record.state is SliceState.READY
    assert commands(place) == before


def test_a_slice_is_ready_once_every_host_says_that_it_is_as_asked(place, services):
    place.hosts.programs["mend"] = scripted(60.0)
    initializing(services)
    first = step(services, Ran("mend"))
    assert isinstance(first.verdict, Wait)
    assert first.verdict.why == "2 workers: running mend"
    place.clock.advance(30.0)
    assert "running mend (0 of 1 done)" in str(step(services, Ran("mend")).verdict)
    assert get_slice(services, "big").record.state is SliceState.INITIALIZING
    place.clock.advance(31.0)
    assert isinstance(step(services, Ran("mend")).verdict, Done)
    assert get_slice(services, "big").record.state is SliceState.READY


def test_a_failure_is_tried_again_and_told_to_a_person_after_the_third_time(place, services):
    place.hosts.programs["fail"] = scripted(1.0, exit_status=3)
    initializing(services)
    told = []
    for _ in range(30):
        told.append(step(services, Ran("fail")).verdict)
        place.clock.advance(10.0)
    kinds = [type(verdict) for verdict in told]
    assert kinds[0] is Wait
    assert kinds[-1] is Blocked
    assert kinds == sorted(kinds, key=[Wait, Blocked].index)
    assert told[-1].hint.startswith(
        "tpuctl exec --worker 0 big -- tail -n 50 .tpuctl/runs/provision-big-slice/"
    )
    assert get_slice(services, "big").record.state is SliceState.INITIALIZING


def test_hosts_that_fall_silent_are_judged_as_those_that_boot(place, services):
    initializing(services)
    place.hosts.all()[1].vanish()
    step(services, Ran("true"))
    record = get_slice(services, "big").record
    assert record.state is SliceState.BOOTING
    assert record.incarnation is not None
    assert record.incarnation.doubt is not None
    assert record.incarnation.doubt.why.startswith("worker 1: ")


def test_commands_may_look_at_hosts_that_are_not_as_asked_yet(place, services):
    record = initializing(services)
    assert [result.exit_status for result in execute(services, record, ["true"])] == [0, 0]


def test_a_preemption_while_initializing_is_a_loss_like_any_other(place, services):
    initializing(services)
    place.world.preempt("big-1")
    for _ in range(10):
        place.clock.advance(60.0)
        run_pass(services)
    record = get_slice(services, "big").record
    assert (record.state, record.last_incarnation) == (SliceState.READY, 2)
