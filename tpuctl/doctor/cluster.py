"""What keeps runs from a cluster: rules over what was read of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from tpuctl.doctor.finding import Finding, found_by, not_checked, ok, problem, warning
from tpuctl.kube.capacity import NODE_POOL, PodDemand, lack_of_nodes, pools_of
from tpuctl.kube.client import install
from tpuctl.lib.parallel import Reading
from tpuctl.lib.text import counted
from tpuctl.model.clusters import ClusterPlace

Object = Mapping[str, Any]
IDENTITY_NODES = "iam.gke.io/gke-metadata-server-enabled"
"""The label of nodes whose pods have a Workload Identity of GKE."""
GOOGLE_ACCOUNT = "iam.gke.io/gcp-service-account"
"""The annotation of a service account of Kubernetes that acts as one of Google."""
WRITES = ("roles/storage.objectUser", "roles/storage.objectAdmin", "roles/storage.admin")


class ClusterFacts(Struct, frozen=True):
    """What was read of a cluster. `versions`: where each kind is, None where it lacks one; `members`: of each
    role on each bucket; `wanted`: by a run of the type in the settings, and `refusing`: the queues that never
    admit it, with the reason."""

    place: ClusterPlace
    project: str
    versions: Reading[Mapping[str, str | None]]
    namespace: Reading[Object | None]
    nodes: Reading[list[Object]]
    queues: Reading[list[Object]]
    refusing: Reading[Mapping[str, str]]
    account: Reading[Object | None]
    members: Mapping[str, Reading[Mapping[str, Sequence[str]]]]
    wanted: PodDemand | None = None


def judge_cluster(facts: ClusterFacts) -> list[Finding]:
    """All checks of a cluster."""
    versions = facts.versions.value
    if versions is None:
        error = facts.versions.error
        return found_by(
            "context", [problem(error.message if error else "no answer", error.hint if error else None)]
        )
    checks: tuple[tuple[str, Iterable[Finding]], ...] = (
        ("context", _context(facts)),
        ("jobset", _installed(facts.place, "JobSet", versions.get("JobSet"))),
        ("kueue", _kueue(facts, versions.get("Workload"))),
        ("tpu nodes", _nodes(facts.nodes, facts.wanted)),
        ("identity", _identity(facts)),
        *((f"bucket {name}", _bucket(facts, name, found)) for name, found in facts.members.items()),
    )
    return [each for name, found in checks for each in found_by(name, found)]


def _context(facts: ClusterFacts) -> Iterator[Finding]:
    place = facts.place
    missing = facts.namespace.value is None and facts.namespace.error is None
    if missing:
        fix = f"kubectl --context {place.context} create namespace {place.namespace}"
        yield problem(f"{place.context} answers, and has no namespace {place.namespace}", fix)
    else:
        yield ok(f"{place.context} answers; namespace {place.namespace}")


def _installed(place: ClusterPlace, what: str, path: str | None) -> Iterator[Finding]:
    if path is not None:
        yield ok(f"{what} is there, as {path.removeprefix('/apis/')}")
        return
    level = problem if what == "JobSet" else warning
    need = "runs need it" if what == "JobSet" else "--local-queue and `tpuctl quota --on` need it"
    yield level(f"{what} is not installed: {need}", install(place, what))


def _kueue(facts: ClusterFacts, path: str | None) -> Iterator[Finding]:
    yield from _installed(facts.place, "Kueue", path)
    if path is not None and facts.queues.value == []:
        yield warning(f"namespace {facts.place.namespace} has no LocalQueue: runs there are queued by none")
    if path is not None and facts.refusing.error is not None:
        yield not_checked(facts.refusing.error)
    for queue, why in (facts.refusing.value or {}).items():
        fix = f"tpuctl quota --on gke:{facts.place.context}"
        yield warning(f"queue {queue} never admits a run of the setting `accelerator`: {why}", fix)


def _nodes(found: Reading[list[Object]], wanted: PodDemand | None) -> Iterator[Finding]:
    if found.value is None:
        yield not_checked(found.error)
        return
    if not found.value:
        yield warning("no node with TPUs is up; pools that grow from zero do not show before a pod wants them")
    for said in pools_of(found.value):
        yield ok(said)
    if found.value and wanted is not None and (why := lack_of_nodes(wanted, found.value)):
        yield warning(f"{why}: a run of the setting `accelerator` waits until a pool grows to have one")


def _identity(facts: ClusterFacts) -> Iterator[Finding]:
    nodes = facts.nodes.value
    if nodes is None:
        yield not_checked(facts.nodes.error)
        return
    without = [each for each in nodes if (each["metadata"].get("labels") or {}).get(IDENTITY_NODES) != "true"]
    if without:
        pool = (without[0]["metadata"].get("labels") or {}).get(NODE_POOL, "POOL")
        said = (
            f"{counted(len(without), 'node')} with TPUs lack Workload Identity: their pods cannot use buckets"
        )
        yield problem(
            said,
            f"gcloud container node-pools update {pool} --cluster CLUSTER --workload-metadata GKE_METADATA",
        )
    elif nodes:
        yield ok(f"pods act as {_account(facts)}")


def _account(facts: ClusterFacts) -> str:
    """Whom pods of the namespace's default account are for Google, as IAM names them."""
    annotations = ((facts.account.value or {}).get("metadata") or {}).get("annotations") or {}
    if GOOGLE_ACCOUNT in annotations:
        return f"serviceAccount:{annotations[GOOGLE_ACCOUNT]}"
    return f"principal://iam.googleapis.com/projects/NUMBER/locations/global/{_subject(facts)}"


def _subject(facts: ClusterFacts) -> str:
    pool = f"workloadIdentityPools/{facts.project}.svc.id.goog"
    return f"{pool}/subject/ns/{facts.place.namespace}/sa/default"


def _bucket(facts: ClusterFacts, name: str, found: Reading[Mapping[str, Sequence[str]]]) -> Iterator[Finding]:
    """Whether the bucket's own policy lets pods write; what the project's policy allows does not show there."""
    if found.value is None:
        yield not_checked(found.error)
        return
    account = _account(facts)
    whole_pool = f"workloadIdentityPools/{facts.project}.svc.id.goog/namespace/{facts.place.namespace}"
    for role in WRITES:
        for member in found.value.get(role, ()):
            if member == account or member.endswith((_subject(facts), whole_pool)):
                yield ok(f"pods may write there, by {role}")
                return
    number = f"$(gcloud projects describe {facts.project} --format='value(projectNumber)')"
    member = account.replace("NUMBER", number)
    yield warning(
        f"its policy does not name {account}: unless the project's does, pods cannot write there",
        f'gcloud storage buckets add-iam-policy-binding gs://{name} --member="{member}" --role={WRITES[0]}',
    )
