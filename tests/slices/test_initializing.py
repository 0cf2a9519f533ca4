"""The state between hosts that answer and a slice that is ready: they are brought to what is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.environments import make_pinned
from tests.support.jobs import SPEC, bring_up
from tests.support.memory.process import scripted
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.engine.reconcile import Outcome
from tpuctl.envs.pinned import PinnedEnvironment, environment_key
from tpuctl.errors import ConflictError, TpuctlError
from tpuctl.hosts.facts import FactsReply, Section
from tpuctl.hosts.provision import Operation, job_id
from tpuctl.model.records import SliceRecord, SliceState
from tpuctl.model.refs import EnvironmentRef
from tpuctl.model.verdict import Blocked, Done, Wait
from tpuctl.slices.context import ReconcileContext
from tpuctl.slices.desired import request_slice
from tpuctl.slices.initialize import initialize
from tpuctl.slices.observe import observe_slice
from tpuctl.slices.plan import plan_slice
from tpuctl.slices.probing import PartitionCheck
from tpuctl.slices.reconcile import advance_slice
from tpuctl.state.leases import take_lease
from tpuctl.state.repository import get_slice, save
from tpuctl.watch.reconciler import run_pass
from tpuctl.workers.exec import execute


class Ran:
    """Wants that a program ran well on this host since it was made."""

    name = "a program"
    sections = frozenset({Section.JOBS})

    def __init__(self, program: str) -> None:
        self.operation = Operation("run", f"running {program}", {"argv": [program]})

    def plan(self, facts: FactsReply) -> Sequence[Operation]:
        done = {job.attempt for job in facts.jobs or () if job.succeeded}
        return () if job_id([self.operation]) in done else [self.operation]

    def row(self, _facts: FactsReply) -> Mapping[str, str]:
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
    assert told[-1].hint.startswith("tpuctl exec --worker 0 big -- tail -n 50 .tpuctl/runs/provision-big/")
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


PINNED = make_pinned({"jax": ("0.6.2", "a" * 64)}, minor="3.10")
OTHER = make_pinned({"jax": ("0.6.1", "b" * 64)}, minor="3.10")


def stored(services: MemoryServices, pinned: PinnedEnvironment = PINNED) -> EnvironmentRef:
    """What `up --env test` puts into the store and the specification."""
    return EnvironmentRef("test", services.store.put_blob(pinned.content))


def installed(place: MemoryPlace) -> list[set[str]]:
    """The keys of the environments of each host."""
    marks = [Path(host.home).glob(".tpuctl/envs/*/tpuctl-env.json") for host in place.hosts.all()]
    return [{mark.parent.name for mark in each} for each in marks]


def test_a_slice_is_ready_with_its_environment_and_gets_it_again_after_a_preemption(place, services):
    record = bring_up(services, "big", env=stored(services))
    key = environment_key(PINNED, "3.10")
    assert (record.state, installed(place)) == (SliceState.READY, [{key}, {key}])
    place.world.preempt("big-1")
    seen = set()
    for _ in range(20):
        place.clock.advance(60.0)
        run_pass(services)
        record = get_slice(services, "big").record
        seen.add(record.state)
        if record.state is SliceState.READY and record.last_incarnation == 2:
            break
    assert (record.state, record.last_incarnation) == (SliceState.READY, 2)
    assert SliceState.INITIALIZING in seen
    assert installed(place) == [{key}, {key}]


@pytest.mark.parametrize("answer_s", [1.5, 3.0, 5.0])
def test_hosts_that_answer_slowly_get_their_environment(place, services, answer_s):
    place.hosts.answer_s = answer_s
    assert bring_up(services, "big", env=stored(services)).state is SliceState.READY
    assert installed(place) == [{environment_key(PINNED, "3.10")}] * 2


def test_another_environment_changes_in_place_and_the_same_changes_nothing(place, services):
    bring_up(services, "big", env=stored(services))
    before, brought = get_slice(services, "big"), []

    def ask(pinned: PinnedEnvironment | None) -> SliceRecord:
        env = None if pinned is None else stored(services, pinned)
        spec = replace(SPEC, env=env)
        return request_slice(
            services, "big", spec, pay=False, admit=lambda: None, bring=lambda: brought.append(pinned)
        )

    assert ask(PINNED) == ask(None) == before.record
    assert (get_slice(services, "big").generation, brought) == (before.generation, [])
    assert ask(OTHER).state is SliceState.INITIALIZING
    assert brought == [OTHER]
    for _ in range(4):
        run_pass(services)
        place.clock.advance(60.0)
    assert get_slice(services, "big").record.state is SliceState.READY
    keys = {environment_key(PINNED, "3.10"), environment_key(OTHER, "3.10")}
    assert installed(place) == [keys, keys]


def test_nobody_else_changes_what_the_hosts_of_a_slice_have(services):
    bring_up(services, "big", env=stored(services))
    services.user = "bob"
    spec = replace(SPEC, env=stored(services, OTHER))
    with pytest.raises(ConflictError, match="ada's"):
        request_slice(services, "big", spec, pay=False, admit=lambda: None)


def test_an_environment_that_no_python_of_the_hosts_can_have_blocks_with_what_to_type(services):
    pinned = make_pinned({"jax": ("0.9.0", "a" * 64)}, minor="3.12")
    with pytest.raises(TpuctlError, match=r"worker 0: environment test needs Python 3\.12") as refused:
        bring_up(services, "big", env=stored(services, pinned))
    assert refused.value.hint.startswith("tpuctl env lock test")
    assert get_slice(services, "big").record.state is SliceState.INITIALIZING
