"""Runs on clusters, for tests."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tpuctl.kube.jobset import FailurePolicy, JobSetSpec, PodCode
from tpuctl.kube.shape import resolve_shape
from tpuctl.model.shipped_files import load_accelerators, load_gke_table


def a_job(accelerator: str = "v6e-16", **given: Any) -> JobSetSpec:
    """A run of `accelerator` with these fields."""
    made = JobSetSpec(
        name="train",
        namespace="research",
        run="train",
        shape=resolve_shape(load_gke_table(), load_accelerators(), accelerator),
        image="us-docker.pkg.dev/cloud-tpu-images/jax-ai-image/tpu:latest",
        argv=("python3", "train.py"),
        code=PodCode("gs://my-bucket/tpuctl/code/" + "ab" * 32 + ".tar", "ab" * 32),
        loader="the source of pod.py",
        policy=FailurePolicy(3, (2, 64, 78)),
    )
    return replace(made, **given)
