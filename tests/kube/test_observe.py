"""What JobSets, Workloads and pods say of a run, and what follows from it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.builders import a_run, an_attempt
from tests.support.kube_objects import a_cluster_run, exited, jobset, pod, waiting, workload
from tpuctl.hosts.protocol import WorkerState
from tpuctl.kube.observe import NOTHING, ClusterRunObservation, observe
from tpuctl.kube.plan import end_reason, plan_cluster_run, restart_cause
from tpuctl.kube.states import ClusterEffect, ClusterEvent
from tpuctl.model.attempts import AttemptPhase, Cause
from tpuctl.model.clusters import ClusterRun
from tpuctl.model.records import RunRecord, RunState
from tpuctl.model.verdict import Wait, render_wait

HERE = a_cluster_run()
PLACES = [(job, index) for job in range(2) for index in range(2)]
RUNNING = [pod(f"train-{job}-{index}", job=job, index=index) for job, index in PLACES]


def seen_of(pods: list[dict[str, Any]], here: ClusterRun = HERE, **changes: Any) -> ClusterRunObservation:
    return observe(here, jobset(**changes), [], None, pods)


def with_first(**changes: Any) -> list[dict[str, Any]]:
    """Four pods that run, but for the first."""
    return [pod("train-0-0", job=0, index=0, **changes), *RUNNING[1:]]


def test_workers_are_counted_over_slices_and_processes_over_containers() -> None:
    two = replace(HERE, hosts=1, slices=1, containers=("program-0", "program-1"))
    status = [
        {"name": "program-0", "state": exited(0)},
        {"name": "program-1", "state": exited(1, at="2026-11-26T12:00:05Z")},
    ]
    [one] = seen_of([pod("p", job=0, index=0, containerStatuses=status, phase="Failed")], two).workers
    assert (one.worker, one.process, one.exit_status) == (0, 1, 1)
    assert [(each.process, each.exit_status) for each in one.processes] == [(0, 0), (1, 1)]
    assert [each.worker for each in seen_of(RUNNING).workers] == [0, 1, 2, 3]


def test_of_several_pods_of_a_worker_the_newest_counts_and_those_of_earlier_attempts_not_at_all() -> None:
    older = pod("old", job=0, index=0, state=exited(1), created="2026-11-26T11:00:00Z")
    earlier = pod("earlier", job=0, index=1, state=exited(1), restart=0)
    pods = [older, pod("new", job=0, index=0, restart=1), earlier]
    seen = seen_of([{**pods[0]}, *pods[1:]], restarts=1)
    assert [each.pod for each in seen.pods] == ["new"]


@pytest.mark.parametrize(
    ("state", "more", "expected"),
    [
        (exited(3), {}, (WorkerState.EXITED, 3, None)),
        (exited(137), {}, (WorkerState.EXITED, None, 9)),
        (exited(0), {}, (WorkerState.EXITED, 0, None)),
        ({"running": {}}, {}, (WorkerState.RUNNING, None, None)),
        (waiting("PodInitializing"), {}, (WorkerState.ABSENT, None, None)),
        (
            exited(143),
            {"conditions": [{"type": "DisruptionTarget", "status": "True", "message": "preempted"}]},
            (WorkerState.LOST, None, 15),
        ),
        ({}, {"phase": "Failed", "reason": "NodeLost"}, (WorkerState.LOST, None, None)),
    ],
)
def test_how_a_pod_stands_is_how_its_worker_stands(
    state: dict[str, Any], more: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    [found] = seen_of([pod("p", job=0, index=0, state=state, **more)]).workers
    assert (found.state, found.exit_status, found.signal) == expected


NOT_THERE = 'Back-off pulling image "nope:1": ErrImagePull: failed to resolve reference: not found'
UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}]


@pytest.mark.parametrize(
    ("changes", "hopeless", "said"),
    [
        ({"state": waiting("ImagePullBackOff", NOT_THERE)}, True, "worker 0: image img cannot be pulled"),
        ({"state": waiting("InvalidImageName", "bad")}, True, "cannot be pulled (InvalidImageName: bad)"),
        ({"state": waiting("ErrImagePull", "i/o timeout")}, False, "i/o timeout"),
        ({"state": waiting("PodInitializing"), "init": waiting("ErrImagePull", "denied")}, True, "denied"),
        ({"state": waiting("CreateContainerConfigError", 'secret "train" not found')}, True, 'secret "train"'),
        (
            {"state": waiting("CreateContainerConfigError", "couldn't find key TOKEN in Secret default/train")},
            True,
            "couldn't find key TOKEN",
        ),
        (
            {"state": waiting("ContainerCreating"), "conditions": UNSCHEDULABLE},
            False,
            "0/3 nodes are available",
        ),
        ({"state": waiting("ContainerCreating")}, False, ""),
    ],
)
def test_why_a_pod_does_not_begin_is_told_and_whether_it_ever_can(
    changes: dict[str, Any], hopeless: bool, said: str
) -> None:
    seen = seen_of(with_first(**changes))
    assert seen.pods[0].hopeless is hopeless
    assert said in seen.stuck


def test_what_waits_for_admission_has_its_place_and_kueues_reason() -> None:
    here = replace(HERE, queue="tpu")
    waits = workload("train", queue="tpu", chips=16, why="8 more needed", owner_uid="uid-7")
    other = workload("train", queue="tpu", chips=16, why="another", owner_uid="uid-1")
    suspended = jobset(suspended=True)
    assert observe(here, suspended, [other, waits], 2, []).waits_for == "place 2 in queue tpu: 8 more needed"
    assert observe(here, suspended, [other], None, []).waits_for.startswith("Kueue has not looked at it yet")
    admitted = workload("train", queue="tpu", chips=16, admitted=True, owner_uid="uid-7")
    assert observe(here, jobset(), [admitted], None, []).waits_for == ""
    assert observe(HERE, jobset(), [], None, []).waits_for == ""


def run(**changes: Any) -> RunRecord:
    return a_run(cluster=HERE, attempt=an_attempt(workers=(0, 1, 2, 3)), **changes)


STARTING = {"attempt": an_attempt(state=AttemptPhase.PREPARING, workers=(0, 1, 2, 3)), "cluster": HERE}
QUEUED = {"attempt": None, "cluster": replace(HERE, queue="tpu")}
ASKED = {"attempt": None, "cluster": replace(HERE, uid="")}
PENDING = with_first(state=waiting("ContainerCreating"))
E_, F_ = ClusterEvent, ClusterEffect
PLANS: list[tuple[str, dict[str, Any], ClusterRunObservation, ClusterEvent, ClusterEffect | None]] = [
    ("nothing is there", ASKED, NOTHING, E_.ABSENT, F_.APPLY),
    ("a crash left it", ASKED, seen_of(RUNNING), E_.RUNS, F_.APPLY),
    ("another has its name", ASKED, seen_of([], run="r0"), E_.TAKEN, F_.FINISH),
    ("stopped before", {**ASKED, "stop_asked": True}, NOTHING, E_.GONE, F_.FINISH),
    ("stopped, and it is there", {**ASKED, "stop_asked": True}, seen_of([]), E_.TO_BE_DELETED, F_.DELETE),
    ("another's is not deleted", {**ASKED, "stop_asked": True}, seen_of([], run="r0"), E_.GONE, F_.FINISH),
    ("it is queued", QUEUED, seen_of([], suspended=True), E_.WAITS, F_.NOTE),
    ("it is admitted", QUEUED, seen_of([]), E_.STARTS, F_.BEGIN_ATTEMPT),
    ("it ended unseen", QUEUED, seen_of([], ended="Completed"), E_.COMPLETED, F_.BEGIN_ATTEMPT),
    ("pods begin", STARTING, seen_of(PENDING), E_.STARTS, F_.NOTE),
    ("all have begun", STARTING, seen_of(RUNNING), E_.RUNS, F_.MARK_RUNNING),
    ("one ended at once", STARTING, seen_of(with_first(state=exited(0))), E_.RUNS, F_.MARK_RUNNING),
    (
        "it never can",
        STARTING,
        seen_of(with_first(state=waiting("InvalidImageName"))),
        E_.HOPELESS,
        F_.GIVE_UP,
    ),
    ("it goes on", {}, seen_of(RUNNING), E_.RUNS, F_.NOTE),
    ("it restarts", {}, seen_of([], restarts=1), E_.RESTARTED, F_.NEXT_ATTEMPT),
    ("it restarted, then ended", {}, seen_of([], restarts=1, ended="Failed"), E_.RESTARTED, F_.NEXT_ATTEMPT),
    ("it is evicted", {}, seen_of([], suspended=True), E_.EVICTED, F_.END_ATTEMPT),
    ("it succeeded", {}, seen_of([], ended="Completed"), E_.COMPLETED, F_.FINISH),
    ("it failed", {}, seen_of([], ended="Failed", said="too many restarts"), E_.FAILED, F_.FINISH),
    ("somebody removed it", {}, NOTHING, E_.REMOVED, F_.FINISH),
    ("somebody made it anew", {}, seen_of([], uid="uid-8"), E_.REMOVED, F_.FINISH),
    ("somebody removes it", {}, seen_of(RUNNING, leaving=True), E_.LEAVING, None),
    ("it is to stop", {"stop_asked": True}, seen_of(RUNNING), E_.TO_BE_DELETED, F_.DELETE),
    ("it stops", {"stop_asked": True}, seen_of(RUNNING, leaving=True), E_.LEAVING, None),
    ("it is gone", {"stop_asked": True}, NOTHING, E_.GONE, F_.FINISH),
    ("it is over", {"state": RunState.FAILED}, seen_of(RUNNING), E_.OVER, None),
]


@pytest.mark.parametrize(
    ("changes", "seen", "event", "effect"), [each[1:] for each in PLANS], ids=[each[0] for each in PLANS]
)
def test_what_is_seen_says_what_is_done(
    changes: dict[str, Any], seen: ClusterRunObservation, event: ClusterEvent, effect: ClusterEffect | None
) -> None:
    record = replace(run(), **changes)
    assert record.cluster is not None
    plan = plan_cluster_run(record, record.cluster, seen)
    assert (plan.event, plan.effect) == (event, effect)
    assert plan.why or record.state.final


def test_waiting_for_admission_is_said_as_a_wait() -> None:
    here = replace(HERE, queue="tpu")
    waits = workload("train", queue="tpu", chips=16, why="8 more needed", owner_uid="uid-7")
    seen = observe(here, jobset(suspended=True), [waits], 1, [])
    verdict = plan_cluster_run(replace(run(), attempt=None, cluster=here), here, seen).verdict
    assert isinstance(verdict, Wait)
    said = render_wait(verdict.why, coming=verdict.coming)
    assert said == "waiting for admission (place 1 in queue tpu: 8 more needed)"


def test_a_restart_that_jobset_counts_was_a_failure_and_another_lost_a_host() -> None:
    assert restart_cause(HERE, seen_of([], restarts=1, counted=1)) is Cause.FAILED
    assert restart_cause(HERE, seen_of([], restarts=1, counted=0)) is Cause.PREEMPTED


def test_how_workers_ended_is_said_with_the_first_of_them() -> None:
    ended = [pod(f"p{index}", job=0, index=index, state=exited(code)) for index, code in enumerate((3, 137))]
    assert end_reason("else", seen_of(ended).workers) == "worker 0-1 ended with status 3"
    assert end_reason("else", seen_of(ended[1:]).workers) == "worker 1 ended with signal 9"
    assert end_reason("else", seen_of(RUNNING).workers) == "else"
