"""Files for clusters as they are to be, in tests/data/kube: `python -m tests.kube.goldens` writes them anew."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tpuctl.kube.export import ExportTarget, job_of
from tpuctl.kube.jobset import ClusterCapacity, JobSetSpec, PodCode, documents
from tpuctl.kube.render import head_of, render_yaml
from tpuctl.kube.shape import resolve_shape
from tpuctl.kube.target import bucket_volume, disk_volume
from tpuctl.model.disks import DiskInfo, DiskMode
from tpuctl.model.hosts import Tier
from tpuctl.model.refs import DiskRef
from tpuctl.model.requests import ClusterRequest
from tpuctl.model.shipped_files import load_accelerators, load_gke_table
from tpuctl.mounts.follow import load_rules, parse_ref
from tpuctl.provenance.manifest import CodeSection, CommandSection, RunManifest, RunSection, SliceSection
from tpuctl.provenance.manifest import VariablesSection as Variables

FOLDER = Path(__file__).parents[1] / "data" / "kube"
DIGEST = "0123456789abcdef" * 4
IMAGE = "us-docker.pkg.dev/cloud-tpu-images/jax-ai-image/tpu:latest"
MOUNTS = (
    "gs://my-bucket/data:/mnt/data:train,ttl=30",
    "gs://my-bucket/tokens:/mnt/tokens:dataset",
    "gs://my-ckpt:/ckpt:checkpoint",
)


def a_manifest(*argv: str, secrets: tuple[str, ...] = (), **requested: str) -> RunManifest:
    """Of a run that nobody has started yet."""
    return RunManifest(
        schema="tpuctl.run/1",
        run=RunSection("train", "kim", group="sweep-1", tags=("baseline",), wandb_id="train-1b3dcbaf"),
        command=CommandSection(
            argv=argv or ("python3", "train.py"),
            cwd="src",
            secrets=secrets,
            container=IMAGE,
            max_failures=3,
            grace_s=60.0,
            checkpoint_dir="gs://my-ckpt/run1",
        ),
        code=CodeSection("ab" * 32),
        slice=SliceSection("train"),
        variables=Variables(requested=requested),
        chain=("cd" * 32,),
    )


def a_run(
    accelerator: str,
    *,
    slices: int = 1,
    provisioning: ClusterCapacity = ClusterCapacity(),
    request: ClusterRequest = ClusterRequest(),
    manifest: RunManifest | None = None,
    volumes: bool = False,
) -> JobSetSpec:
    rules = load_rules()
    disk = DiskInfo("data-g1", "us-east5-b", "1", "hyperdisk-ml", 100, "READY")
    ref = DiskRef("data-g1", "/mnt/disk", DiskMode.READ_ONLY)
    target = ExportTarget(
        name="train",
        namespace="research",
        shape=resolve_shape(load_gke_table(), load_accelerators(), accelerator),
        slices=slices,
        provisioning=provisioning,
        buckets=tuple(bucket_volume(rules, parse_ref(rules, text)) for text in MOUNTS) if volumes else (),
        volumes=(disk_volume(ref, disk, "my-project"),) if volumes else (),
    )
    code = PodCode(f"gs://my-ckpt/tpuctl/code/{DIGEST}.tar", DIGEST)
    return job_of(manifest or a_manifest(), request, target, code, "the source of pod.py")


def jobs() -> Mapping[str, JobSetSpec]:
    """By the names of their files."""
    everything = ClusterRequest(local_queue="tpu", kube_account="trainer", fatal_exit=("3",))
    with_secret = a_manifest(
        "python3", "train.py", "--x", "$(HOME)", secrets=("TOKEN",), SEED="1", LIST="$(ls)"
    )
    return {
        "v4-one-slice": a_run("v4-32"),
        "v5e-one-host": a_run("v5e-8", provisioning=ClusterCapacity(Tier.SPOT)),
        "v5p-reserved": a_run(
            "v5p-128", provisioning=ClusterCapacity(Tier.RESERVED, "projects/p/reservations/ours")
        ),
        "v6e-two-slices-all-volumes": a_run(
            "v6e-16",
            slices=2,
            provisioning=ClusterCapacity(Tier.SPOT, zones=("us-east5-b",)),
            request=everything,
            manifest=with_secret,
            volumes=True,
        ),
        "tpu7x-two-slices-flex-start": a_run(
            "tpu7x-32",
            slices=2,
            provisioning=ClusterCapacity(
                Tier.FLEX_START, max_run_s=3600, zones=("us-central1-c", "us-east5-b")
            ),
            request=ClusterRequest(local_queue="dws", host_network=True),
            volumes=True,
        ),
    }


def render(job: JobSetSpec) -> str:
    return render_yaml(documents(job), head_of(job, "train.yaml"))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, job in jobs().items():
        (FOLDER / f"{name}.yaml").write_text(render(job))
