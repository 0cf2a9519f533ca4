"""Passes of the watchdog look at runs on clusters, and change nothing there."""

from __future__ import annotations

from msgspec.structs import replace

from tests.kube.lab import Lab
from tests.support.kube_objects import waiting
from tpuctl.model.records import RunState
from tpuctl.runs.request import request_stop
from tpuctl.state.repository import get_run, save
from tpuctl.watch.cycle import secrets_of_active_runs
from tpuctl.watch.pass_lines import look_at_clusters


def test_a_pass_notes_what_it_sees_and_changes_nothing_there(lab: Lab) -> None:
    lab.submit()
    [line] = look_at_clusters(lab.services, [lab.run])
    assert (str(line.result), line.acted) == ("waiting", False)
    assert lab.api.changes == []
    lab.settle()
    lab.pods()
    look_at_clusters(lab.services, [lab.run])
    assert lab.run.state is RunState.RUNNING
    lab.line(0, "a")
    lab.jobset(restarts=1)
    look_at_clusters(lab.services, [lab.run])
    lab.pods(waiting("InvalidImageName"), restart=1)
    look_at_clusters(lab.services, [lab.run])
    request_stop(lab.services, "r1")
    look_at_clusters(lab.services, [lab.run])
    assert lab.run.attempt is not None
    assert (lab.run.attempt.number, lab.api.changes) == (2, ["create jobsets/train"])


def test_a_pass_that_cannot_see_the_cluster_says_so_and_ends_nothing(lab: Lab) -> None:
    lab.start()
    lab.api.token = "another"
    [line] = look_at_clusters(lab.services, [lab.run])
    assert "refuses the credentials" in line.why
    assert lab.run.state is RunState.RUNNING


def test_what_is_kept_up_on_a_cluster_asks_this_machine_for_no_secrets(lab: Lab) -> None:
    lab.submit()
    run = replace(lab.run, spec=replace(lab.run.spec, secrets={"TOKEN": "env:TOKEN"}))
    save(lab.services, get_run(lab.services, "r1"), run)
    assert secrets_of_active_runs(lab.services) == {}
    save(lab.services, get_run(lab.services, "r1"), replace(run, cluster=None))
    assert secrets_of_active_runs(lab.services) == {"env:TOKEN": "r1"}
