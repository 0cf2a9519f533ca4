"""What a fleet file changes. The cases are in tests/data/plans/fleets.yaml."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.builders import a_run, a_slice, a_spec
from tests.support.cases import changed, check, load_cases
from tpuctl.fleet.plan import WantedFleet, WantedRun, plan_fleet, run_id_of
from tpuctl.lib.codec import from_data
from tpuctl.model.records import LifetimeLimits, RunRecord
from tpuctl.model.refs import EnvironmentRef
from tpuctl.model.requests import ApplyRequest
from tpuctl.model.run_identity import fingerprint
from tpuctl.model.run_spec import RestartPolicy, RunSpec
from tpuctl.slices.resolve import WantedSlice

BUNDLE = "0" * 64
REQUEST = RunSpec("big", ("python3", "train.py"), ".", RestartPolicy(), {}, {}, no_checkpoint=True)
RUN = WantedRun("train", REQUEST, BUNDLE)


def the_file(zones: tuple[str, ...] = (a_spec().zone,), run: str = "", limits: Any = None) -> WantedFleet:
    """One slice, which may hunt in several zones, and perhaps a run."""
    slice_ = WantedSlice("big", tuple(a_spec(zone=zone) for zone in zones))
    if limits is not None:
        slice_ = replace(slice_, limits=from_data(LifetimeLimits, limits))
    return WantedFleet("lab", (slice_,), (replace(RUN, name=run),) if run else ())


def a_recorded_run(changes: Mapping[str, Any]) -> RunRecord:
    """A record of RUN, or of another one."""
    fields = {"fleet": "lab", "fleet_run": "train", **changes}
    other = fields.pop("other", False)
    run = changed(a_run(), fields)
    if "fingerprint" in fields:
        return run
    same = fingerprint(replace(REQUEST, policy=run.spec.policy), BUNDLE)
    if not other:
        return replace(run, fingerprint=same)
    return replace(run, fingerprint="x" * 64, spec=replace(run.spec, argv=("python3", "other.py")))


@pytest.mark.parametrize("case", load_cases("fleets", now=0.0))
def test_what_a_file_changes(case: dict[str, Any]) -> None:
    slices = [changed(a_slice(), each) for each in case.get("slices", ())]
    runs = [a_recorded_run(each) for each in case.get("runs", ())]
    how = from_data(ApplyRequest, case.get("how", {}))
    found = {
        change.subject: change
        for change in plan_fleet(the_file(**case.get("file", {})), slices, runs, "ada", how)
    }
    assert {"plan", "only"} & set(case), "a case that cannot fail"
    check(found, case.get("plan", {}))
    assert set(found) == set(case.get("only", found))


def test_ids_of_runs_are_the_same_for_the_same_run_and_numbered_when_it_is_repeated():
    first = run_id_of(RUN, ())
    assert first.startswith("train-")
    assert run_id_of(replace(RUN, spec=replace(REQUEST, policy=RestartPolicy(max_failures=9))), ()) == first
    assert run_id_of(replace(RUN, bundle="1" * 64), ()) != first
    assert run_id_of(RUN, {first}) == f"{first}-2"
    assert run_id_of(RUN, {first, f"{first}-2"}) == f"{first}-3"


def test_a_field_at_its_default_is_no_part_of_a_fingerprint():
    assert fingerprint(REQUEST, BUNDLE) == fingerprint(replace(REQUEST, workers=()), BUNDLE)
    assert fingerprint(REQUEST, BUNDLE) != fingerprint(replace(REQUEST, keep_slice=True), BUNDLE)
    pinned = EnvironmentRef("jax", "1" * 64)
    assert fingerprint(REQUEST, BUNDLE) != fingerprint(replace(REQUEST, environment=pinned), BUNDLE)


def test_fingerprints_are_those_of_the_versions_before():
    pinned = EnvironmentRef("jax", hashlib.sha256(b"x").hexdigest())
    with_more = replace(REQUEST, environment=pinned, workers=(0, 1))
    assert fingerprint(REQUEST, BUNDLE).startswith("f6c0ef8b9bacaeb6")
    assert fingerprint(with_more, BUNDLE).startswith("71d793c2bcc69642")
