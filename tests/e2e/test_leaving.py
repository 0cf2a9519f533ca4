"""The gate before each deletion: hosts that write are asked first, and silent ones are no reason to lose
anything without a word, nor to pay for ever."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.hosts import wait_until
from tests.support.jobs import bring_up, limit, submit
from tests.support.services import SimServices
from tpuctl.engine.ports import RemoteCall
from tpuctl.errors import UnreachableError
from tpuctl.hosts.deadline import RemoteWrapper
from tpuctl.model import timeouts
from tpuctl.model.records import Answer, Desired, Retry, RunState, SliceRecord, SliceState
from tpuctl.model.refs import MountRef
from tpuctl.runs.take_down import take_down
from tpuctl.slices.desired import request_down
from tpuctl.state.repository import get_run, get_slice, save
from tpuctl.watch.reconciler import run_pass


class CountingRemote(RemoteWrapper):
    """How many hosts were connected to."""

    def __init__(self, remote: Any) -> None:
        super().__init__(remote)
        self.asked = 0

    def run(self, targets: Any, call: RemoteCall) -> Any:
        self.asked += len(targets)
        return super().run(targets, call)


def writing(services: SimServices) -> SliceRecord:
    """A slice that says it has a bucket mounted for writing; its hosts have none, which they say when asked."""
    bring_up(services, "big")
    stored = get_slice(services, "big")
    mounts = (MountRef("sim-bucket", "/mnt/b", "train"),)
    return save(
        services, stored, replace(stored.record, spec=replace(stored.record.spec, mounts=mounts))
    ).record


def actions(services: SimServices) -> list[str]:
    return [str(document.data["action"]) for document in services.store.list("journal/slices/big/")]


def nodes(services: SimServices) -> list[str]:
    return [node.name for node in services.cloud.list_nodes().items]


def test_hosts_that_answer_are_asked_and_the_slice_goes(services):
    writing(services)
    take_down(services, "big")
    assert nodes(services) == []
    assert "unsaved" not in actions(services)


def test_a_person_is_refused_where_hosts_are_silent_and_the_slice_stays_wanted(sim, services):
    record = writing(services)
    assert record.incarnation is not None
    sim.fail_hosts("big-1")
    began = services.clock.now()
    with pytest.raises(
        UnreachableError, match="may lose what was not yet on mount /mnt/b: worker 0-1"
    ) as caught:
        take_down(services, "big")
    assert services.clock.now() - began >= timeouts.VERDICT_MAX_S
    assert "tpuctl down big --force" in str(caught.value.hint)
    record = get_slice(services, "big").record
    assert (record.desired, record.state) == (Desired.UP, SliceState.INITIALIZING)
    assert nodes(services) == ["big-1"]
    take_down(services, "big", may_lose=True)
    assert nodes(services) == []
    assert "unsaved" in actions(services)


def test_a_create_that_got_no_answer_long_ago_is_no_deletion_that_is_under_way(sim, services):
    writing(services)
    stored = get_slice(services, "big")
    life = stored.record.incarnation
    assert life is not None
    silent = Retry("create", services.store.now(), services.store.now(), Answer.NONE, "timed out")
    save(services, stored, replace(stored.record, incarnation=replace(life, retry=silent)))
    sim.fail_hosts("big-1")
    with pytest.raises(UnreachableError, match="may lose what was not yet on mount /mnt/b"):
        take_down(services, "big")
    assert nodes(services) == ["big-1"]


def test_force_is_for_one_deletion_and_over_when_the_slice_is_wanted_again(sim, services):
    writing(services)
    request_down(services, "big", may_lose=True)
    bring_up(services, "big")
    life = get_slice(services, "big").record.incarnation
    assert life is not None
    assert (life.cloud_name, life.may_lose, life.leaves_since) == ("big-1", False, None)


def test_a_run_is_not_ended_for_a_slice_that_is_refused_to_go(sim, services):
    writing(services)
    run = submit(services, "big", "import time; time.sleep(600)")
    run_pass(services)
    sim.fail_hosts("big-1")
    with pytest.raises(UnreachableError):
        take_down(services, "big")
    assert not get_run(services, run.id).record.stop_asked
    assert get_slice(services, "big").record.desired is Desired.UP
    take_down(services, "big", may_lose=True)
    assert get_run(services, run.id).record.state is RunState.STOPPED
    assert nodes(services) == []


def test_passes_wait_for_silent_hosts_and_then_say_the_loss(sim, services):
    writing(services)
    limit(services, "big", ttl_s=1.0)
    run_pass(services)
    services.clock.skip(601.0)
    sim.fail_hosts("big-1")
    run_pass(services)
    services.clock.skip(60.0)
    waits = [line.why for line in run_pass(services) if line.subject == "big"]
    assert any("may not be saved" in why for why in waits)
    services.clock.skip(timeouts.UNREACHABLE_MAX_S - 120.0)
    run_pass(services)
    assert nodes(services) == ["big-1"]
    services.clock.skip(120.0)
    wait_until(lambda: run_pass(services) == [] or nodes(services) == [], 30.0)
    assert actions(services).count("unsaved") == 1


def test_a_slice_that_was_taken_away_has_no_hosts_to_wait_for(sim, services):
    writing(services)
    sim.preempt("big-1")
    began = services.clock.now()
    take_down(services, "big")
    assert services.clock.now() - began < timeouts.VERDICT_MAX_S
    assert nodes(services) == []
    assert "unsaved" not in actions(services)


def test_where_nothing_is_written_no_host_is_connected_to(services):
    bring_up(services, "big")
    counting = CountingRemote(services.remote)
    services.remote = counting
    take_down(services, "big")
    assert counting.asked == 0
    assert nodes(services) == []
