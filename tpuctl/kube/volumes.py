"""Buckets and disks of a run as volumes of its pods. Pure.

The gcsfuse CSI driver takes keys of gcsfuse's configuration file as `a:b:VALUE`, and flags as `NAME=VALUE`; it
sets some itself and drops these with a warning (pkg/sidecar_mounter/sidecar_mounter_config.go of
GoogleCloudPlatform/gcs-fuse-csi-driver).
"""

from __future__ import annotations

from tpuctl.errors import UsageError
from tpuctl.kube.jobset import BucketVolume, DiskVolume
from tpuctl.model.disks import DiskInfo, DiskMode
from tpuctl.model.refs import DiskRef, MountRef
from tpuctl.mounts.render import options_of
from tpuctl.mounts.rules import MountRules

_DRIVERS_OWN = frozenset(
    {"foreground", "cache-dir", "file-system.fuse-options", "metadata-cache.enable-metadata-prefetch"}
)
"""The last one is newer than some versions of gcsfuse on GKE, which do not start with a key that they do not
know."""
_AS_FLAGS = {
    "only-dir": "only-dir",
    "file-system.uid": "uid",
    "file-system.gid": "gid",
    "file-system.file-mode": "file-mode",
    "file-system.dir-mode": "dir-mode",
}
"""As a key, `644` would become a decimal number."""


def bucket_volume(rules: MountRules, ref: MountRef) -> BucketVolume:
    """A mount as the driver takes it, with the times to live of its profile. Raises UsageError for a folder
    whose name the driver would take apart."""
    if any(letter in ref.directory for letter in ",="):
        why = f"the folder {ref.directory!r} of gs://{ref.bucket} cannot be mounted on GKE, which lists options"
        raise UsageError.of("mount", why, "a folder without a comma or = in its name")
    words = []
    for key, value in options_of(rules, ref, rules.pinned).items():
        if key in _DRIVERS_OWN or key.startswith("logging.") or (key, value) == ("file-cache.max-size-mb", 0):
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value)
        words.append(f"{_AS_FLAGS[key]}={text}" if key in _AS_FLAGS else f"{key.replace('.', ':')}:{text}")
    return BucketVolume(ref.bucket, ref.path, tuple(words), read_only=ref.read_only)


def disk_volume(ref: DiskRef, disk: DiskInfo, project: str) -> DiskVolume:
    """A copy of a disk, which all pods read. Raises UsageError for one that is written."""
    if ref.mode is not DiskMode.READ_ONLY:
        raise UsageError.of(
            "disk",
            f"disk {ref.name} is written by one host, and pods of a cluster only read disks",
            f"tpuctl disk clone {ref.name} --zone {disk.zone}, then --disk with that clone",
        )
    handle = f"projects/{project}/zones/{disk.zone}/disks/{disk.name}"
    return DiskVolume(disk.name, ref.path, handle, disk.size_gib)
