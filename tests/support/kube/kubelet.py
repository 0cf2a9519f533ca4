"""Nodes with TPUs, and what kubelets do on them: they run pods that the scheduler gave them, as processes.

One program for all nodes. All pods know each other's names, as the cluster's DNS would.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import requests

from tests.support.kube.api import KubeApi, Object
from tests.support.kube.container import now
from tests.support.kube.pod import ADDRESS, Pod, host_name

HEARTBEAT_S = 10.0
"""Of the node's lease: the controller manager gives a silent node up after 50 s."""
PODS = "/api/v1/pods"


@dataclass(frozen=True)
class Node:
    """A machine with chips; `labels` are those by which pods choose it."""

    name: str
    chips: int
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> Object:
        taints = {**self.taints, "google.com/tpu": "present"}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": {"kubernetes.io/hostname": self.name, **self.labels}},
            "spec": {
                "taints": [
                    {"key": key, "value": value, "effect": "NoSchedule"} for key, value in taints.items()
                ]
            },
        }

    def status(self, log_port: int) -> Object:
        capacity = {"cpu": "64", "memory": "128Gi", "ephemeral-storage": "1Ti", "pods": "110"}
        capacity["google.com/tpu"] = str(self.chips)
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        return {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [{"type": "InternalIP", "address": ADDRESS}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": log_port}},
            "conditions": [{**ready, "lastHeartbeatTime": now(), "lastTransitionTime": now()}],
        }


class Kubelet:
    """`images`: those that can be pulled, each with its variables."""

    def __init__(
        self, api: KubeApi, folder: Path, nodes: Iterable[Node], images: Mapping[str, Mapping[str, str]]
    ) -> None:
        self.api, self.images = api, images
        self.nodes = {node.name: node for node in nodes}
        self.hosts_file = folder / "hosts"
        self.hosts_file.write_text(f"{ADDRESS} localhost\n")
        self.errors: list[str] = []
        """Of threads that should have none."""
        self._folder = folder
        self._pods: dict[str, Pod] = {}
        self._ended = threading.Event()

    def bucket(self, name: str) -> Path:
        """The folder that pods have as the bucket, or as the claimed disk `disk-CLAIM`."""
        return self._folder / "buckets" / name

    def register(self, log_port: int) -> None:
        """Makes the nodes."""
        for node in self.nodes.values():
            self.api.create("/api/v1/nodes", node.document())
            self.api.patch(f"/api/v1/nodes/{node.name}/status", {"status": node.status(log_port)})
            lease = {"metadata": {"name": node.name}, "spec": self._beat(node)}
            self.api.create("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", lease)

    def find_log(self, namespace: str, name: str, container: str) -> tuple[Path, Callable[[], bool]] | None:
        """Of the newest pod of that name: the file, and whether more may come."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        pod = next((pod for pod in reversed(self._pods.values()) if pod.path == path), None)
        if pod is None or not pod.log_of(container).exists():
            return None
        return pod.log_of(container), pod.is_alive

    def shut_down(self, node: str, grace_s: float = 5.0) -> None:
        """A node's machine goes, with a warning, as in a preemption; another one is there at once."""
        self._stop([pod for pod in self._pods.values() if pod.node == node], grace_s, disrupted=True)

    def _beat(self, node: Node) -> Object:
        return {"holderIdentity": node.name, "leaseDurationSeconds": 40, "renewTime": now()}

    def heartbeats(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            for node in self.nodes.values():
                path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node.name}"
                self.api.patch(path, {"spec": self._beat(node)})

    def watch(self) -> None:
        """Follows the pods of all nodes until `close`, and is then at its end with the server."""
        while not self._ended.is_set():
            listed = self.api.get(PODS)
            for found in listed["items"]:
                self._see(found)
            for event in self._events(listed["metadata"]["resourceVersion"]):
                if event["type"] == "ERROR":  # too old: list again
                    break
                self._see(event["object"])

    def _events(self, version: str) -> Iterator[Object]:
        try:
            with self.api.stream(PODS, watch="true", resourceVersion=version) as answer:
                yield from (json.loads(line) for line in answer.iter_lines() if line)
        except requests.RequestException:  # the server ends each watch after a while
            return

    def _see(self, found: Object) -> None:
        meta, node = found["metadata"], found["spec"].get("nodeName")
        if node not in self.nodes:
            return
        pod = self._pods.get(meta["uid"])
        if "deletionTimestamp" in meta:
            if pod is None or not pod.leaving:
                threading.Thread(target=self._remove, args=(found, pod), daemon=True).start()
        elif pod is None and found.get("status", {}).get("phase") == "Pending":
            self._name(found)
            pod = self._pods[meta["uid"]] = Pod(self, found, self._folder / "pods" / meta["uid"])
            pod.folder.mkdir(parents=True)
            pod.start()

    def _name(self, found: Object) -> None:
        host, subdomain = host_name(found), found["spec"].get("subdomain")
        names = [host]
        if subdomain:
            full = f"{host}.{subdomain}"
            names += [full, f"{full}.{found['metadata']['namespace']}.svc.cluster.local"]
        line = f"{ADDRESS} {' '.join(names)}\n"
        if line not in self.hosts_file.read_text():
            with self.hosts_file.open("a") as file:  # the same file is in running containers
                file.write(line)

    def _remove(self, found: Object, pod: Pod | None) -> None:
        meta = found["metadata"]
        if pod is not None:
            pod.leaving = True
            pod.stop(meta.get("deletionGracePeriodSeconds", 30))
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
        answer = self.api.request("DELETE", path, body)
        if not answer.ok and answer.status_code not in (404, 409):
            self.errors.append(f"{path}: {answer.status_code} {answer.text}")

    def _stop(self, pods: Iterable[Pod], grace_s: float, *, disrupted: bool = False) -> None:
        threads = [
            threading.Thread(target=pod.stop, args=(grace_s,), kwargs={"disrupted": disrupted}) for pod in pods
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def close(self) -> None:
        self._ended.set()
        self._stop(self._pods.values(), 0.0)


@contextmanager
def running_kubelet(kubelet: Kubelet, log_port: int) -> Iterator[Kubelet]:
    """Raises at its end what went wrong in its threads."""
    kubelet.register(log_port)
    for work in (kubelet.heartbeats, kubelet.watch):
        threading.Thread(target=work, daemon=True).start()
    try:
        yield kubelet
    finally:
        kubelet.close()
        if kubelet.errors:
            raise RuntimeError("\n".join(kubelet.errors))
