"""The JobSet of a run, and the volumes beside it, as plain data that Kubernetes takes. Pure.

Fields and their traps: https://jobset.sigs.k8s.io/docs/; how a run there differs from one on a slice:
docs/tasks/kubernetes.md. `rules.py` refuses what only JobSet's webhook would.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from tpuctl.kube.shape import Shape
from tpuctl.model.hosts import Tier
from tpuctl.model.timeouts import KEEP_JOBSET_S

API_VERSION = "jobset.x-k8s.io/v1alpha2"
GROUP = "slice"
"""The name of the one replicated job: each of its jobs is a slice."""
PREPARE, PROGRAM = "prepare", "program"
"""Containers: what brings the code and the environment into a pod, and what runs it."""
RUN_LABEL, OWNER_LABEL = "tpuctl/run", "app.kubernetes.io/managed-by"
RECORD_ANNOTATION = "tpuctl/record"
"""The id of the record that a JobSet was made for: names are chosen, and another store may have the same."""
MANIFEST_ANNOTATION, DIGEST_ANNOTATION = "tpuctl/manifest", "tpuctl/manifest-sha256"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
HOME = "/tpuctl"
"""Where pods have code and environment."""
COORDINATOR_PORT = 8476
MEGASCALE_PORT = 8080
LIBTPU_PORT = 8471
EXIT_NEVER_AGAIN = 78
"""EX_CONFIG of sysexits.h: with it `prepare` ends where trying again is in vain."""
_KEY_PREFIX = "jobset.sigs.k8s.io"
_ZONE = "topology.kubernetes.io/zone"
_CHIPS = "google.com/tpu"
_POOL = "cloud.google.com/gke"


class ClusterCapacity(Struct, frozen=True):
    """How the capacity is paid for, and where it is; no zones: wherever there is a node pool."""

    tier: Tier = Tier.ON_DEMAND
    reservation: str = ""
    max_run_s: int | None = None
    zones: tuple[str, ...] = ()


class SecretKey(Struct, frozen=True):
    """Where a secret of the program is: a key of a Secret in the namespace. Its value is nowhere here."""

    secret: str
    key: str


class BucketVolume(Struct, frozen=True):
    """A bucket mounted by the gcsfuse CSI driver. `mount_options` are words for gcsfuse; `attributes` are the
    driver's own."""

    bucket: str
    path: str
    mount_options: tuple[str, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)
    read_only: bool = False


class DiskVolume(Struct, frozen=True):
    """A disk of Compute Engine that all pods read. `handle` is its full name there."""

    name: str
    path: str
    handle: str
    size_gib: int


class FailurePolicy(Struct, frozen=True):
    """`max_failures` restarts after failures of the program; after one of `fatal_exits` there is none. After a
    disruption (preemption, maintenance, eviction) it is always started again, which is not counted."""

    max_failures: int
    fatal_exits: tuple[int, ...] = ()


class PodCode(Struct, frozen=True):
    """The bundle with the code, and the environment if it has one: an object that pods get and verify."""

    uri: str
    sha256: str


class JobSetSpec(Struct, frozen=True, kw_only=True):
    """A run on a cluster: all that its JobSet says."""

    name: str
    namespace: str
    run: str
    shape: Shape
    image: str
    argv: tuple[str, ...]
    code: PodCode
    loader: str
    """The source of `templates/pod.py`."""
    pull_always: bool = False
    """Whether a node asks the registry for an image that it has."""
    slices: int = 1
    directory: str = "."
    """Where the command runs, below the code's root."""
    provisioning: ClusterCapacity = ClusterCapacity()
    queue: str = ""
    """A LocalQueue of Kueue; empty: none."""
    service_account: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, SecretKey] = field(default_factory=dict)
    buckets: tuple[BucketVolume, ...] = ()
    disks: tuple[DiskVolume, ...] = ()
    policy: FailurePolicy = FailurePolicy(0)
    grace_s: int = 30
    host_network: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def programs(self) -> tuple[str, ...]:
        """The containers of a pod that run the program."""
        count = self.shape.containers
        return (PROGRAM,) if count == 1 else tuple(f"{PROGRAM}-{number}" for number in range(count))


def documents(job: JobSetSpec) -> list[dict[str, Any]]:
    """What `kubectl apply` takes: the volumes first, then the JobSet."""
    found = [document for disk in job.disks for document in (_volume(job, disk), _claim(job, disk))]
    return [*found, jobset(job)]


