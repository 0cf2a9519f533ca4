from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from msgspec.structs import replace as change

from tests.support.builders import a_run, a_slice, a_spec, an_incarnation
from tpuctl.fleet.plan import (
    Change,
    FleetChange,
    How,
    WantedFleet,
    WantedRun,
    plan_fleet,
    run_id_of,
)
from tpuctl.model.records import CodeState, Desired, Lifetime, Limits, RunRecord, RunState, SliceState
from tpuctl.model.run_spec import EnvironmentRef, FrozenEnvironment, Policy, RunSpec, fingerprint
from tpuctl.slices.resolve import WantedSlice

BUNDLE = "0" * 64
REQUEST = RunSpec("big", ("python3", "train.py"), ".", Policy(), {}, {}, no_checkpoint=True)
SLICE = WantedSlice("big", (a_spec(),))
RUN = WantedRun("train", REQUEST, BUNDLE)


def plan(slices: Any = (), runs: Any = (), wanted: WantedFleet | None = None, **how: Any):
    fleet = wanted or WantedFleet("lab", (SLICE,), ())
    return {change.subject: change for change in plan_fleet(fleet, slices, runs, "ada", How(**how))}


def of_slice(record: Any, **how: Any) -> FleetChange:
    return plan([record], **how)["slice big"]


def of_run(*runs: RunRecord, slices: Any = None, **how: Any) -> FleetChange:
    known = [a_slice(fleet="lab")] if slices is None else slices
    return plan(known, runs, WantedFleet("lab", (SLICE,), (RUN,)), **how)["run train"]


def the_run(**changes: Any) -> RunRecord:
    """A record of RUN."""
    policy = changes.get("policy", Policy())
    same = fingerprint(replace(REQUEST, policy=policy), BUNDLE)
    return a_run(**{"fleet": "lab", "fleet_run": "train", "fingerprint": same, **changes})


OTHER = {"argv": ("python3", "other.py"), "fingerprint": "x" * 64}


def test_what_is_not_there_is_asked_for():
    assert plan()["slice big"].change is Change.CREATE
    assert of_slice(a_slice(state=SliceState.GONE)).change is Change.CREATE
    assert of_slice(a_slice(desired=Desired.DOWN, state=SliceState.DELETING)).change is Change.CREATE


@pytest.mark.parametrize("state", [SliceState.READY, SliceState.REQUESTED, SliceState.LOST])
def test_what_is_there_or_on_its_way_is_left_alone(state):
    assert of_slice(a_slice(state=state)).change is Change.NONE


@pytest.mark.parametrize("state", [SliceState.REMOVED, SliceState.REFUSED])
def test_what_waits_for_a_person_is_asked_for_again(state):
    assert of_slice(a_slice(state=state)).change is Change.CREATE


def test_another_spec_is_a_conflict_that_says_what_differs_and_what_to_type():
    change = of_slice(a_slice(spec=a_spec(accelerator_type="v4-8", hosts=1)))
    assert change.change is Change.CONFLICT
    assert change.differs == ("accelerator_type", "hosts")
    assert "v4-8 is there, v4-16 in the file" in change.why
    assert "--replace" in change.hint
    assert of_slice(a_slice(spec=a_spec(accelerator_type="v4-8")), replace=True).change is Change.REPLACE


@pytest.mark.parametrize(
    ("there", "told"),
    [
        ({"queued": False}, "other queued: a node that was asked for directly is there, a queued resource in"),
        (
            {"external_ips": False},
            "other internal ips: a slice without external addresses is there, a slice with",
        ),
        ({"run_duration_s": 5400.0}, "other run duration: 1h30m is there, none in the file"),
        ({"valid_until": 0.0}, "other valid until: 1970-01-01T00:00:00Z is there, none in the file"),
        ({"labels": {"team": "vision"}}, "other label: team=vision is there, none in the file"),
        ({"tags": ("a", "b")}, "other tag: a, b is there, none in the file"),
    ],
)
def test_a_conflict_speaks_as_the_file_does(there, told):
    assert told in of_slice(a_slice(spec=a_spec(**there))).why


