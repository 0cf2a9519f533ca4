"""One machine, one cluster and a run there: the test plays JobSet, Kueue and the kubelets."""

from __future__ import annotations

import json
from typing import Any

from tests.support.builders import a_run
from tests.support.kube_api import KubeApi
from tests.support.kube_objects import CREATED, a_cluster_run, pod
from tests.support.memory.services import MemoryPlace
from tpuctl.kube.client import Cluster
from tpuctl.kube.reconcile import step_cluster_run
from tpuctl.model.records import RunRecord, RunState
from tpuctl.provenance.parts import begin_manifest
from tpuctl.state.repository import Versioned, get_run, save

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

    def pods(self, *states: dict[str, Any] | None, restart: int = 0, created: str = CREATED) -> None:
        """The pods of an attempt; None for one that runs."""
        for name in self.api.names("pods"):
            self.api.remove("pods", name)
        for number, name in enumerate(NAMES):
            state = states[number] if number < len(states) else None
            job, index = divmod(number, 2)
            found = pod(name, job=job, index=index, state=state, restart=restart, created=created)
            self.api.put("pods", name, found)

    def jobset(self, **status: Any) -> None:
        self.api.put("jobsets", "train", {"status": status})

    def ended(self, kind: str, said: str = "") -> None:
        self.jobset(conditions=[{"type": kind, "status": "True", "message": said}])

    def line(self, number: int, text: str, at: str = "2026-11-26T12:00:01.5Z") -> None:
        log = self.api.logs.get((NAMES[number], "program"), b"")
        self.api.logs[NAMES[number], "program"] = log + f"{at} {text}\n".encode()

    def output(self, worker: int, attempt: int = 1) -> str:
        return str(self.services.logs.read("r1", attempt, worker, "stdout", 0, 1 << 20).decode())

    def start(self) -> None:
        """Until all pods of its first attempt run."""
        self.submit()
        self.settle()
        self.pods()
        self.settle()
