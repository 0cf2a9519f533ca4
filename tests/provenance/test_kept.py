"""Manifests of runs as the workflows write them: through preemptions, crashes and pruning, in both stores."""

from __future__ import annotations

import jsonschema
import pytest
from msgspec.structs import replace

from tests.docs.schemas import run_schema
from tests.support.jobs import bring_up, submit
from tests.support.memory.process import scripted
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.errors import BadManifestError
from tpuctl.model.records import RunState
from tpuctl.model.run_spec import RestartPolicy
from tpuctl.provenance.manifest import verify_chain
from tpuctl.provenance.parts import PARTS, begin_manifest, load_manifest, load_parts, seal_manifest
from tpuctl.provenance.phases import goodput
from tpuctl.provenance.verify import verify_manifest
from tpuctl.runs.follow import follow_run, start_run
from tpuctl.runs.request import request_stop
from tpuctl.state.repository import get_run
from tpuctl.views.runs import run_rows
from tpuctl.watch.reconciler import run_pass

pytestmark = pytest.mark.slow


@pytest.fixture
def place(place: MemoryPlace) -> MemoryPlace:
    place.hosts.programs["main.py"] = scripted(7200.0, lines=["begun"])
    return place


def pass_for(place: MemoryPlace, services: MemoryServices, seconds: float) -> None:
    for _ in range(int(seconds / 60)):
        place.clock.advance(60.0)
        run_pass(services)


def test_a_run_through_two_preemptions_leaves_a_whole_manifest(place, services):
    bring_up(services, "big")
    run = submit(services, "big", "two hours", policy=RestartPolicy(max_preemptions=5))
    begun = load_manifest(services, run.id)
    assert (begun["attempts"], begun["end"], len(begun["chain"])) == ([], None, 1)
    start_run(services, run.id)
    for life in (1, 2):
        pass_for(place, services, 1200)
        place.world.preempt(f"big-{life}")
        pass_for(place, services, 1200)
    pass_for(place, services, 7800)
    assert get_run(services, run.id).record.state is RunState.SUCCEEDED
    found = load_manifest(services, run.id)
    jsonschema.validate(found, run_schema())
    assert verify_manifest(services, found, sealed=True) == []
    assert [row["cause"] for row in found["attempts"]] == ["preempted", "preempted", "succeeded"]
    assert [row["slice"]["cloud_name"] for row in found["attempts"]] == ["big-1", "big-2", "big-3"]
    assert all(row["slice"]["node_uid"] and row["slice"]["provisioned"] for row in found["attempts"])
    assert [len(row["hosts"]) for row in found["attempts"]] == [2, 2, 2]
    phases = [row["phases"] for row in found["attempts"]]
    assert phases[0]["waiting_s"] == 0
    assert all(0 < each["waiting_s"] + each["provisioning_s"] < 1200 for each in phases[1:])
    assert phases[2]["running_s"] >= 7200
    assert phases[0]["lost_s"] >= 1100
    end = found["end"]
    assert (end["state"], end["attempts"], end["preemptions"], end["chips"]) == ("succeeded", 3, 2, 8)
    assert end["chip_hours"] > 8 * 2
    assert end["usd"] is not None
    assert end["by_phase"]["lost"]["usd"] > 0
    spent = get_run(services, run.id).record.totals
    assert (spent.chip_hours, spent.usd) == (end["chip_hours"], end["usd"])
    [row] = run_rows(services)
    assert row["goodput"] == spent.goodput == goodput(end["phases"])


def test_each_part_is_written_once_and_a_changed_byte_is_found(place, services):
    place.hosts.programs["main.py"] = scripted(60.0, lines=["begun"])
    bring_up(services, "big")
    run = submit(services, "big", "a minute")
    over = follow_run(services, run.id, deadline=services.clock.now() + 3600)
    parts = load_parts(services, run.id)
    seal_manifest(services, over, None)
    assert load_parts(services, run.id) == parts
    name, part = f"{run.id}/00001", parts.attempts[0]
    PARTS.overwrite(services, name, replace(part, content={**part.content, "cause": "failed"}))
    assert verify_chain(load_manifest(services, run.id)) == ["attempt 1 was changed after it was written"]


def test_lost_and_changed_code_is_found(place, services):
    bring_up(services, "big")
    run = submit(services, "big", "two hours")
    manifest = load_manifest(services, run.id)
    assert verify_manifest(services, manifest, sealed=False) == []
    for blob in services.store.list_blobs():
        services.store.remove_blob(blob)
    [wrong] = verify_manifest(services, manifest, sealed=False)
    assert wrong == f"the code is not in the store any more: {run.code.bundle}"


def test_a_run_that_ends_before_it_began_has_its_end_too(place, services):
    bring_up(services, "big")
    run = submit(services, "big", "two hours")
    request_stop(services, run.id)
    over = follow_run(services, run.id, deadline=services.clock.now() + 3600)
    found = load_manifest(services, run.id)
    assert (over.state, found["end"]["state"], found["attempts"]) == (RunState.STOPPED, "stopped", [])
    assert verify_chain(found) == []


def test_what_a_crash_left_before_its_run_was_written_down_is_replaced(place, services):
    bring_up(services, "big")
    run = submit(services, "big", "two hours")
    begin_manifest(services, run, None)
    begin_manifest(services, run, None, {})
    assert verify_chain(load_manifest(services, run.id)) == []


def test_a_failed_attempt_says_how_its_workers_ended(place, services):
    place.hosts.programs["main.py"] = scripted(5.0, signal=9)
    bring_up(services, "big")
    run = submit(services, "big", "dies")
    follow_run(services, run.id, deadline=services.clock.now() + 3600)
    [row] = load_manifest(services, run.id)["attempts"]
    assert row["cause"] == "failed"
    assert {each["signal"] for each in row["exits"]} == {9}
    with pytest.raises(BadManifestError, match="no manifest"):
        load_manifest(services, "nobody")