def test_where_a_hunting_slice_is_now_makes_no_difference():
    zones = ("us-central2-b", "us-east1-d")
    wanted = WantedFleet("lab", (change(SLICE, specs=tuple(a_spec(zone=zone) for zone in zones)),), ())
    record = a_slice(spec=a_spec(zone="us-east1-d"), zones=zones)
    assert plan([record], wanted=wanted)["slice big"].change is Change.NONE
    other = plan([a_slice()], wanted=wanted)["slice big"]
    assert (other.change, other.differs) == (Change.CONFLICT, ("zone",))


def test_slices_of_others_are_replaced_only_with_all_users():
    record = a_slice(owner="bob", spec=a_spec(accelerator_type="v4-8"))
    assert of_slice(record, replace=True).change is Change.CONFLICT
    assert of_slice(record, replace=True, all_users=True).change is Change.REPLACE


def test_a_slice_of_another_fleet_or_of_a_run_is_a_conflict():
    assert of_slice(a_slice(fleet="other"), replace=True).change is Change.CONFLICT
    assert of_slice(a_slice(run_id="r9"), replace=True).change is Change.CONFLICT


def test_the_agreement_to_pay_changes_in_place():
    assert of_slice(a_slice(pay=True)).change is Change.UPDATE


def test_only_what_came_from_this_file_is_ever_removed():
    records = [
        a_slice(name="mine", fleet="lab"),
        a_slice(name="bobs", fleet="lab", owner="bob"),
        a_slice(name="byhand"),
        a_slice(name="elsewhere", fleet="other"),
        a_slice(name="past", fleet="lab", state=SliceState.GONE),
        a_slice(name="going", fleet="lab", desired=Desired.DOWN, state=SliceState.DELETING),
    ]
    kept = {name: change.change for name, change in plan(records).items()}
    assert kept == {
        "slice big": Change.CREATE,
        "slice mine": Change.UNLISTED,
        "slice bobs": Change.UNLISTED,
        "slice going": Change.NONE,
    }
    pruned = {name: change.change for name, change in plan(records, prune=True).items()}
    assert pruned == {**kept, "slice mine": Change.REMOVE}
    everyones = plan(records, prune=True, all_users=True)
    assert everyones["slice bobs"].change is Change.REMOVE


def test_a_run_that_was_never_submitted_is():
    assert of_run().change is Change.CREATE


def test_the_same_run_is_not_submitted_twice_whether_it_runs_or_has_ended():
    assert of_run(the_run()).change is Change.NONE
    for state in (RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED, RunState.GAVE_UP):
        change = of_run(the_run(state=state))
        assert change.change is Change.NONE
        assert str(state) in change.why
        assert "--again train" in change.hint


def test_a_run_that_has_ended_is_repeated_when_asked_for_or_changed():
    ended = the_run(state=RunState.SUCCEEDED)
    assert of_run(ended, again=frozenset({"train"})).change is Change.CREATE
    changed = of_run(replace(ended, fingerprint="x" * 64))
    assert changed.change is Change.CREATE
    assert changed.why == "it has changed since it last ran"


def test_a_run_made_by_hand_counts_if_it_is_the_same():
    assert of_run(the_run(fleet="", fleet_run="", state=RunState.SUCCEEDED)).change is Change.NONE


def test_a_policy_changes_in_place_and_nothing_else_does():
    change = of_run(the_run(policy=Policy(max_failures=7)))
    assert (change.change, change.differs) == (Change.UPDATE, ("max_failures",))
    other = of_run(the_run(**OTHER, code=CodeState("1" * 64)))
    assert (other.change, other.differs) == (Change.CONFLICT, ("command", "code"))
    assert of_run(the_run(**OTHER), replace=True).change is Change.REPLACE


def test_a_run_that_is_not_of_this_file_is_never_stopped_for_one_that_is():
    change = of_run(the_run(**OTHER, fleet=""), replace=True)
    assert change.change is Change.CONFLICT
    assert change.hint == "tpuctl stop r1"


def test_a_run_ends_with_the_slice_that_is_replaced():
    slices = [a_slice(spec=a_spec(accelerator_type="v4-8"))]
    change = of_run(the_run(), slices=slices, replace=True)
    assert change.change is Change.NONE
    assert "--again train" in change.hint
    again = of_run(the_run(), slices=slices, replace=True, again=frozenset({"train"}))
    assert again.change is Change.REPLACE


