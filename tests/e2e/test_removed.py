"""What a person removed stays removed, eats quota visibly, and obeys `up` and `down`."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.jobs import SPEC, bring_up, submit
from tests.support.services import SimServices
from tpuctl.engine.events import Note
from tpuctl.errors import StaleRecordError, TpuctlError
from tpuctl.model.cloud import NodeInfo, QueuedInfo, QueuedState
from tpuctl.model.records import SliceState
from tpuctl.model.verdict import Wait
from tpuctl.runs.follow import follow_run
from tpuctl.runs.take_down import take_down
from tpuctl.slices.desired import request_slice, withdraw_if_unsent
from tpuctl.slices.reconcile import advance_slice, renew_if_removed, wait_for_slice
from tpuctl.slices.states import SliceEvent
from tpuctl.state.repository import get_run, get_slice, save
from tpuctl.views.decisions import decisions
from tpuctl.views.slices import fleet_rows, slice_status
from tpuctl.watch.reconciler import run_pass


@pytest.fixture
def removed(sim, services) -> str:
    """A slice whose node somebody deleted behind tpuctl's back: its request is SUSPENDED, by a user."""
    bring_up(services, "big")
    services.cloud.delete_node(SPEC.zone, "big-1")
    assert sim.world.settle()
    for _ in range(3):
        run_pass(services)
    assert get_slice(services, "big").record.state is SliceState.REMOVED
    return "big"


def requests(services: SimServices) -> dict[str, str]:
    return {item.name: str(item.state) for item in services.cloud.list_queued().items}


def test_passes_leave_it_alone_and_it_is_told_what_it_eats(services, removed):
    assert [line for line in run_pass(services) if line.acted] == []
    assert requests(services) == {"big-1": "SUSPENDED"}
    (row,) = fleet_rows(services)[0]
    assert (row["state"], row["cloud"]) == ("removed", "SUSPENDED")
    assert "holds quota" in row["remark"]
    assert slice_status(services, "big")["event"] == "ended-by-person"
    last = decisions(services, "big")[-1]
    assert (last["action"], last["reason"]) == ("removed", "queued resource big-1 is SUSPENDED by a user")


def test_down_clears_the_request_away(sim, services, removed):
    take_down(services, "big", deadline=services.clock.now() + 3600)
    assert requests(services) == {}
    assert get_slice(services, "big").record.state is SliceState.GONE


def test_a_run_on_it_waits_for_a_person(services, removed):
    run = submit(services, "big", "print(1)")
    with pytest.raises(TpuctlError, match="removed"):
        follow_run(services, run.id, deadline=services.clock.now() + 3600)
    assert not get_run(services, run.id).record.state.final


def test_what_is_there_all_the_same_is_watched_again(sim, services):
    """A verdict that was wrong, or a person who brought it back: nothing that lives may cost unseen."""
    bring_up(services, "big")
    stored = get_slice(services, "big")
    save(services, stored, replace(stored.record, state=SliceState.REMOVED))
    before = len(sim.journal.entries())
    run_pass(services)
    assert get_slice(services, "big").record.state is SliceState.READY
    assert len(sim.journal.entries()) == before


class LyingOnce:
    """A cloud that shows what lives as suspended by a user, in the first look at it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._lies = {"node", "queued"}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def find_node(self, zone: str, name: str) -> NodeInfo | None:
        lies = "node" in self._lies
        self._lies.discard("node")
        return None if lies else self._inner.find_node(zone, name)

    def find_queued(self, zone: str, name: str) -> QueuedInfo:
        found = self._inner.find_queued(zone, name)
        lies = "queued" in self._lies
        self._lies.discard("queued")
        return replace(found, state=QueuedState.SUSPENDED, initiator="USER") if lies else found


def test_one_read_removes_nothing(services):
    bring_up(services, "big")
    services.cloud = LyingOnce(services.cloud)
    outcome, look = advance_slice(services, "big")
    assert look.observed.event is SliceEvent.ENDED_BY_PERSON
    assert isinstance(outcome.verdict, Wait)
    assert outcome.verdict.why.startswith("two reads that agree")
    assert get_slice(services, "big").record.state is SliceState.READY


def ask(services: SimServices) -> None:
    request_slice(services, "big", SPEC, pay=False, admit=lambda: None)


@pytest.mark.parametrize("whole", [False, True], ids=["node", "request-and-node"])
def test_up_of_a_slice_that_is_gone_behind_its_record_goes_on_by_itself(sim, services, whole):
    bring_up(services, "big")
    if whole:
        services.cloud.delete_queued(SPEC.zone, "big-1")
    else:
        services.cloud.delete_node(SPEC.zone, "big-1")
    assert sim.world.settle()
    ask(services)
    assert get_slice(services, "big").record.state is SliceState.READY
    renew_if_removed(services, "big", lambda: ask(services), patient=True)
    record = wait_for_slice(services, "big", deadline=services.clock.now() + 3600)
    assert (record.state, record.last_incarnation) == (SliceState.READY, 2)
    assert "removed" in [entry["action"] for entry in decisions(services, "big")]
    assert [event.text for event in services.events if isinstance(event, Note)] == [
        "big-1 is gone, somebody removed it: asking anew"
    ]


def test_one_read_does_not_make_up_ask_anew(services):
    bring_up(services, "big")
    services.cloud = LyingOnce(services.cloud)
    renew_if_removed(services, "big", lambda: ask(services), patient=True)
    record = get_slice(services, "big").record
    assert (record.state, record.last_incarnation) == (SliceState.READY, 1)


def test_what_is_removed_while_up_waits_stays_removed(sim, services):
    bring_up(services, "big")
    renew_if_removed(services, "big", lambda: ask(services), patient=True)
    services.cloud.delete_node(SPEC.zone, "big-1")
    assert sim.world.settle()
    with pytest.raises(TpuctlError, match="somebody removed it"):
        wait_for_slice(services, "big", deadline=services.clock.now() + 3600)


def test_a_request_is_withdrawn_only_before_its_create(services):
    ask(services)
    held = get_slice(services, "big")
    assert withdraw_if_unsent(services, "big", "no login")
    assert get_slice(services, "big").record.state is SliceState.GONE
    with pytest.raises(StaleRecordError):
        save(services, held, held.record)  # what a pass writes before its create
    ask(services)
    wait_for_slice(services, "big", deadline=services.clock.now() + 3600)
    assert not withdraw_if_unsent(services, "big", "no login")
