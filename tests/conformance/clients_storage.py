"""Other people's clients of Cloud Storage: each runs a script of its own in its own virtual environment."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from tests.conformance.client import Check, Client
from tests.conformance.harness import SCRIPTS, by_both_ways, https_of, run_script

BIG = 200_000_000
"""Above it gcloud uploads in parts and composes them, unless it is told otherwise."""


def run_gcloud(env: Mapping[str, str], work: Path) -> list[Check]:
    """`gcloud storage`: copies, lists, versions, soft delete, and refusals."""
    checks: list[Check] = []

    def gcloud(*args: str, says: str = "", fails: bool = False) -> str:
        """One command is one check: it ends as it should and prints `says`."""
        done = subprocess.run(
            ["gcloud", "storage", *args], env=dict(env), cwd=work, capture_output=True, text=True, timeout=180
        )
        printed = done.stdout + (done.stderr if fails else "")
        ok = (done.returncode != 0) == fails and says in printed and "crashed" not in done.stderr
        detail = f"ended with {done.returncode}: {(done.stdout + done.stderr)[-300:]}"
        checks.append(Check(f"gcloud storage {' '.join(args)}", ok, "" if ok else detail))
        return done.stdout

    (work / "one").write_text("one\n")
    (work / "two").write_text("two\n")
    with (work / "big").open("wb") as stream:
        stream.truncate(BIG)
    here = "gs://gc-conformance"
    gcloud("buckets", "create", here, "--location=us-central2")
    gcloud("buckets", "describe", here, "--format=json", says='"604800"')
    gcloud("cp", "one", "two", f"{here}/d/")
    gcloud("cp", "big", f"{here}/big")
    gcloud("objects", "describe", f"{here}/big", "--format=value(component_count,size)", says=str(BIG))
    gcloud("cp", f"{here}/big", "back")
    same = (work / "back").stat().st_size == BIG if (work / "back").exists() else False
    checks.append(Check("the copy back is as large", same))
    gcloud("ls", f"{here}/d/*", says="d/one")
    gcloud("ls", "-r", f"{here}/", says="d/two")
    gcloud("mv", f"{here}/d/one", f"{here}/d/uno")
    gcloud("mv", f"{here}/d", f"{here}/e")
    gcloud("objects", "compose", f"{here}/e/uno", f"{here}/e/two", f"{here}/both")
    gcloud("cat", f"{here}/both", says="one\ntwo\n")
    gcloud("cat", "-r", "4-6", f"{here}/both", says="two")
    gcloud("hash", f"{here}/both", says="crc32c")
    gcloud("du", here, says="both")
    gcloud("cp", "--if-generation-match=0", "one", f"{here}/both", fails=True, says="412")
    gcloud("cp", "-J", "one", f"{here}/in-flight")
    gcloud("cat", f"{here}/in-flight", says="one\n")
    gcloud("objects", "update", f"{here}/both", "--temporary-hold")
    gcloud("rm", f"{here}/both", fails=True, says="Temporary hold")
    gcloud("objects", "update", f"{here}/both", "--no-temporary-hold")
    gcloud("objects", "update", f"{here}/both", "--custom-metadata=a=b", "--cache-control=no-cache")
    gcloud("objects", "describe", f"{here}/both", says="no-cache")
    gcloud("buckets", "update", here, "--versioning")
    gcloud("cp", "two", f"{here}/v")
    gcloud("cp", "one", f"{here}/v")
    listed = gcloud("ls", "-a", f"{here}/v", says="v#")
    checks.append(Check("both generations are listed", listed.count("v#") == 2, listed))
    gcloud("rm", "-a", f"{here}/v")
    gone = gcloud("ls", "--soft-deleted", f"{here}/v**", says="v#").split()
    gcloud("restore", gone[-1] if gone else f"{here}/v#1")
    gcloud("cat", f"{here}/v", says="one\n")
    gcloud(
        "restore", f"{here}/**", "--async", fails=True, says="does not implement storage.objects.bulkRestore"
    )
    gcloud("buckets", "update", here, "--clear-soft-delete", "--no-versioning")
    gcloud("rsync", "-r", str(SCRIPTS), f"{here}/scripts")
    (work / "mirror").mkdir()
    gcloud("rsync", "-r", f"{here}/scripts", "mirror")
    gcloud("buckets", "get-iam-policy", here, says="legacyBucketOwner")
    gcloud("buckets", "add-iam-policy-binding", here, "--member=user:a@b.c",
           "--role=roles/storage.objectViewer", says="objectViewer")  # fmt: skip
    gcloud("buckets", "create", "gs://gc-hns", "--enable-hierarchical-namespace",
           "--uniform-bucket-level-access")  # fmt: skip
    gcloud("folders", "create", "gs://gc-hns/a/b/", "--recursive")
    gcloud("mv", "gs://gc-hns/a/b", "gs://gc-hns/c")
    gcloud("folders", "list", "gs://gc-hns", says="name: c/")
    gcloud("rm", "-r", "gs://gc-hns")
    gcloud("folders", "create", f"{here}/f/", fails=True, says="does not support hierarchical namespace")
    gcloud("cat", f"{here}/nothing", fails=True, says="nothing")
    gcloud("rm", "-r", here)
    return checks


def _script(name: str) -> Callable[[Mapping[str, str], Path], list[Check]]:
    return partial(by_both_ways, name)


def _plain(name: str) -> Callable[[Mapping[str, str], Path], list[Check]]:
    """For a client that is told where the simulator is, and heeds no proxy."""
    return lambda env, work: run_script(name, env, work)


def _behind_https(name: str) -> Callable[[Mapping[str, str], Path], list[Check]]:
    return lambda env, work: run_script(name, https_of(env), work)


CLIENTS: list[Client] = [
    Client("gcsfs and fsspec", ("gcsfs==2026.10.1",), _script("gcsfs_checks.py")),
    Client("obstore (object_store)", ("obstore==0.12.1",), _script("obstore_checks.py")),
    Client("tensorstore", ("tensorstore==0.1.86",), _script("tensorstore_checks.py")),
    Client("etils.epath", ("etils[epath,epath-gcs]==1.15.0", "gcsfs==2026.10.1"), _script("epath_checks.py")),
    Client(
        "orbax-checkpoint",
        ("orbax-checkpoint==0.12.8", "gcsfs==2026.10.1", "jax==0.10.2"),
        _script("orbax_checks.py"),
    ),
    Client("pyarrow's GcsFileSystem", ("pyarrow==26.0.1",), _plain("pyarrow_checks.py")),
    Client("zarr", ("zarr==3.1.6", "gcsfs==2026.10.1"), _script("zarr_checks.py")),
    Client(
        "Node's @google-cloud/storage",
        ("npm:@google-cloud/storage@7.22.0", "bin:node"),
        _behind_https("node_storage_checks.cjs"),
    ),
    Client("google-cloud-storage", ("google-cloud-storage==3.17.1",), _script("google_storage_checks.py")),
    Client("gcloud storage", ("bin:gcloud",), run_gcloud),
]
