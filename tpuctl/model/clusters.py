"""Where on Kubernetes a run is: `gke:CONTEXT/NAMESPACE`, by the contexts of kubectl."""

from __future__ import annotations

import re

from msgspec import Struct

from tpuctl.errors import UsageError
from tpuctl.model.hosts import Tier

PREFIX = "gke:"
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""A label of RFC 1123, as the API server wants it."""


class ClusterPlace(Struct, frozen=True):
    """A namespace of a cluster, which is what kubectl's context calls it. Without a namespace: that of the
    context."""

    context: str
    namespace: str = ""

    def __str__(self) -> str:
        return f"{PREFIX}{self.context}" + (f"/{self.namespace}" if self.namespace else "")

    @property
    def of_gcloud(self) -> tuple[str, str]:
        """Project and location in a context's name that gcloud gave it, `gke_PROJECT_LOCATION_CLUSTER`; empty
        in others."""
        parts = self.context.split("_")
        return (parts[1], parts[2]) if len(parts) == 4 and parts[0] == "gke" else ("", "")


class ClusterRun(Struct, frozen=True):
    """A run that has no slice: its JobSet `name` on a cluster, and what was seen of that last. `documents` is
    the blob with all that is applied for it, as JSON."""

    place: ClusterPlace
    name: str
    documents: str
    record: str
    """A random id that stands in its JobSet, too: the proof that it is the one of this record."""
    hosts: int
    """Pods of each of its `slices`; a worker is a pod."""
    slices: int = 1
    containers: tuple[str, ...] = ("program",)
    """Those of a pod that run the program: its processes."""
    chips: int = 0
    generation: str = ""
    tier: Tier = Tier.ON_DEMAND
    region: str = ""
    """Where the cluster is; empty while nothing has told."""
    queue: str = ""
    uid: str = ""
    """Of the JobSet, once it was applied."""
    restarts: int = 0
    """Of the JobSet as a whole, and how many of them `counted` as failures."""
    counted: int = 0
    waits_for: str = ""
    """Why it does not run, in the words of Kueue, the scheduler or a kubelet."""

    @property
    def workers(self) -> int:
        return self.hosts * self.slices


def is_cluster(name: str | None) -> bool:
    """Whether what `--on` names is a cluster, not a slice: no slice has a colon in its name."""
    return name is not None and name.startswith(PREFIX)


def parse_cluster(text: str) -> ClusterPlace:
    """What `gke:CONTEXT[/NAMESPACE]` says. Raises UsageError."""
    hint = "--on gke:CONTEXT or gke:CONTEXT/NAMESPACE; kubectl config get-contexts lists contexts"
    context, slash, namespace = text.removeprefix(PREFIX).partition("/")
    if not is_cluster(text) or not context:
        raise UsageError.of("on", f"{text!r} names no cluster", hint)
    if slash and not _NAMESPACE.fullmatch(namespace):
        raise UsageError.of("on", f"{namespace!r} cannot be the name of a namespace", hint)
    return ClusterPlace(context, namespace)


def refuse_on_cluster(run_id: str, cluster: ClusterRun | None, command: str) -> None:
    """Raises UsageError for a command that asks tpuctl's agent on hosts: pods have none."""
    if cluster is None:
        return
    where = f"--context {cluster.place.context} --namespace {cluster.place.namespace}"
    raise UsageError(
        f"run {run_id} is on a cluster: `tpuctl {command}` asks tpuctl's agent on hosts, and pods have none",
        hint=f"kubectl {where} get pods -l jobset.sigs.k8s.io/jobset-name={cluster.name}",
    )
