"""A run on a cluster, step by step: what tpuctl applies, notes and deletes while JobSet, Kueue and kubelets
act, whose part the test plays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.builders import a_run
from tests.support.crashing import STORE_CHANGES, Crash, Crashing, CrashPoint
from tests.support.kube_api import KubeApi, serve_kube
from tests.support.kube_objects import a_cluster_run, exited, pod, waiting, workload
from tests.support.memory.services import MemoryPlace
from tests.support.soak import long
from tpuctl.engine.events import Warn
from tpuctl.kube.client import Cluster, connect
from tpuctl.kube.pod_logs import stamp_key
from tpuctl.kube.reconcile import step_cluster_run
from tpuctl.model.clusters import ClusterPlace
from tpuctl.model.records import Cause, RunRecord, RunState
from tpuctl.provenance.parts import begin_manifest, load_manifest
from tpuctl.runs.reconcile import request_stop
from tpuctl.state.repository import Versioned, get_run, save
from tpuctl.watch.clusters import look_at_clusters
from tpuctl.watch.cycle import secrets_of_active_runs

NAMES = [f"train-slice-{job}-{index}" for job in range(2) for index in range(2)]
DOCUMENT: dict[str, Any] = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {
        "name": "train",
        "labels": {"tpuctl/run": "r1"},
        "annotations": {"tpuctl/record": "mark-1"},
    },
    "spec": {"failurePolicy": {"maxRestarts": 3}},
}


class Lab:
    """One machine, one cluster, and a run `r1` that was written down."""

    def __init__(self, place: MemoryPlace, api: KubeApi, cluster: Cluster) -> None:
        self.place = place
        self.api = api
        self.cluster: Any = cluster
        self.services: Any = place.machine()

    def submit(self, queue: str = "") -> None:
        services = self.services
        documents = services.store.put_blob(json.dumps([DOCUMENT]).encode())
        here = a_cluster_run(uid="", queue=queue, documents=documents)
        run = a_run(attempt=None, state=RunState.WAITING, cluster=here, slice_name=str(here.place))
        begin_manifest(services, run, None)
        save(services, Versioned(run, 0), run)

    @property
    def run(self) -> RunRecord:
        return get_run(self.services, "r1").record

    def settle(self, *, acts: bool = True) -> str:
        """Steps until there is nothing to do; what it waits for then."""
        for _ in range(20):
            outcome = step_cluster_run(self.services, self.cluster, "r1", acts=acts)
            if not outcome.acted:
                return outcome.verdict.why
        raise AssertionError("it never comes to rest")

    def pods(self, *states: dict[str, Any] | None, restart: int = 0) -> None:
        """The pods of an attempt; None for one that runs."""
        for name in self.api.names("pods"):
            self.api.remove("pods", name)
        for number, name in enumerate(NAMES):
            state = states[number] if number < len(states) else None
            job, index = divmod(number, 2)
            self.api.put("pods", name, pod(name, job=job, index=index, state=state, restart=restart))

    def jobset(self, **status: Any) -> None:
        self.api.put("jobsets", "train", {"status": status})

    def ended(self, kind: str, said: str = "") -> None:
        self.jobset(conditions=[{"type": kind, "status": "True", "message": said}])

    def line(self, number: int, text: str, at: str = "2026-11-26T12:00:01.5Z") -> None:
        log = self.api.logs.get((NAMES[number], "program"), b"")
        self.api.logs[NAMES[number], "program"] = log + f"{at} {text}\n".encode()

    def output(self, worker: int, attempt: int = 1) -> str:
        return str(self.services.logs.read("r1", attempt, worker, "stdout", 0, 1 << 20).decode())


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    with serve_kube() as api:
        path = api.write_kubeconfig(tmp_path / "config")
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
        place = MemoryPlace()
        try:
            yield Lab(place, api, connect(ClusterPlace("tpu", "default")))
        finally:
            place.close()


def test_it_is_applied_runs_and_succeeds_with_its_manifest(lab: Lab) -> None:
    lab.submit()
    assert lab.settle() == "0 of 4 workers have begun"
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


def start(lab: Lab) -> None:
    lab.submit()
    lab.settle()
    lab.pods()
    lab.settle()


def test_a_restart_is_an_attempt_and_lost_hosts_do_not_count_as_failures(lab: Lab) -> None:
    start(lab)
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


def test_attempts_that_nobody_saw_have_their_numbers(lab: Lab) -> None:
    start(lab)
    lab.jobset(restarts=3, restartsCountTowardsMax=2)
    lab.pods(restart=3)
    lab.settle()
    assert lab.run.attempt is not None
    assert (lab.run.attempt.number, lab.run.failures, lab.run.preemptions) == (4, 2, 1)


def test_exits_are_kept_although_a_restart_removes_the_pods(lab: Lab) -> None:
    start(lab)
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
    start(lab)
    lab.api.put("jobsets", "train", {"spec": {"suspend": True}})
    assert lab.settle() == "admission (somebody suspended it)"
    assert (lab.run.state, lab.run.preemptions) == (RunState.WAITING, 1)
    lab.api.put("jobsets", "train", {"spec": {"suspend": False}})
    lab.settle()
    assert lab.run.attempt is not None
    assert (lab.run.state, lab.run.attempt.number) == (RunState.RUNNING, 2)


def test_a_failure_is_told_by_what_its_workers_wrote(lab: Lab) -> None:
    start(lab)
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
    start(lab)
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
    start(lab)
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


def test_a_jobset_that_comes_between_a_look_and_its_own_is_not_taken_over(lab: Lab) -> None:
    lab.submit()
    read = lab.cluster.get

    def late(kind: str, name: str) -> Any:
        found = read(kind, name)
        lab.api.put("jobsets", "train", {"metadata": {"labels": {"tpuctl/run": "r1"}}})
        return found

    lab.cluster.get = late
    lab.settle()
    lab.settle()
    assert (lab.run.state, lab.api.changes) == (RunState.FAILED, [])


def test_output_is_fetched_once_whole_and_with_its_times(lab: Lab) -> None:
    start(lab)
    lab.line(0, "a", "2026-11-26T12:00:01.123456789Z")
    lab.line(3, "b", "2026-11-26T12:00:01Z")
    lab.settle()
    lab.line(0, "c", "2026-11-26T12:00:01.2Z")
    lab.line(0, "d", "2026-11-26T12:00:05Z")
    lab.settle()
    lab.settle()
    assert (lab.output(0), lab.output(3)) == ("a\nc\nd\n", "b\n")
    times = lab.services.logs.read("r1", 1, 0, "stdout-times", 0, 1000).decode().split()
    assert times[-2:] == ["000000000000006", "1795694405000"]
    assert lab.services.output().count("a\n") == 1


def test_a_fetch_that_was_cut_off_before_its_cursor_writes_the_same_again(lab: Lab) -> None:
    start(lab)
    lab.line(0, "a")
    logs, point = lab.services.logs, CrashPoint(3)  # its log, its times, its cursor
    lab.services.logs = Crashing(logs, point, lambda name, _: name in {"write", "append"})
    with pytest.raises(Crash):
        lab.settle()
    lab.services.logs = logs
    lab.line(0, "b", "2026-11-26T12:00:02Z")
    lab.settle()
    assert lab.output(0) == "a\nb\n"


def test_progress_bars_keep_all_they_write_and_offsets_of_a_node_are_those_of_its_log(lab: Lab) -> None:
    start(lab)
    for at in ("2026-11-26T14:00:01.1+02:00", "2026-11-26T14:00:02.1+02:00"):
        lab.line(0, " 10%\r 20%\r\x0b 30%", at)
        lab.settle()
    assert lab.output(0) == " 10%\r 20%\r\x0b 30%\n" * 2


def test_more_than_a_piece_within_one_second_comes_whole(lab: Lab) -> None:
    start(lab)
    for number in range(9):
        lab.line(0, str(number) * (1 << 20), f"2026-11-26T12:00:01.{number}Z")
    lab.line(0, "end", "2026-11-26T12:00:02Z")
    lab.settle()
    found = lab.services.logs.read("r1", 1, 0, "stdout", 0, 1 << 24)
    assert (len(found), found[-5:]) == (9 * ((1 << 20) + 1) + 4, b"\nend\n")


def test_a_log_that_cannot_be_read_is_told_once_and_holds_up_nothing(lab: Lab) -> None:
    start(lab)
    for number in range(4):
        lab.line(number, "a")
    lab.api.lost |= set(NAMES[:3])
    lab.settle()
    assert lab.output(3) == ""
    lab.settle()
    assert lab.output(3) == "a\n"
    lab.settle()
    told = [each for each in lab.services.events if isinstance(each, Warn)]
    assert [each.text.split(":")[0] for each in told] == [
        f"output of worker {number} cannot be read" for number in range(3)
    ]
    lab.api.lost.clear()
    request_stop(lab.services, "r1")
    lab.settle()
    assert (lab.run.state, lab.output(0)) == (RunState.STOPPED, "a\n")


def test_an_end_that_is_seen_first_after_it_has_its_start_and_its_hosts(lab: Lab) -> None:
    lab.submit()
    lab.settle()
    lab.pods(*[exited(0)] * 4)
    lab.ended("Completed")
    lab.settle()
    [row] = load_manifest(lab.services, "r1")["attempts"]
    assert (row["started"], row["hosts"][3]["hostname"]) == ("2026-11-26T12:00:00Z", "node-1-1")


def test_times_are_ordered_whatever_their_digits() -> None:
    stamps = [
        "2026-11-26T12:00:00Z",
        "2026-11-26T12:00:00.05Z",
        "2026-11-26T12:00:00.5Z",
        "2026-11-26T12:00:01.1Z",
    ]
    assert sorted(stamps, key=stamp_key) == stamps
    assert stamp_key("") < stamp_key(stamps[0])


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
    start(lab)
    lab.api.token = "another"
    [line] = look_at_clusters(lab.services, [lab.run])
    assert "refuses the credentials" in line.why
    assert lab.run.state is RunState.RUNNING


def whole_life(lab: Lab) -> None:
    """From the record to the end of a stop, with all that happens on the cluster in between."""
    if lab.run.attempt is None:
        lab.settle()
        lab.pods()
        lab.line(0, "a") if not lab.api.logs else None
    lab.settle()
    if not lab.run.state.final and lab.run.attempt and lab.run.attempt.number == 1 and not lab.run.stop_asked:
        lab.jobset(restarts=1)
        lab.pods(restart=1)
        lab.settle()
    request_stop(lab.services, "r1")
    lab.settle()


def changes_of_a_life(lab: Lab) -> int:
    point = CrashPoint()
    _arm(lab, point)
    whole_life(lab)
    return point.count


def _arm(lab: Lab, point: CrashPoint) -> Any:
    """Puts `point` before store and cluster; the cluster as it was."""
    cluster = lab.cluster
    lab.services.store = Crashing(lab.services.store, point, lambda name, _: name in STORE_CHANGES)
    lab.cluster = Crashing(cluster, point, lambda name, _: name in {"create", "delete"})
    return cluster


@pytest.mark.parametrize("after", [long(False), True], ids=["before", "after"])
def test_a_crash_at_any_change_converges_and_leaves_nothing(
    lab: Lab, after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.submit()
    count = changes_of_a_life(lab)
    assert count > 15
    for at in range(1, count + 1):
        with serve_kube() as api:
            path = api.write_kubeconfig(tmp_path / f"config-{at}")
            monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
            place = MemoryPlace()
            again = Lab(place, api, connect(ClusterPlace("tpu", "default")))
            again.submit()
            cluster = _arm(again, CrashPoint(at, after=after))
            with pytest.raises(Crash):
                whole_life(again)
            again.services, again.cluster = place.machine(process=2), cluster
            whole_life(again)
            assert again.run.state is RunState.STOPPED, at
            assert api.names("jobsets") == [], at
            assert api.changes.count("delete jobsets/train") <= 2, at
            manifest = load_manifest(again.services, "r1")
            numbers = [row["number"] for row in manifest["attempts"]]
            assert numbers == sorted(set(numbers)), at
            assert manifest["end"]["state"] == "stopped", at
            place.close()


def test_what_is_kept_up_on_a_cluster_asks_this_machine_for_no_secrets(lab: Lab) -> None:
    lab.submit()
    run = replace(lab.run, spec=replace(lab.run.spec, secrets={"TOKEN": "env:TOKEN"}))
    save(lab.services, get_run(lab.services, "r1"), run)
    assert secrets_of_active_runs(lab.services) == {}
    save(lab.services, get_run(lab.services, "r1"), replace(run, cluster=None))
    assert secrets_of_active_runs(lab.services) == {"env:TOKEN": "r1"}
