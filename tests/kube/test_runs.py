"""A run on a cluster, step by step: what tpuctl applies, notes and deletes while JobSet, Kueue and kubelets
act, whose part the test plays."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kube.lab import DOCUMENT, Lab
from tests.support.kube_objects import condition, exited, waiting, workload
from tpuctl.lib.time import render_time
from tpuctl.model.attempts import Cause
from tpuctl.model.records import RunState
from tpuctl.provenance.parts import load_manifest
from tpuctl.runs.request import request_stop


def test_it_is_applied_runs_and_succeeds_with_its_manifest(lab: Lab) -> None:
    lab.submit()
    assert lab.settle() == "0 of 4 workers have begun"
    assert (lab.run.state, lab.run.reason) == (RunState.PREPARING, ""), "nothing is in its way"
    assert lab.api.changes == ["create jobsets/train"]
    lab.pods()
    lab.settle()
    assert (lab.run.state, lab.run.attempt and lab.run.attempt.number) == (RunState.RUNNING, 1)
    lab.pods(*[exited(0)] * 4)
    lab.ended("Completed")
    lab.settle()
    assert (lab.run.state, lab.run.reason) == (RunState.SUCCEEDED, "every worker exited with 0")
    assert lab.run.attempt is not None
    assert [end.exit_status for end in lab.run.attempt.ends] == [0, 0, 0, 0]
    manifest = load_manifest(lab.services, "r1")
    assert [(row["cause"], row["hosts"][3]["hostname"]) for row in manifest["attempts"]] == [
        ("succeeded", "node-1-1")
    ]
    assert lab.api.changes == ["create jobsets/train"], "nothing is deleted of what ended by itself"


def test_it_waits_for_admission_with_its_place_and_is_no_failure(lab: Lab) -> None:
    lab.api.put("localqueues", "tpu", {"spec": {"clusterQueue": "cq"}})
    lab.submit(queue="tpu")
    lab.settle()
    uid = lab.api.get("jobsets", "train")["metadata"]["uid"]
    lab.api.put("jobsets", "train", {"spec": {"suspend": True}})
    lab.api.put("workloads", "other", workload("other", queue="tpu", chips=8, created="2026-11-26T11:00:00Z"))
    why = "insufficient unused quota for google.com/tpu in flavor v6e, 8 more needed"
    lab.api.put("workloads", "w", workload("train", queue="tpu", chips=16, why=why, owner_uid=uid))
    assert lab.settle() == f"admission (place 2 in queue tpu: {why})"
    assert (lab.run.state, lab.run.attempt) == (RunState.WAITING, None)
    assert lab.run.reason == f"place 2 in queue tpu: {why}"
    lab.api.put("workloads", "w", workload("train", queue="tpu", chips=16, admitted=True, owner_uid=uid))
    lab.api.put("jobsets", "train", {"spec": {"suspend": False}})
    lab.pods()
    lab.settle()
    assert (lab.run.state, lab.run.reason) == (RunState.RUNNING, "")


def test_a_restart_is_an_attempt_and_lost_hosts_do_not_count_as_failures(lab: Lab) -> None:
    lab.start()
    lab.jobset(restarts=1, restartsCountTowardsMax=0)
    lab.pods(restart=1)
    lab.settle()
    lab.jobset(restarts=2, restartsCountTowardsMax=1)
    lab.pods(restart=2)
    lab.settle()
    assert lab.run.attempt is not None
    assert (lab.run.attempt.number, lab.run.failures, lab.run.preemptions) == (3, 1, 1)
    causes = [row["cause"] for row in load_manifest(lab.services, "r1")["attempts"]]
    assert causes == ["preempted", "failed"]


def test_its_price_is_by_the_region_of_the_node_that_runs_it(lab: Lab) -> None:
    labels = {"topology.kubernetes.io/region": "us-east5"}
    lab.api.put("nodes", "node-0-0", {"metadata": {"labels": labels}}, namespace="")
    lab.start()
    lab.place.clock.advance(3600.0)
    lab.pods(*[exited(0)] * 4)
    lab.ended("Completed")
    lab.settle()
    end = load_manifest(lab.services, "r1")["end"]
    assert end["usd"] == pytest.approx(end["chip_hours"] * 2.7, abs=0.01)
    assert end["chip_hours"] == pytest.approx(16, abs=0.2)


def at(hours: int) -> str:
    """A time so long after the run was asked for, as clusters write it."""
    return f"2026-09-21T{15 + hours:02d}:00:00Z"


@pytest.mark.parametrize("queue", ["", "tpu"])
def test_it_costs_from_its_first_pod_or_admission_to_its_end_whenever_somebody_looks(
    lab: Lab, queue: str
) -> None:
    lab.submit(queue=queue)
    lab.settle()
    uid = lab.api.get("jobsets", "train")["metadata"]["uid"]
    if queue:
        lab.api.put("workloads", "w", workload("train", queue=queue, chips=16, why="full", owner_uid=uid))
    assert lab.settle()
    assert lab.run.attempt is None or lab.run.attempt.provisioned_at is None
    lab.place.clock.advance(6 * 86400.0)
    if queue:
        admitted = workload("train", queue=queue, chips=16, admitted=True, owner_uid=uid)
        admitted["status"]["conditions"] = [{**condition("Admitted"), "lastTransitionTime": at(2)}]
        lab.api.put("workloads", "w", admitted)
    ended = {"terminated": {"exitCode": 0, "startedAt": at(2), "finishedAt": at(3)}}
    lab.pods(*[ended] * 4, created=at(2))
    lab.jobset(conditions=[{**condition("Completed"), "lastTransitionTime": at(3)}])
    lab.settle()
    assert lab.run.state is RunState.SUCCEEDED
    assert load_manifest(lab.services, "r1")["end"]["chip_hours"] == 16.0
    assert render_time(lab.run.ended_at) == at(3)


def test_a_restart_ends_an_attempt_when_the_next_pods_were_made(lab: Lab) -> None:
    lab.submit()
    lab.settle()
    lab.pods(created=at(0))
    lab.settle()
    lab.place.clock.advance(6 * 86400.0)
    lab.jobset(restarts=1, restartsCountTowardsMax=0)
    lab.pods(restart=1, created=at(1))
    lab.settle()
    [row] = load_manifest(lab.services, "r1")["attempts"]
    assert row["ended"] == at(1)
    assert lab.run.attempt is not None
    assert render_time(lab.run.attempt.provisioned_at) == at(1)


def test_attempts_that_nobody_saw_have_their_numbers(lab: Lab) -> None:
    lab.start()
    lab.jobset(restarts=3, restartsCountTowardsMax=2)
    lab.pods(restart=3)
    lab.settle()
    assert lab.run.attempt is not None
    assert (lab.run.attempt.number, lab.run.failures, lab.run.preemptions) == (4, 2, 1)


def test_exits_are_kept_although_a_restart_removes_the_pods(lab: Lab) -> None:
    lab.start()
    lab.line(1, "Traceback (most recent call last):\n2026-11-26T12:00:01.6Z ValueError: bad shape")
    lab.pods(None, exited(1))
    lab.settle()
    lab.jobset(restarts=1, restartsCountTowardsMax=1)
    lab.pods(restart=1)
    lab.settle()
    [row] = load_manifest(lab.services, "r1")["attempts"]
    assert [(each["worker"], each["exit_status"]) for each in row["exits"]] == [(1, 1)]
    assert row["failure"]["evidence"] == "ValueError: bad shape"


def test_an_eviction_ends_the_attempt_and_it_waits_again(lab: Lab) -> None:
    lab.start()
    lab.api.put("jobsets", "train", {"spec": {"suspend": True}})
    assert lab.settle() == "admission (somebody suspended it)"
    assert (lab.run.state, lab.run.preemptions) == (RunState.WAITING, 1)
    lab.api.put("jobsets", "train", {"spec": {"suspend": False}})
    lab.settle()
    assert lab.run.attempt is not None
    assert (lab.run.state, lab.run.attempt.number) == (RunState.RUNNING, 2)


def test_a_failure_is_told_by_what_its_workers_wrote(lab: Lab) -> None:
    lab.start()
    lab.line(2, "ModuleNotFoundError: No module named 'flax'")
    lab.pods(None, None, exited(1))
    lab.ended("Failed", "jobset failed due to reaching max number of restarts")
    lab.settle()
    assert lab.run.state is RunState.FAILED
    assert lab.run.reason.startswith("worker 2 ended with status 1; ")
    assert lab.run.attempt is not None
    assert lab.run.attempt.failure is not None
    assert lab.run.attempt.failure.worker == 2


def test_a_stop_deletes_its_jobset_and_waits_until_its_pods_are_gone(lab: Lab) -> None:
    lab.start()
    lab.api.keeps.add("train")
    request_stop(lab.services, "r1")
    assert lab.settle() == "JobSet train is being deleted; its pods have their grace"
    assert lab.run.state is RunState.STOPPING
    lab.line(0, "saved at step 12")
    lab.settle()
    lab.api.remove("jobsets", "train")
    lab.settle()
    assert (lab.run.state, lab.run.reason) == (RunState.STOPPED, "stopped")
    assert lab.output(0) == "saved at step 12\n"
    assert lab.api.changes == ["create jobsets/train", "delete jobsets/train"]


def test_a_run_that_was_stopped_before_it_was_applied_never_gets_there(lab: Lab) -> None:
    lab.submit()
    request_stop(lab.services, "r1")
    lab.settle()
    assert (lab.run.state, lab.api.changes) == (RunState.STOPPED, [])


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (waiting("ImagePullBackOff", "manifest unknown"), "image img cannot be pulled"),
        (waiting("CreateContainerConfigError", 'secret "train" not found'), 'secret "train" not found'),
    ],
)
def test_what_can_never_begin_fails_and_leaves_nothing(lab: Lab, state: dict[str, Any], said: str) -> None:
    lab.submit()
    lab.settle()
    lab.pods(state)
    lab.settle()
    assert lab.run.state is RunState.FAILED
    assert said in lab.run.reason
    assert lab.api.names("jobsets") == []
    [row] = load_manifest(lab.services, "r1")["attempts"]
    assert row["cause"] == str(Cause.NOT_SET_UP)


def test_what_the_cluster_refuses_fails_with_its_words_and_is_not_tried_again(lab: Lab) -> None:
    lab.submit()
    lab.api.refused["jobsets"] = 'admission webhook "vjobset.kb.io" denied the request: names are too long'
    with pytest.raises(Exception, match="names are too long"):
        lab.settle()
    assert (lab.run.state, lab.api.changes) == (RunState.FAILED, [])
    assert "names are too long" in lab.run.reason


def test_one_that_somebody_removed_is_over_and_says_so(lab: Lab) -> None:
    lab.start()
    lab.api.remove("jobsets", "train")
    lab.settle()
    assert lab.run.state is RunState.STOPPED
    assert lab.run.reason.startswith("stopped: JobSet train was deleted by somebody else")


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("mark", [{}, {"annotations": {"tpuctl/record": "mark-2"}}], ids=["none", "other"])
def test_a_jobset_of_the_same_name_and_run_of_another_store_is_left_alone(
    lab: Lab, mark: dict[str, Any], stop: bool
) -> None:
    lab.api.put("jobsets", "train", {"metadata": {**DOCUMENT["metadata"], "annotations": {}, **mark}})
    lab.submit()
    if stop:
        request_stop(lab.services, "r1")
    lab.settle()
    assert (lab.run.state, lab.api.changes) == (RunState.STOPPED if stop else RunState.FAILED, [])
    assert stop or "another JobSet train" in lab.run.reason


def test_an_end_that_is_seen_first_after_it_has_its_start_and_its_hosts(lab: Lab) -> None:
    lab.submit()
    lab.settle()
    lab.place.clock.advance(90 * 86400.0)
    lab.pods(*[exited(0)] * 4)
    lab.ended("Completed")
    lab.settle()
    [row] = load_manifest(lab.services, "r1")["attempts"]
    assert (row["started"], row["hosts"][3]["hostname"]) == ("2026-11-26T12:00:00Z", "node-1-1")
