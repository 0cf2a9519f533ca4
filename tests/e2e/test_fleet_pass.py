"""The watchdog's pass: what it may conclude from what it sees, and what it never does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.hosts import wait_until
from tests.support.jobs import SPEC, bring_up, pass_until, submit
from tests.support.services import SimServices, sim_services
from tests.support.sim import running_sim
from tpuctl.engine.events import Warn
from tpuctl.errors import UsageError
from tpuctl.model import timeouts
from tpuctl.model.cloud import INCARNATION_LABEL, NodeState, QueuedState, Tier
from tpuctl.model.records import Desired, RunState, SliceState
from tpuctl.model.run_spec import RestartPolicy, RunSpec
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.model.verdict import Blocked
from tpuctl.money.coverage import keep_grant, quote
from tpuctl.money.grants import AtEnd, Grant
from tpuctl.runs.submit import check_request
from tpuctl.sim.world.delays import Delays
from tpuctl.slices.desired import request_slice
from tpuctl.slices.enrollment import enroll_machine, remove_machine
from tpuctl.slices.observe import observe_slice
from tpuctl.slices.reconcile import advance_slice, wait_for_slice
from tpuctl.state.repository import get_run, get_slice, save
from tpuctl.views.decisions import decisions
from tpuctl.views.slices import fleet_rows
from tpuctl.watch.heartbeat import TROUBLED
from tpuctl.watch.pause import pause_fleet
from tpuctl.watch.reconciler import JUST_UP, run_pass

V6E = SliceSpec("v6e-8", "us-east1-d", Tier.SPOT, "v2-alpha-tpuv6e", hosts=1, chips=8)
ZONES = ("us-east1-d", "europe-west4-a", "us-east5-b")
INSTANT = {each.name: 0.0 for each in fields(Delays)}
SLEEPS = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


class Counting:
    """A cloud that remembers which of its methods were called."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._inner, name)


class Lying:
    """A cloud whose `method` answers with `answer` for the first `times` calls, then with the truth."""

    def __init__(self, inner: Any, method: str, answer: Callable[[Any], Any], times: int) -> None:
        self._inner, self._method, self._answer, self._left = inner, method, answer, times

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != self._method:
            return found

        def call(*args: Any) -> Any:
            truth = found(*args)
            if self._left <= 0:
                return truth
            self._left -= 1
            return self._answer(truth)

        return call


def test_a_pass_over_a_fleet_in_order_costs_two_list_calls(services):
    for number in range(3):
        bring_up(services, f"slice-{number}")
    services.cloud = counted = Counting(services.cloud)
    assert {line.result for line in run_pass(services)} == {"done"}
    assert counted.calls == ["list_nodes", "list_queued"]


def test_one_false_read_of_a_live_node_loses_nothing(sim, services):
    bring_up(services, "big", queued=False)
    before = sim.changes()
    truth = services.cloud
    services.cloud = Lying(truth, "find_node", lambda node: replace(node, state=NodeState.PREEMPTED), times=1)
    outcome, _ = advance_slice(services, "big")
    assert "two reads that agree" in outcome.verdict.why
    assert get_slice(services, "big").record.state is SliceState.READY
    assert sim.changes() == before


def test_a_list_that_lies_is_not_believed_either(sim, services):
    bring_up(services, "big", queued=False)
    before = sim.changes()
    services.cloud = Lying(
        services.cloud,
        "list_nodes",
        lambda listing: replace(
            listing, items=tuple(replace(node, state=NodeState.PREEMPTED) for node in listing.items)
        ),
        times=5,
    )
    for _ in range(3):
        run_pass(services)
    assert get_slice(services, "big").record.state is SliceState.READY
    assert sim.changes() == before


def test_another_node_under_our_name_and_labels_is_left_alone(services):
    bring_up(services, "big", queued=False)
    loaded = get_slice(services, "big").record
    assert loaded.incarnation.node_uid
    services.cloud = Lying(
        services.cloud,
        "find_node",
        lambda node: replace(node, uid="777", state=NodeState.PREEMPTED),
        times=1000,
    )
    assert observe_slice(services, "big").observed.event == "foreign"
    advance_slice(services, "big")
    assert get_slice(services, "big").record.state is SliceState.READY


def test_a_zone_that_cannot_be_read_neither_loses_nor_creates_anything(sim, services):
    bring_up(services, "big")
    request_slice(
        services,
        "small",
        replace(SPEC, accelerator_type="v4-8", hosts=1, chips=4),
        pay=False,
        admit=lambda: None,
    )
    before = sim.changes()
    sim.fault(kind="unreachable", zone="us-central2-b", times=0)
    lines = {line.subject: line for line in run_pass(services)}
    assert {line.result for line in lines.values()} == {"waiting"}
    assert "could not be read" in lines["big"].why
    assert sim.changes() == before