def test_a_run_that_is_no_longer_listed_is_stopped_with_prune_unless_it_goes_on_under_another_name():
    wanted = WantedFleet("lab", (SLICE,), ())
    assert plan([a_slice()], [the_run()], wanted)["run r1"].change is Change.UNLISTED
    assert plan([a_slice()], [the_run()], wanted, prune=True)["run r1"].change is Change.REMOVE
    renamed = WantedFleet("lab", (SLICE,), (replace(RUN, name="renamed"),))
    assert set(plan([a_slice()], [the_run()], renamed, prune=True)) == {"slice big", "run renamed"}
    ended = the_run(state=RunState.SUCCEEDED)
    assert set(plan([a_slice()], [ended], wanted, prune=True)) == {"slice big"}


def test_ids_of_runs_are_the_same_for_the_same_run_and_numbered_when_it_is_repeated():
    first = run_id_of(RUN, ())
    assert first.startswith("train-")
    assert run_id_of(replace(RUN, spec=replace(REQUEST, policy=Policy(max_failures=9))), ()) == first
    assert run_id_of(replace(RUN, bundle="1" * 64), ()) != first
    assert run_id_of(RUN, {first}) == f"{first}-2"
    assert run_id_of(RUN, {first, f"{first}-2"}) == f"{first}-3"


def test_a_field_at_its_default_is_no_part_of_a_fingerprint():
    assert fingerprint(REQUEST, BUNDLE) == fingerprint(replace(REQUEST, workers=()), BUNDLE)
    assert fingerprint(REQUEST, BUNDLE) != fingerprint(replace(REQUEST, keep_slice=True), BUNDLE)
    pinned = EnvironmentRef("jax", "1" * 64)
    assert fingerprint(REQUEST, BUNDLE) != fingerprint(replace(REQUEST, environment=pinned), BUNDLE)


def test_fingerprints_are_those_of_the_versions_before():
    pinned = FrozenEnvironment("jax", b"x", "/envs").ref
    with_more = replace(REQUEST, environment=pinned, workers=(0, 1))
    assert fingerprint(REQUEST, BUNDLE).startswith("f6c0ef8b9bacaeb6")
    assert fingerprint(with_more, BUNDLE).startswith("71d793c2bcc69642")


HALF_A_DAY = change(SLICE, limits=Limits(ttl_s=43_200.0, idle_s=1800.0))


def of_limited(record: Any, **how: Any) -> FleetChange:
    return plan([record], wanted=WantedFleet("lab", (HALF_A_DAY,), ()), **how)["slice big"]


def test_limits_change_in_place_each_by_its_key():
    both = of_limited(a_slice())
    assert (both.change, both.differs) == (Change.UPDATE, ("ttl", "stop_when_idle"))
    assert both.why == "the file says 12h as ttl; the file says 30m as stop_when_idle"
    one = of_limited(a_slice(lifetime=Lifetime(expires_at=5.0, ttl_s=43_200.0, idle_s=600.0)))
    assert (one.change, one.differs) == (Change.UPDATE, ("stop_when_idle",))
    same = Lifetime(expires_at=5.0, ttl_s=43_200.0, idle_s=1800.0)
    assert of_limited(a_slice(lifetime=same)).change is Change.NONE
    gone = of_slice(a_slice(lifetime=same))
    assert (gone.change, gone.differs) == (Change.UPDATE, ("ttl", "stop_when_idle"))
    assert gone.why.startswith("the file no longer says ttl")


def test_an_end_whose_span_nobody_wrote_down_is_not_that_of_the_file():
    assert of_limited(a_slice(lifetime=Lifetime(expires_at=5.0, idle_s=1800.0))).differs == ("ttl",)
    assert of_slice(a_slice(lifetime=Lifetime(expires_at=5.0))).differs == ("ttl",)


def test_slices_of_others_and_those_made_by_hand_get_no_limits_from_a_file():
    others = of_limited(a_slice(owner="bob"))
    assert (others.change, others.hint) == (Change.CONFLICT, "--all-users changes it, too")
    assert of_limited(a_slice(owner="bob"), all_users=True).change is Change.UPDATE
    by_hand = of_limited(a_slice(incarnation=an_incarnation(by_hand=True)))
    assert by_hand.change is Change.CONFLICT
    assert "made by hand" in by_hand.why


def test_a_slice_made_by_hand_is_not_replaced():
    other = a_slice(incarnation=an_incarnation(by_hand=True), spec=a_spec(network="mine"))
    found = of_slice(other, replace=True)
    assert (found.change, found.hint) == (Change.CONFLICT, "tpuctl down big, or change the file back")
