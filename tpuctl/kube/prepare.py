"""What a run on a cluster needs outside of it: its code and packages in a bucket.

The code travels as the bundle of the run, which `tpuctl rerun` takes as well: the same file brings the run to a
cluster and back. Nothing is uploaded before all that can be refused was.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

from tpuctl.engine.services import Services
from tpuctl.envs.pinned import PinnedEnvironment, environment_files
from tpuctl.envs.wheelhouse import fill_wheelhouse
from tpuctl.errors import ConflictError, NotFoundError, UsageError
from tpuctl.kube.export import ExportTarget, job_of, on_cluster
from tpuctl.kube.jobset import JobSetSpec, PodCode
from tpuctl.kube.source import ExportSource
from tpuctl.lib.names import check_bucket_uri
from tpuctl.lib.output_files import write_output
from tpuctl.model.requests import ClusterRequest
from tpuctl.model.shipped_files import read_agent_module, read_template
from tpuctl.provenance.bundle import BLOBS, MANIFEST_NAME, open_bundle
from tpuctl.provenance.manifest import Row, typed

LOADER, MASKS = "pod.py", "secret_forms.py"


class Prepared(Struct, frozen=True):
    """A run that a cluster can have once its `bundle` is where the Job says. Nothing was changed so far."""

    job: JobSetSpec
    manifest: Row
    bundle: Path
    environment: PinnedEnvironment | None

    def copy_bundle(self, path: Path) -> None:
        """For whoever brings the run back to a slice."""
        with self.bundle.open("rb") as given, write_output(path, "") as file:
            shutil.copyfileobj(given, file, 1 << 20)


@contextmanager
def preparing(
    services: Services, source: ExportSource, target: ExportTarget, request: ClusterRequest
) -> Iterator[Prepared]:
    """The run as a Job, and its bundle as a file for as long as the block lasts.

    Raises UsageError for what a cluster cannot do, NotFoundError for a bucket that is not there.
    """
    manifest = typed(source.manifest)
    prefix = code_prefix(request, manifest.command.checkpoint_dir)
    bucket = prefix.removeprefix("gs://").partition("/")[0]
    if not services.objects.bucket_exists(bucket):
        raise NotFoundError(
            f"bucket gs://{bucket} does not exist or cannot be read",
            hint=f"gcloud storage buckets create gs://{bucket}",
        )
    environment = on_cluster(source.environment, prefix) if source.environment is not None else None
    with TemporaryDirectory(prefix="tpuctl-") as folder:
        path = Path(folder) / "bundle.tar"
        write_pod_bundle(path, source, environment)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        code = PodCode(f"{prefix}/code/{digest}.tar", digest)
        loader = read_template(LOADER).decode()
        job = job_of(manifest, request, target, code, loader, environment, source.image)
        yield Prepared(job, source.manifest, path, environment)


def publish(services: Services, prepared: Prepared) -> None:
    """Brings the packages and the bundle to where pods get them. What is there is not sent again."""
    if prepared.environment is not None:
        fill_wheelhouse(services, prepared.environment)
    size = prepared.bundle.stat().st_size
    with prepared.bundle.open("rb") as file, suppress(ConflictError):  # by its name it is the same content
        pieces = iter(lambda: file.read(1 << 20), b"")
        services.objects.upload(prepared.job.code.uri, pieces, size, if_generation=0)


def code_prefix(request: ClusterRequest, checkpoint_dir: str | None) -> str:
    """Where the code of a run goes. Raises UsageError."""
    if request.code_prefix is not None:
        return check_bucket_uri(request.code_prefix).rstrip("/")
    if checkpoint_dir:
        return f"gs://{checkpoint_dir.removeprefix('gs://').partition('/')[0]}/tpuctl"
    why = "pods get the code of a run from a bucket, and a run without checkpoints names none"
    raise UsageError.of("code_prefix", why, "--code-prefix gs://BUCKET/PREFIX")


def write_pod_bundle(path: Path, source: ExportSource, environment: PinnedEnvironment | None) -> None:
    """The bundle of a run, and beside its manifest and contents what pods start it with."""
    files = {LOADER: read_template(LOADER), MASKS: read_agent_module(MASKS)}
    if environment is not None:
        minor, installer = environment.spec.python[0], read_template("env_install.py")
        made = environment_files(environment, minor, installer)
        files |= {f"env/{name}": content for name, content in made.items()}
    with open_bundle(path, "-o") as bundle:
        bundle.add(MANIFEST_NAME, json.dumps(source.manifest, indent=1).encode())
        for digest in source.digests:
            bundle.add(f"{BLOBS}/{digest}", source.read(digest))
        for name, content in files.items():
            bundle.add(f"pod/{name}", content)
