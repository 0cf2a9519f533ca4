"""A permission that is missing for a while ends no slice for good; a person hears of it until it is settled."""

from __future__ import annotations

import pytest

from tests.support.jobs import SPEC, bring_up, submit
from tests.support.memory.process import scripted
from tests.support.memory.services import MemoryPlace
from tests.support.surviving import changes_of
from tpuctl.config.hooks import Hook, parse_hooks
from tpuctl.errors import DeniedError
from tpuctl.model.records import SliceState
from tpuctl.notify.deliver import deliver_events
from tpuctl.notify.events import HookEvent
from tpuctl.runs.take_down import take_down
from tpuctl.slices.desired import request_slice
from tpuctl.slices.reconcile import wait_for_slice
from tpuctl.state.repository import get_slice
from tpuctl.views.decisions import decisions
from tpuctl.watch.heartbeat import TROUBLED, Heartbeat, PassLine, Watcher, next_heartbeat
from tpuctl.watch.reconciler import run_pass

NO_PERMISSION = {"preset": "no-permission"}


def passes(place: MemoryPlace, count: int) -> list[list[PassLine]]:
    found = []
    for _ in range(count):
        place.clock.advance(60.0)
        found.append([line for line in run_pass(place.machine()) if line.subject == "big"])
    return found


def actions(place: MemoryPlace) -> list[str]:
    return [str(entry["action"]) for entry in decisions(place.machine(), "big")]


def test_a_slice_that_was_denied_recovers_when_the_permission_is_back(place):
    bring_up(place.machine(), "big")
    place.world.faults.add(NO_PERMISSION)
    place.world.preempt("big-1")
    denied = passes(place, 30)[5:]
    assert {line.result in TROUBLED for lines in denied for line in lines} == {True}
    assert all(denied)
    assert actions(place).count("denied") == 1
    assert actions(place).count("still-denied") < 15
    place.world.faults.clear()
    passes(place, 20)
    assert get_slice(place.machine(), "big").record.state is SliceState.READY


def test_the_command_that_asks_again_needs_no_wait(place):
    services = place.machine()
    place.world.faults.add(NO_PERMISSION)
    request_slice(services, "big", SPEC, pay=True, admit=lambda: None)
    with pytest.raises(DeniedError):
        wait_for_slice(services, "big")
    record = get_slice(services, "big").record
    assert (record.state, record.pay) == (SliceState.REFUSED, True)
    place.world.faults.clear()
    assert bring_up(services, "big").state is SliceState.READY


def test_a_slice_that_was_denied_and_taken_down_is_not_asked_for_again(place):
    services = place.machine()
    place.world.faults.add(NO_PERMISSION)
    request_slice(services, "big", SPEC, pay=False, admit=lambda: None)
    with pytest.raises(DeniedError):
        wait_for_slice(services, "big")
    take_down(services, "big")
    place.world.faults.clear()
    passes(place, 20)
    assert place.world.census() == []


@pytest.mark.parametrize("settled", ["up", "down"])
def test_what_somebody_removed_needs_a_person_until_that_is_settled(place, settled):
    services = place.machine()
    bring_up(services, "big", queued=False)
    services.cloud.delete_node(SPEC.zone, "big-1")
    seen = passes(place, 12)[4:]
    assert get_slice(services, "big").record.state is SliceState.REMOVED
    assert {line.result for lines in seen for line in lines} == {"blocked"}
    assert all(seen)
    if settled == "up":
        bring_up(services, "big", queued=False)
    else:
        take_down(services, "big")
    assert {line.result in TROUBLED for lines in passes(place, 3) for line in lines} <= {False}


@pytest.mark.parametrize("with_run", [False, True], ids=["slice", "run"])
@pytest.mark.parametrize("how", ["denied", "removed"])
def test_a_hook_hears_of_one_trouble_once_and_under_one_id(place, with_run, how):
    services = place.machine()
    pager = parse_hooks([{"name": "pager", "events": ["needs-human"], "command": ["true"]}], "test")
    watcher = Watcher(services.machine, "here", "ada", "1")
    heard: list[str] = []
    beat: Heartbeat | None = None

    def pass_and_tell() -> None:
        nonlocal beat
        place.clock.advance(60.0)
        lines = run_pass(services)
        beat = next_heartbeat(beat, watcher, lines, at=services.store.now(), seconds=1.0)
        deliver_events(services, pager, lines, beat.troubles, tell)

    def tell(_hook: Hook, event: HookEvent) -> str:
        heard.append(f"{event.subject}/{event.kind}")
        return ""

    bring_up(services, "big", queued=False)
    if with_run:
        place.hosts.programs["main.py"] = scripted(7200.0)
        submit(services, "big", "two hours")
    for _ in range(3):
        pass_and_tell()
    if how == "denied":
        place.world.faults.add(NO_PERMISSION)
        place.world.preempt("big-1")
    else:
        services.cloud.delete_node(SPEC.zone, "big-1")
    for _ in range(12):
        pass_and_tell()
    assert heard == ["slices/big/needs-human"]


@pytest.mark.parametrize(
    "data",
    [
        {"state": "running", "spec": "mine", "created_at": 1.0, "id": "r"},
        {"state": "running", "attempt": "the first"},
        {"state": "failed", "ended_at": "yesterday"},
    ],
)
def test_a_damaged_run_ends_no_telling_and_is_told_as_a_trouble(place, data):
    services = place.machine()
    pager = parse_hooks([{"name": "pager", "events": ["needs-human"], "command": ["true"]}], "test")
    heard: list[str] = []

    def tell(_hook: Hook, event: HookEvent) -> str:
        heard.append(f"{event.subject}/{event.kind}")
        return ""

    services.store.put("runs/r", data, if_generation=0)
    watcher, beat = Watcher("laptop", "desk", "ada", "0.1", 60.0), None
    for _ in range(12):
        place.clock.advance(60.0)
        lines = run_pass(services)
        beat = next_heartbeat(beat, watcher, lines, at=services.store.now(), seconds=1.0)
        deliver_events(services, pager, lines, beat.troubles, tell)
    assert heard == ["r/needs-human"]


@pytest.mark.parametrize("code", [7, 16], ids=["permission denied", "unauthenticated"])
def test_a_look_that_is_denied_neither_deletes_nor_creates(place, services, code):
    bring_up(services, "big")
    before = changes_of(place)
    message = "Request had invalid credentials."
    place.world.faults.add({"kind": "error", "method": "*", "code": code, "message": message, "times": 0})
    for _ in range(3):
        with pytest.raises(DeniedError) as raised:
            wait_for_slice(services, "big")
        assert raised.value.exit_code == 4
        assert [line.result for line in run_pass(services)] == ["failed"]
    assert changes_of(place) == before
    assert get_slice(services, "big").record.state is SliceState.READY