def jobset(job: JobSetSpec) -> dict[str, Any]:
    """The JobSet alone."""
    labels = {**job.labels, OWNER_LABEL: "tpuctl", RUN_LABEL: job.run}
    if job.queue:
        labels[QUEUE_LABEL] = job.queue
    # One job has one node pool of that topology, which is one slice.
    annotations = {"alpha.jobset.sigs.k8s.io/exclusive-topology": f"{_POOL}-nodepool", **job.annotations}
    if job.provisioning.max_run_s is not None:
        annotations["provreq.kueue.x-k8s.io/maxRunDurationSeconds"] = str(job.provisioning.max_run_s)
    return {
        "apiVersion": API_VERSION,
        "kind": "JobSet",
        "metadata": {
            "name": job.name,
            "namespace": job.namespace,
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "coordinator": {"replicatedJob": GROUP, "jobIndex": 0, "podIndex": 0},
            "ttlSecondsAfterFinished": KEEP_JOBSET_S,
            "failurePolicy": _failure_policy(job.policy),
            "replicatedJobs": [{"name": GROUP, "replicas": job.slices, "template": {"spec": _job(job)}}],
        },
    }


def _failure_policy(policy: FailurePolicy) -> dict[str, Any]:
    """By the first rule that matches; what none matches is a restart that counts. The message of a failed Job
    names the rule of its pods, by number: 0 is that of disruptions."""
    reasons = ["PodFailurePolicy"]
    return {
        "maxRestarts": policy.max_failures,
        # All pods of the attempt before are gone first: libtpu has the chips until then.
        "restartStrategy": "BlockingRecreate",
        "rules": [
            {
                "name": "hostsLost",
                "action": "RestartJobSetAndIgnoreMaxRestarts",
                "onJobFailureReasons": reasons,
                "onJobFailureMessagePatterns": ["matching FailJob rule at index 0"],
                "targetReplicatedJobs": [GROUP],
            },
            {
                "name": "neverAgain",
                "action": "FailJobSet",
                "onJobFailureReasons": reasons,
                "targetReplicatedJobs": [GROUP],
            },
        ],
    }


def _job(job: JobSetSpec) -> dict[str, Any]:
    """One slice. A pod that fails is not started again by itself: its peers wait for it in vain."""
    rules: list[dict[str, Any]] = [
        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    ]
    exits = {PREPARE: (EXIT_NEVER_AGAIN,), **dict.fromkeys(job.programs, job.policy.fatal_exits)}
    rules += [
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": name, "operator": "In", "values": sorted(codes)},
        }
        for name, codes in exits.items()
        if codes
    ]
    return {
        "parallelism": job.shape.hosts,
        "completions": job.shape.hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": rules},
        "template": {"metadata": _pod_metadata(job), "spec": _pod(job)},
    }


def _pod_metadata(job: JobSetSpec) -> dict[str, Any]:
    found: dict[str, Any] = {"labels": {RUN_LABEL: job.run}}
    if job.buckets:
        # The sidecar may use what the node has: its default of 256 MiB is too little for a file cache.
        limits = dict.fromkeys(("cpu-limit", "memory-limit", "ephemeral-storage-limit"), "0")
        found["annotations"] = {
            "gke-gcsfuse/volumes": "true",
            **{f"gke-gcsfuse/{name}": value for name, value in limits.items()},
        }
    return found


def _pod(job: JobSetSpec) -> dict[str, Any]:
    selector = {
        f"{_POOL}-tpu-accelerator": job.shape.accelerator,
        f"{_POOL}-tpu-topology": job.shape.topology,
    }
    capacity, taints = _capacity(job)
    selector |= capacity
    tolerations: list[dict[str, str]] = [{"key": _CHIPS, "operator": "Exists", "effect": "NoSchedule"}]
    tolerations += [
        {"key": key, "operator": "Equal", "value": "true", "effect": "NoSchedule"} for key in taints
    ]
    spec: dict[str, Any] = {"restartPolicy": "Never", "terminationGracePeriodSeconds": job.grace_s}
    if job.service_account:
        spec["serviceAccountName"] = job.service_account
    if job.host_network:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    zones = job.provisioning.zones
    if len(zones) == 1:
        selector[_ZONE] = zones[0]
    elif zones:
        match = {"key": _ZONE, "operator": "In", "values": list(zones)}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [match]}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return {
        **spec,
        "nodeSelector": selector,
        "tolerations": tolerations,
        "initContainers": [_prepare(job)],
        "containers": [_program(job, number, name) for number, name in enumerate(job.programs)],
        "volumes": _volumes(job),
    }


def _capacity(job: JobSetSpec) -> tuple[dict[str, str], tuple[str, ...]]:
    """Labels of node pools with this kind of capacity, and the taints, each with the value `true`, that they
    may have. With queued provisioning, which is for Kueue, those of flex-start have one more (sources:
    gke.yaml)."""
    spot, flex_start, queued = f"{_POOL}-spot", f"{_POOL}-flex-start", f"{_POOL}-queued"
    if job.provisioning.tier is Tier.SPOT:
        return {spot: "true"}, (spot,)
    if job.provisioning.tier is Tier.FLEX_START:
        return {flex_start: "true"}, (flex_start, queued) if job.queue else (flex_start,)
    if job.provisioning.tier is Tier.RESERVED:
        return {"cloud.google.com/reservation-name": job.provisioning.reservation.rpartition("/")[2]}, ()
    return {}, ()


