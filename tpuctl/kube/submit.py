"""A run for a cluster: checked by the cluster itself, then written down, then applied.

Nothing is uploaded or written before the API server has said, in a dry run of its own, that it takes all of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from shlex import quote

from msgspec.structs import replace

from tpuctl.engine.events import Warn
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, DeniedError, NotFoundError, UsageError
from tpuctl.kube.capacity import ACCELERATOR, PodDemand, lack_of_nodes, region_of_cluster, wanted_by
from tpuctl.kube.client import Cluster, Object
from tpuctl.kube.jobset import RECORD_ANNOTATION, JobSetSpec, documents
from tpuctl.kube.prepare import Prepared
from tpuctl.kube.quota import why_never
from tpuctl.kube.render import secret_command
from tpuctl.kube.source import ExportSource
from tpuctl.lib.codec import to_data
from tpuctl.model.clusters import ClusterPlace, ClusterRun
from tpuctl.model.records import RunRecord
from tpuctl.model.requests import ClusterRequest, LaunchRequest
from tpuctl.model.run_identity import fingerprint
from tpuctl.model.run_spec import RunRequest
from tpuctl.model.slice_spec import SliceRequest
from tpuctl.runs.request import request_run


def check_launch(launch: LaunchRequest, request: RunRequest, cluster: ClusterRequest) -> None:
    """Raises UsageError for what a run on a cluster cannot have."""
    if request.secret and launch.name is None and cluster.kube_secret is None:
        why = "--secret: the Secret with the values is called like the run, whose name nobody can know yet"
        raise UsageError.of("kube_secret", why, "--kube-secret NAME, or --name NAME")
    said = {"--keep": launch.keep, "--smoke": launch.smoke, "--matrix": launch.matrix is not None}
    for flag in (flag for flag, given in said.items() if given):
        raise UsageError(f"{flag} is for runs on slices", hint=f"leave out {flag}, or --on gke:…")
    if launch.up is None:
        raise UsageError.of(
            "up", "which node pools the run wants is not said", "--up TYPE, such as --up v6e-16"
        )


def check_cluster(services: Services, cluster: Cluster, job: JobSetSpec) -> str:
    """Has the cluster say what it would say of a new run; its region, as far as that shows. Raises
    NotFoundError for what it lacks, ConflictError for a name that a JobSet has, InvalidRequestError and
    DeniedError for what it refuses."""
    place = cluster.place
    there = cluster.get("JobSet", job.name)
    if there is not None:
        raise ConflictError(
            f"there is a JobSet called {job.name} in {place} already, and it is not of this run",
            hint="give the run another --name",
        )
    if _lacks_namespace(cluster):
        fix = f"kubectl --context {place.context} create namespace {place.namespace}"
        raise NotFoundError(f"cluster {place.context} has no namespace {place.namespace}", hint=fix)
    queue = cluster.get("LocalQueue", job.queue) if job.queue else None
    if job.queue and queue is None:
        known = ", ".join(str(each["metadata"]["name"]) for each in cluster.list("LocalQueue")) or "none"
        raise NotFoundError(
            f"namespace {place.namespace} of cluster {place.context} has no queue {job.queue} (known: {known})",
            hint=f"tpuctl quota --on gke:{place.context}",
        )
    *volumes, jobset = documents(job)
    wanted = wanted_by(jobset)
    why = why_never(cluster, queue, wanted) if queue is not None else ""
    if why:
        said = f"queue {job.queue} of {place} never admits {wanted}: {why}"
        raise NotFoundError(said, hint=f"tpuctl quota --on gke:{place.context}")
    _check_secret(cluster, job)
    for volume in volumes:
        cluster.apply(volume, dry_run=True)
    cluster.create(jobset, dry_run=True)
    nodes = _tell_nodes(services, cluster, wanted)
    return region_of_cluster(place, job.provisioning.zones, nodes)


def _tell_nodes(services: Services, cluster: Cluster, wanted: PodDemand) -> Sequence[Object]:
    """The nodes with TPUs. Warns where none that is up takes a pod; many may not see nodes."""
    try:
        nodes = cluster.list("Node", ACCELERATOR)
    except DeniedError:
        return ()
    why = lack_of_nodes(wanted, nodes)
    if why:
        services.emit(Warn(str(cluster.place), f"{why}: its pods wait until a pool grows to have one"))
    return nodes


def _check_secret(cluster: Cluster, job: JobSetSpec) -> None:
    """Raises NotFoundError for a Secret or a key of it that pods would wait for; many may not read Secrets."""
    place = cluster.place
    for variable, want in job.secrets.items():
        try:
            found = cluster.get("Secret", want.secret)
        except DeniedError:
            return
        if want.key not in ((found or {}).get("data") or {}):
            what = "there is no Secret" if found is None else f"there is no key {want.key} in Secret"
            remove = f"kubectl --context {quote(place.context)} --namespace {place.namespace} delete secret"
            first = "" if found is None else f"{remove} {want.secret}; "
            raise NotFoundError(
                f"{what} {want.secret} in {place}, which variable {variable} comes from",
                hint=first + secret_command(job, place.context),
            )


def _lacks_namespace(cluster: Cluster) -> bool:
    """Whether it is known not to be there: many may use a namespace and not look at it."""
    try:
        return cluster.get("Namespace", cluster.namespace) is None
    except (DeniedError, NotFoundError):
        return False


def submit_to_cluster(
    services: Services,
    place: ClusterPlace,
    source: ExportSource,
    prepared: Prepared,
    digest: str,
    region: str,
    *,
    named: bool,
) -> RunRecord:
    """Writes the run down, with all that is applied for it. `named`: a person chose the id."""
    store, job, record, mark = services.store, prepared.job, _new(source), services.ids.new_id()
    job = replace(job, annotations={**job.annotations, RECORD_ANNOTATION: mark})
    for content in source.digests:
        store.put_blob(source.read(content))
    shape = job.shape
    here = ClusterRun(
        place=place,
        name=job.name,
        documents=store.put_blob(json.dumps(documents(job)).encode()),
        record=mark,
        hosts=shape.hosts,
        slices=job.slices,
        containers=job.programs,
        chips=shape.chips * job.slices,
        generation=shape.generation,
        tier=job.provisioning.tier,
        region=region,
        queue=job.queue,
    )
    run = replace(record, cluster=here, spec=replace(record.spec, slice_name=str(place)), fingerprint=digest)
    return request_run(services, run, named=named, start=source.start)


def _new(source: ExportSource) -> RunRecord:
    """The record of a run that nobody wrote down yet. Raises UsageError for another one."""
    if source.record is None:
        run_id = source.manifest["run"]["id"]
        raise UsageError(f"run {run_id} is there already", hint=f"tpuctl export {run_id}")
    return source.record


def cluster_fingerprint(
    source: ExportSource, place: ClusterPlace, request: ClusterRequest, capacity: SliceRequest
) -> str:
    """Digest of all that makes two commands the same run there."""
    record = _new(source)
    spec = replace(record.spec, slice_name=str(place))
    written = [fingerprint(spec, record.code.bundle), to_data(request), to_data(capacity)]
    return hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()
