"""A pod on a node of the rig: its containers, one after another and together, and what is told of them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tests.support.kube.api import KubeApi, Object
from tests.support.kube.container import SYSTEM_PATH, Container, Mount, now
from tests.support.kube.pod_spec import ConfigError, expand, mounts_of, variables_of, volumes_of

ADDRESS = "127.0.0.1"
DISRUPTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "TerminationByKubelet",
    "message": "Pod was terminated in response to imminent node shutdown.",
}
"""As the kubelet says it when its machine shuts down: a preemption, or maintenance."""


def host_name(pod: Object) -> str:
    return str(pod["spec"].get("hostname", pod["metadata"]["name"]))


class Machine(Protocol):
    """What a pod needs of its node."""

    api: KubeApi
    images: Mapping[str, Mapping[str, str]]
    hosts_file: Path

    def bucket(self, name: str) -> Path: ...


class Pod:
    """Begins with `start`. Containers are never restarted, whatever the spec says: pods of a JobSet are not.
    `leaving`: its deletion was seen."""

    def __init__(self, machine: Machine, found: Object, folder: Path) -> None:
        meta = found["metadata"]
        self.spec, self.uid, self.node = found, meta["uid"], found["spec"]["nodeName"]
        self.folder = folder
        self.path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        self._machine = machine
        self._states: dict[str, Object] = {}
        self._begun: dict[str, Container] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._disrupted = False
        self.leaving = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def log_of(self, container: str) -> Path:
        return self.folder / f"{container}.log"

    def stop(self, grace_s: float, *, disrupted: bool = False) -> None:
        """TERM to all containers, KILL after the grace. Returns at its end. `disrupted`: the node goes."""
        with self._lock:
            self._disrupted = self._disrupted or disrupted
            self._stopping.set()
            running = list(self._begun.values())
        for each in running:
            each.send(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        for each in running:
            if each.wait(max(0.0, deadline - time.monotonic())) is None:
                each.send(signal.SIGKILL)
        self._thread.join()

    def _run(self) -> None:
        try:
            phase = self._run_containers()
        except ConfigError as error:
            self._wait_for_ever("CreateContainerConfigError", str(error))
            phase = "Failed"
        reasons = {"reason": "Terminated", "message": DISRUPTED["message"]} if self._disrupted else {}
        self._tell(phase, [DISRUPTED] if self._disrupted else [], reasons)

    def _run_containers(self) -> str:
        spec = self.spec["spec"]
        absent = [each for each in self._containers() if each["image"] not in self._machine.images]
        if absent:
            image = absent[0]["image"]
            self._wait_for_ever(
                "ImagePullBackOff", f'Back-off pulling image "{image}": not found', absent[0]["name"]
            )
            return "Failed"
        volumes = volumes_of(self._machine.api, self.spec, self.folder / "volumes", self._machine.bucket)
        for each in spec.get("initContainers", ()):
            self._begin([each], volumes, "Pending")
            if self._ended(each["name"]):
                return "Failed"
        self._begin(spec["containers"], volumes, "Running")
        statuses = [self._ended(each["name"]) for each in spec["containers"]]
        return "Failed" if any(statuses) else "Succeeded"

    def _containers(self) -> list[Object]:
        return [*self.spec["spec"].get("initContainers", ()), *self.spec["spec"]["containers"]]

    def _begin(self, containers: list[Object], volumes: Mapping[str, Path], phase: str) -> None:
        """All of these together, unless the pod is to stop before."""
        prepared = [(each, self._variables(each)) for each in containers]
        with self._lock:
            if self._stopping.is_set():
                return
            for each, variables in prepared:
                words = [expand(word, variables) for word in (*each.get("command", ()), *each.get("args", ()))]
                mounts = [*mounts_of(each, volumes), Mount(self._machine.hosts_file, "/etc/hosts")]
                container = Container(
                    self.folder / "boxes" / each["name"],
                    words,
                    variables,
                    mounts,
                    host=host_name(self.spec),
                    directory=each.get("workingDir", "/"),
                    log=self.log_of(each["name"]),
                )
                self._begun[each["name"]] = container
                self._states[each["name"]] = {"running": {"startedAt": container.started}}
        self._tell(phase)

    def _variables(self, container: Object) -> dict[str, str]:
        image = self._machine.images[container["image"]]
        return {"PATH": SYSTEM_PATH, **image, **variables_of(self._machine.api, self.spec, container)}

    def _ended(self, name: str) -> int:
        """Waits for a container; its exit status, or that of a killed one if it never began."""
        container = self._begun.get(name)
        status = container.wait() if container is not None else None
        if container is None or status is None:
            return 128 + signal.SIGKILL
        self._states[name] = {
            "terminated": {
                "exitCode": status,
                "reason": "Completed" if status == 0 else "Error",
                "startedAt": container.started,
                "finishedAt": now(),
            }
        }
        return status

    def _wait_for_ever(self, reason: str, message: str, name: str = "") -> None:
        """A container that cannot begin waits until its pod is deleted."""
        name = name or self._containers()[0]["name"]
        self._states[name] = {"waiting": {"reason": reason, "message": message}}
        self._tell("Pending")
        self._stopping.wait()

    def _tell(self, phase: str, conditions: Sequence[Object] = (), more: Object | None = None) -> None:
        """The API server, of the phase and of each container."""
        begun = "True" if phase == "Running" else "False"
        kinds = {"PodScheduled": "True", "Initialized": "False" if phase == "Pending" else "True"}
        kinds |= {"ContainersReady": begun, "Ready": begun}
        rows = [{"type": kind, "status": status, "lastTransitionTime": now()} for kind, status in kinds.items()]
        status = {
            "phase": phase,
            "hostIP": ADDRESS,
            "podIP": ADDRESS,
            "podIPs": [{"ip": ADDRESS}],
            "startTime": self.spec["metadata"]["creationTimestamp"],
            "conditions": [*rows, *({**each, "lastTransitionTime": now()} for each in conditions)],
            **(more or {}),
        }
        for key, kind in (("initContainerStatuses", "initContainers"), ("containerStatuses", "containers")):
            status[key] = [self._row(each) for each in self.spec["spec"].get(kind, ())]
        body = {"metadata": {"uid": self.uid}, "status": status}
        answer = self._machine.api.request("PATCH", f"{self.path}/status", body)
        if not answer.ok and answer.status_code not in (404, 409):  # the pod, or this one of its name, is gone
            raise RuntimeError(f"{self.path}: {answer.status_code} {answer.text}")

    def _row(self, container: Object) -> Object:
        state = self._states.get(container["name"], {"waiting": {"reason": "PodInitializing"}})
        return {
            "name": container["name"],
            "image": container["image"],
            "imageID": container["image"],
            "ready": "running" in state,
            "started": "running" in state,
            "restartCount": 0,
            "state": state,
        }
