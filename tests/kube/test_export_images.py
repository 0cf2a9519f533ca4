"""Which image the pods of an exported run have."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.provenance.samples import a_manifest
from tpuctl.errors import UsageError
from tpuctl.kube.export import ExportTarget, check_command, job_of
from tpuctl.kube.jobset import PodCode, jobset
from tpuctl.kube.shape import resolve_shape
from tpuctl.model.requests import ClusterRequest
from tpuctl.model.shipped_files import load_accelerators, load_gke_table
from tpuctl.provenance.manifest import RunManifest, typed
from tpuctl.provenance.rerun import image_used

TAG, DIGEST = "gcr.io/lab/image:1", "gcr.io/lab/image@sha256:" + "ab" * 32
CODE = PodCode("gs://my-bucket/code.tar", "ab" * 32)


def run_in(container: str | None, found: str = "") -> RunManifest:
    """A run in a container whose hosts found that image; without `found` none came so far."""
    plain = typed(a_manifest())
    attempts = tuple(
        replace(each, hosts=tuple({**row, **({"image": found} if found else {})} for row in each.hosts))
        for each in plain.attempts
    )
    return replace(plain, command=replace(plain.command, container=container), attempts=attempts)


@pytest.mark.parametrize(
    ("container", "found", "image"),
    [(TAG, DIGEST, DIGEST), (TAG, "", TAG), (TAG, "sha256:" + "ab" * 32, TAG), (None, "", None)],
)
def test_a_run_goes_to_other_places_with_the_image_that_it_had(
    container: str | None, found: str, image: str | None
) -> None:
    assert image_used(run_in(container, found)) == image


@pytest.mark.parametrize(("asked", "image"), [(None, DIGEST), ("gcr.io/other", "gcr.io/other")])
def test_pods_have_the_image_of_the_run_unless_another_is_named(asked: str | None, image: str) -> None:
    shape = resolve_shape(load_gke_table(), load_accelerators(), "v6e-16")
    target = ExportTarget(name="train", namespace="research", shape=shape)
    manifest = run_in(TAG, DIGEST)
    bare = replace(
        manifest, command=replace(manifest.command, workers=(), debug=(), on_nan="report", check="off")
    )
    assert job_of(bare, ClusterRequest(), target, CODE, "pod.py", image=asked).image == image


def test_all_rights_on_hosts_are_no_rights_in_a_cluster() -> None:
    with pytest.raises(UsageError, match="--privileged needs tpuctl's agent"):
        check_command(replace(typed(a_manifest()).command, workers=(), container=TAG, privileged=True))


def test_nodes_ask_the_registry_again_where_the_run_says_so() -> None:
    shape = resolve_shape(load_gke_table(), load_accelerators(), "v6e-16")
    target = ExportTarget(name="train", namespace="research", shape=shape)
    for pull, policy in (("always", "Always"), ("missing", None)):
        plain = typed(a_manifest()).command
        command = replace(plain, workers=(), debug=(), on_nan="report", check="off", container=TAG, pull=pull)
        job = job_of(replace(run_in(TAG), command=command), ClusterRequest(), target, CODE, "pod.py")
        pod = jobset(job)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        found = [each.get("imagePullPolicy") for each in (*pod["initContainers"], *pod["containers"])]
        assert found == [policy, policy]