def test_what_a_lost_answer_left_behind_is_collected(sim, services):
    bring_up(services, "big", queued=False)
    sim.preempt("big-1")
    pass_until(services, lambda: get_slice(services, "big").record.state is SliceState.READY)
    node = services.cloud.find_node(SPEC.zone, "big-2")
    stale = {**node.labels, INCARNATION_LABEL: "1"}
    services.cloud.create_node("big-1", _spec(stale))
    foreign = {**stale, "tpuctl-store": "another"}
    services.cloud.create_node("huge-1", _spec(foreign))
    assert sim.world.settle()  # while a create settles, a delete is taken and does nothing
    lines = run_pass(services)
    assert [line.subject for line in lines if line.acted] == ["big-1"]
    assert sim.world.settle()
    assert sorted(found.name for found in services.cloud.list_nodes().items) == ["big-2", "huge-1"]
    assert [row["action"] for row in decisions(services, "big")][-1] == "collect"


def _spec(labels: dict[str, str], kind: str = "v4-8") -> SliceSpec:
    return replace(SPEC, accelerator_type=kind, labels=labels)


def test_a_pause_ends_by_itself(services):
    bring_up(services, "big")
    pause_fleet(services, until=services.store.now() - 1)
    assert [line.result for line in run_pass(services)] == ["done"]


@pytest.mark.parametrize(
    ("code", "message", "left"),
    [
        (3, "The requested accelerator type could not be found in the zone.", ("europe-west4-a",)),
        (7, "Location us-east1-d is not found or access is unauthorized.", ZONES[:2]),
    ],
    ids=["the request itself", "perhaps only this machine"],
)
def test_a_zone_that_refuses_is_left_out_or_left_alone(sim, services, code, message, left):
    sim.fault(kind="error", method="*.create", zone="us-east1-d", code=code, message=message, times=0)
    request_slice(services, "one", V6E, pay=False, zones=ZONES[:2], admit=lambda: None)
    record = wait_for_slice(services, "one")
    assert (record.spec.zone, record.candidates, record.zones) == ("europe-west4-a", left, ZONES[:2])


def add_grant(services: SimServices, **changes: Any) -> None:
    keep_grant(services, Grant(SPEC.zone, Tier.SPOT, "v4", 64, **changes))


def test_chips_that_somebody_else_holds_count_against_the_grant(services):
    add_grant(services, ends=None)
    catalog = load_accelerators()
    assert quote(services, catalog, "big", replace(SPEC, chips=8)).coverage.covered
    for number in range(8):
        services.cloud.create_node(f"by-hand-{number}", _spec({}, "v4-16"))
    coverage = quote(services, catalog, "big", SPEC).coverage
    assert not coverage.covered
    assert "64 in use" in coverage.reason


def last_day(services: SimServices, days: int) -> str:
    """The date `days` days from today."""
    return datetime.fromtimestamp(services.clock.now() + days * 86_400, UTC).date().isoformat()


def test_a_grant_that_ends_soon_is_warned_of_once_a_week_before_and_once_a_day_before(services):
    bring_up(services, "big")
    add_grant(services, ends=last_day(services, 7))
    told = []
    for _ in range(8):
        told.append([line.why for line in run_pass(services) if line.acted])
        assert run_pass(services)[0].subject == "big"
        services.clock.sleep(86_400)
    assert [len(lines) for lines in told] == [1, 0, 0, 0, 0, 0, 1, 0]
    assert "in 7 days" in told[0][0]
    assert "tomorrow" in told[6][0]


def test_what_was_made_by_hand_does_not_go_with_a_grant(services):
    bring_up(services, "big")
    loaded = get_slice(services, "big")
    assert loaded.record.incarnation is not None
    by_hand = replace(loaded.record.incarnation, by_hand=True)
    save(services, loaded, replace(loaded.record, incarnation=by_hand))
    add_grant(services, ends="2026-01-31", at_end=AtEnd.DOWN)
    run_pass(services)
    assert get_slice(services, "big").record.desired is Desired.UP


def test_the_end_of_a_grant_stops_creates_and_restarts(sim, services):
    bring_up(services, "big")
    add_grant(services, ends="2026-01-31")
    assert [line.result for line in run_pass(services)] == ["done"]
    sim.preempt("big-1")
    pass_until(services, lambda: get_slice(services, "big").record.state is SliceState.LOST)
    lines = pass_until(services, lambda: not services.cloud.list_queued().items)
    lines = run_pass(services)
    assert [line.result for line in lines] == ["blocked"]
    assert "ended on 2026-01-31; nothing is restarted" in lines[0].why
    outcome, _ = advance_slice(services, "big")
    assert isinstance(outcome.verdict, Blocked)
    assert not [
        found for found in services.cloud.list_queued().items if found.state is not QueuedState.DELETING
    ]
    request_slice(services, "big", SPEC, pay=True, admit=lambda: None)
    pass_until(services, lambda: get_slice(services, "big").record.state is SliceState.READY)


