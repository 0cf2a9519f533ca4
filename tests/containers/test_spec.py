"""Names of images: what engines take, and what is refused before anything is asked."""

from __future__ import annotations

import pytest

from tpuctl.containers.spec import parse_image
from tpuctl.errors import UsageError

DIGEST = "sha256:" + "ab" * 32
GOOD = {
    "ubuntu": "ubuntu:latest",
    "vllm/vllm-tpu:nightly": "vllm/vllm-tpu:nightly",
    "us-docker.pkg.dev/cloud-tpu-images/jax-ai-image/tpu:jax0.6.1-rev1": (
        "us-docker.pkg.dev/cloud-tpu-images/jax-ai-image/tpu:jax0.6.1-rev1"
    ),
    f"gcr.io/p/a__b--c.d@{DIGEST}": f"gcr.io/p/a__b--c.d@{DIGEST}",
    f"gcr.io/p/a:1@{DIGEST}": f"gcr.io/p/a@{DIGEST}",
    "localhost/bb:1": "localhost/bb:1",
    "localhost:5000/bb": "localhost:5000/bb:latest",
    "MyRegistry.example:5000/bb:V1": "MyRegistry.example:5000/bb:V1",
}
BAD = {
    "": "no name of an image",
    "-v": "no name of an image",
    "Ubuntu": "no capital letters",
    "gcr.io/p/Name": "no capital letters",
    "a b": "no name of an image",
    "a:": "no name of an image",
    "a@sha256:12": "no name of an image",
    "a@md5:" + "0" * 64: "no name of an image",
    "docker://ubuntu": "not from files",
    "oci-archive:/tmp/x.tar": "not from files",
    "/abs/path": "no name of an image",
    "a//b": "no name of an image",
    "a\n": "no name of an image",
    "a:t;rm": "no name of an image",
    "é": "no name of an image",
    "a" * 256: "no name of an image",
}


@pytest.mark.parametrize(("text", "pulled"), GOOD.items())
def test_what_is_pulled_is_whole(text: str, pulled: str) -> None:
    assert parse_image(text).pinned == pulled


@pytest.mark.parametrize(("text", "why"), BAD.items())
def test_what_is_no_name_is_refused_with_the_form_of_one(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        parse_image(text)
    assert "--container REGISTRY/NAME:TAG" in (refused.value.hint or "")
