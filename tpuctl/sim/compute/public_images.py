"""Images of Google's own projects: those from which TPU machines boot.

Families, and the days of builds that users name: docs.cloud.google.com/tpu/docs, vllm-project/ci-infra and
gke-labs/tpu-operator. The form is that of a recorded image (k8s-config-connector,
basic/compute/v1beta1/computeinstancegroupmanager).
"""

from __future__ import annotations

from collections.abc import Mapping

from tpuctl.sim.compute.catalog import ROOT
from tpuctl.sim.wire.status import Json

ACCELERATOR_IMAGES = "ubuntu-os-accelerator-images"
_FAMILIES: Mapping[str, str] = {
    "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e": "22.04",
    "ubuntu-accel-2404-amd64-tpu-tpu7x": "24.04",
}
"""Family → the version of Ubuntu."""
_BUILDS = ("20260320", "20260422", "20260716")


def public_images(project: str) -> list[Json]:
    """All images of one of Google's projects, oldest first; the simulator has those of one."""
    if project != ACCELERATOR_IMAGES:
        return []
    return [_image(family, build) for build in _BUILDS for family in _FAMILIES]


def find_public_image(project: str, by_family: str | None, name: str) -> Json | None:
    """An image by its name, or the newest of a family."""
    field = "family" if by_family else "name"
    return next((each for each in reversed(public_images(project)) if each[field] == name), None)


def _image(family: str, build: str) -> Json:
    name = f"{family}-v{build}"
    made = f"{build[:4]}-{build[4:6]}-{build[6:]}T02:00:00.000-07:00"
    number = 10_000 * (1 + list(_FAMILIES).index(family)) + _BUILDS.index(build)
    return {
        "kind": "compute#image",
        "id": str(4_000_000_000_000_000_000 + number),
        "creationTimestamp": made,
        "name": name,
        "description": f"Canonical, Ubuntu, {_FAMILIES[family]} LTS, for TPU, amd64, built on {build}",
        "family": family,
        "architecture": "X86_64",
        "archiveSizeBytes": "2063659776",
        "diskSizeGb": "10",
        "enableConfidentialCompute": False,
        "guestOsFeatures": [{"type": each} for each in ("UEFI_COMPATIBLE", "VIRTIO_SCSI_MULTIQUEUE", "GVNIC")],
        "labelFingerprint": "abcdef0123A=",
        "labels": {"public-image": "true"},
        "licenseCodes": ["2592866803419978320"],
        "licenses": [f"{ROOT}/projects/{ACCELERATOR_IMAGES}/global/licenses/{family}"],
        "rawDisk": {"containerType": "TAR", "source": ""},
        "selfLink": f"{ROOT}/projects/{ACCELERATOR_IMAGES}/global/images/{name}",
        "sourceType": "RAW",
        "status": "READY",
        "storageLocations": ["asia", "us", "eu"],
    }