def test_a_machine_that_hosts_do_not_let_in_proves_nothing_about_them(sim, services, tmp_path):
    bring_up(services, "idle")
    bring_up(services, "big")
    run = submit(services, "big", SLEEPS)
    pass_until(services, lambda: get_run(services, run.id).record.state is RunState.RUNNING)
    before, stored = sim.changes(), get_run(services, run.id).generation
    with sim_services(sim, tmp_path / "other", process=2) as stranger:
        stranger.store, stranger.clock, stranger.machine = services.store, services.clock, "shut-out"
        enroll_machine(stranger)
        remove_machine(services, "shut-out")
        for _ in range(30):
            lines = {line.subject: line for line in run_pass(stranger)}
            assert (lines["idle"].result, lines[run.id].result) == ("done", "blocked")
            assert "taken out of those that may log in" in lines[run.id].why
            services.clock.sleep(60.0)
    assert get_run(services, run.id).generation == stored
    assert sim.changes() == before


def test_a_hunt_does_not_lead_away_from_the_checkpoints(services):
    zones = ("us-east1-d", "europe-west4-a")
    request_slice(services, "one", V6E, pay=False, zones=zones, admit=lambda: None)
    place = services.project_api.bucket_place("sim-bucket")
    away = [zone for zone in zones if not place.is_near(zone)]
    assert away
    asked = {"no_checkpoint": False, "checkpoint_dir": "gs://sim-bucket/ck"}
    request = RunSpec("one", ("true",), ".", RestartPolicy(), {}, {}, **asked)
    with pytest.raises(UsageError, match="away from") as raised:
        check_request(services, request, zones)
    assert "--any-region" in raised.value.hint
    check_request(services, replace(request, any_region=True), zones)
    check_request(services, request, away[:1])
    warnings = [event.text for event in services.events if isinstance(event, Warn)]
    assert "traffic is billed" in warnings[-1]


def test_up_does_not_believe_a_ready_slice_whose_hosts_are_gone(tmp_path):
    with (
        running_sim(tmp_path, delays={**INSTANT, "preempt_visible": 5.0}) as sim,
        sim_services(sim, tmp_path / "state") as services,
    ):
        bring_up(services, "big", queued=False)
        sim.preempt("big-1")
        assert observe_slice(services, "big").observed.event == "node-ready"
        request_slice(services, "big", replace(SPEC, queued=False), pay=False, admit=lambda: None)
        assert wait_for_slice(services, "big").incarnation.number == 2


def test_a_pass_that_created_it_says_that_its_hosts_are_asked_later(services):
    truth = services.cloud

    def until_ready(answer: Any) -> Any:
        wait_until(lambda: [node.state for node in truth.list_nodes().items] == [NodeState.READY])
        return answer

    services.cloud = Lying(truth, "create_queued", until_ready, times=1)
    request_slice(services, "big", SPEC, pay=False, admit=lambda: None)
    assert [(line.result, line.why) for line in run_pass(services)] == [("later", JUST_UP)]
    assert [line.result for line in run_pass(services)] == ["done"]


def test_a_slice_whose_run_never_began_needs_a_person_until_a_run_takes_it(services):
    def ask(run_id: str) -> None:
        request_slice(services, "big", SPEC, pay=False, run_id=run_id, admit=lambda: None)

    ask("r-lost")
    wait_for_slice(services, "big")
    assert [line.result for line in run_pass(services)] == ["done"]
    services.clock.skip(timeouts.RUN_BEGINS_S)
    (line,) = run_pass(services)
    assert line.result in TROUBLED
    assert "run r-lost, which never began: `tpuctl down big`" in line.why
    assert "which never began" in fleet_rows(services)[0][0]["remark"]
    ask("run-0001")
    submit(services, "big", SLEEPS)
    assert [line.subject for line in run_pass(services)] == ["run-0001"]
    assert fleet_rows(services)[0][0]["remark"] == ""


class Strange:
    """A cloud that shows every node in a state that this tpuctl does not know."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def find_node(self, zone: str, name: str) -> Any:
        return replace(self._inner.find_node(zone, name), state=NodeState.UNKNOWN)

    def list_nodes(self, zone: str = "-") -> Any:
        found = self._inner.list_nodes()
        return replace(found, items=tuple(replace(each, state=NodeState.UNKNOWN) for each in found.items))


def test_a_state_that_nobody_knows_needs_a_person_after_an_hour_and_is_forgotten_when_it_ends(services):
    bring_up(services, "big")
    honest, services.cloud = services.cloud, Strange(services.cloud)
    assert [line.result for line in run_pass(services)] == ["waiting"]
    services.clock.skip(timeouts.UNCLEAR_MAX_S)
    (line,) = run_pass(services)
    assert line.result in TROUBLED
    assert decisions(services, "big")[-1]["action"] == "unclear"
    services.cloud = honest
    assert [line.result for line in run_pass(services)] == ["waiting"]
    assert decisions(services, "big")[-1]["action"] == "clear"
    assert [line.result for line in run_pass(services)] == ["done"]