def _prepare(job: JobSetSpec) -> dict[str, Any]:
    command = ["python3", "-c", job.loader, "prepare", HOME, job.code.uri, job.code.sha256]
    return {
        "name": PREPARE,
        **_image(job),
        "command": [_literal(word) for word in command],
        "volumeMounts": [{"name": "tpuctl", "mountPath": HOME}],
    }


def _program(job: JobSetSpec, number: int, name: str) -> dict[str, Any]:
    """The program in one container. Its chips are those of the host, shared with the other containers."""
    # As text, which is how it is stored: of a number the server would say that somebody changed it.
    chips = {_CHIPS: str(job.shape.chips_per_host // job.shape.containers)}
    numbers = [job.shape.hosts, job.slices, job.shape.containers, number]
    start = ["python3", f"{HOME}/pod.py", "start", HOME, *map(str, numbers), job.directory]
    start += [*job.secrets, "--", *job.argv]
    mounts: list[dict[str, Any]] = [
        {"name": "tpuctl", "mountPath": HOME},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the mount point of a memory volume
    ]
    found: dict[str, Any] = {
        "name": name,
        **_image(job),
        "command": [_literal(word) for word in start],
        "env": _environment(job),
        "resources": {"requests": chips, "limits": chips},
    }
    if number == 0:
        ports = (LIBTPU_PORT, MEGASCALE_PORT, COORDINATOR_PORT)
        found["ports"] = [{"containerPort": port} for port in ports]
    for index, bucket in enumerate(job.buckets):
        mounts.append(_mounted(f"bucket-{index}", bucket.path, bucket.read_only))
    mounts += [_mounted(f"disk-{index}", disk.path, True) for index, disk in enumerate(job.disks)]
    return {**found, "volumeMounts": mounts}


def _image(job: JobSetSpec) -> dict[str, Any]:
    return {"image": job.image, **({"imagePullPolicy": "Always"} if job.pull_always else {})}


def _mounted(volume: str, path: str, read_only: bool) -> dict[str, Any]:
    return {"name": volume, "mountPath": path, **({"readOnly": True} if read_only else {})}


def _environment(job: JobSetSpec) -> list[dict[str, Any]]:
    """What `pod.py start` makes the variables of a worker of, then the program's own."""
    told = {
        "TPUCTL_RESTARTS": f"metadata.labels['{_KEY_PREFIX}/restart-attempt']",
        "TPUCTL_SLICE_ID": f"metadata.labels['{_KEY_PREFIX}/job-index']",
        "TPUCTL_LEADER": f"metadata.labels['{_KEY_PREFIX}/coordinator']",
    }
    found: list[dict[str, Any]] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in told.items()
    ]
    found += [{"name": name, "value": _literal(value)} for name, value in job.variables.items()]
    found += [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": place.secret, "key": place.key}}}
        for name, place in job.secrets.items()
    ]
    return found


def _literal(text: str) -> str:
    """As the program is to have it: Kubernetes puts the value of a variable in the place of `$(NAME)`,
    and one `$` in that of two."""
    return text.replace("$", "$$")


def _volumes(job: JobSetSpec) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": "tpuctl", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    for index, bucket in enumerate(job.buckets):
        attributes = {"bucketName": bucket.bucket, **bucket.attributes}
        if bucket.mount_options:
            attributes["mountOptions"] = ",".join(bucket.mount_options)
        if job.host_network:
            attributes["hostNetworkPodKSA"] = "true"
        driver: dict[str, Any] = {"driver": "gcsfuse.csi.storage.gke.io", "volumeAttributes": attributes}
        if bucket.read_only:
            driver["readOnly"] = True
        found.append({"name": f"bucket-{index}", "csi": driver})
    for index, disk in enumerate(job.disks):
        claim = {"claimName": disk.name, "readOnly": True}
        found.append({"name": f"disk-{index}", "persistentVolumeClaim": claim})
    return found


STORAGE_CLASS = "tpuctl-static"
"""No class of this name exists: it keeps volumes that were made by hand and their claims together."""


def _volume(job: JobSetSpec, disk: DiskVolume) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{job.namespace}-{disk.name}", "labels": {OWNER_LABEL: "tpuctl"}},
        "spec": {
            "capacity": {"storage": f"{disk.size_gib}Gi"},
            "accessModes": ["ReadOnlyMany"],
            "persistentVolumeReclaimPolicy": "Retain",  # the disk is tpuctl's: no cluster deletes it
            "storageClassName": STORAGE_CLASS,
            "claimRef": {"namespace": job.namespace, "name": disk.name},
            "csi": {
                "driver": "pd.csi.storage.gke.io",
                "volumeHandle": disk.handle,
                "fsType": "ext4",
                "readOnly": True,
            },
        },
    }


def _claim(job: JobSetSpec, disk: DiskVolume) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": disk.name, "namespace": job.namespace, "labels": {OWNER_LABEL: "tpuctl"}},
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": STORAGE_CLASS,
            "volumeName": f"{job.namespace}-{disk.name}",
            "resources": {"requests": {"storage": f"{disk.size_gib}Gi"}},
        },
    }
