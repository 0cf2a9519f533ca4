"""Where a run goes on a cluster, from options of slices and from what its slice was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tpuctl.disks.make import find_record
from tpuctl.disks.rules import DiskRules, DiskTarget, Policy, parse_disk
from tpuctl.engine.events import Warn
from tpuctl.engine.services import Services
from tpuctl.errors import NotFoundError, UsageError, with_field
from tpuctl.kube.export import ExportTarget
from tpuctl.kube.jobset import BucketVolume, ClusterCapacity, DiskVolume
from tpuctl.kube.shape import Shape, resolve_shape
from tpuctl.lib.codec import from_data
from tpuctl.lib.time import parse_duration
from tpuctl.model.disks import DiskInfo, DiskMode
from tpuctl.model.hosts import Tier
from tpuctl.model.refs import DiskRef, MountRef
from tpuctl.model.requests import ClusterRequest
from tpuctl.model.shipped_files import load_accelerators, load_disk_rules, load_gke_table
from tpuctl.model.slice_spec import SliceRequest
from tpuctl.mounts.follow import load_rules, parse_ref
from tpuctl.mounts.render import options_of
from tpuctl.mounts.rules import MountRules
from tpuctl.mounts.spec import merge_mounts
from tpuctl.provenance.manifest import SliceSection
from tpuctl.slices.rules import check_together
from tpuctl.slices.validation import check_labels

_OF_SLICES: Mapping[str, Any] = {
    "api": None,
    "runtime_version": None,
    "network": None,
    "subnetwork": None,
    "service_account": None,
    "metadata": {},
    "description": None,
    "race": False,
    "queued": None,
    "valid_until": None,
    "valid_for": None,
    "internal_ips": False,
    "network_tag": (),
    "boot_disk": None,
    "startup_script": None,
    "ttl": None,
    "stop_when_idle": None,
}
"""Options of slices that mean nothing on a cluster, whose node pools somebody has made, with their defaults."""

_DRIVERS_OWN = frozenset(
    {"foreground", "cache-dir", "file-system.fuse-options", "metadata-cache.enable-metadata-prefetch"}
)
"""Keys of gcsfuse that its CSI driver sets itself, and drops with a warning (pkg/sidecar_mounter of
GoogleCloudPlatform/gcs-fuse-csi-driver, sidecar_mounter_config.go). The last one is newer than some versions of
gcsfuse on GKE, which do not start with a key that they do not know."""
_AS_FLAGS = {
    "only-dir": "only-dir",
    "file-system.uid": "uid",
    "file-system.gid": "gid",
    "file-system.file-mode": "file-mode",
    "file-system.dir-mode": "dir-mode",
}
"""The driver takes keys as `a:b:VALUE`, and these as flags, `NAME=VALUE`: as a key, `644` would become a
decimal number."""


def resolve_target(
    services: Services,
    capacity: SliceRequest,
    request: ClusterRequest,
    name: str,
    namespace: str,
    was: SliceSection | None = None,
) -> ExportTarget:
    """What `capacity` comes to on a cluster; what it does not say is as the slice `was`. Raises UsageError."""
    check_capacity(capacity)
    with_field("label", lambda: check_labels(capacity.label))
    was = was or SliceSection(name)
    accelerator = capacity.accelerator or was.accelerator_type
    if accelerator is None:
        raise UsageError.of(
            "up", "which node pools the run wants is not said", "--up TYPE, such as --up v6e-16"
        )
    topology = capacity.topology or (was.topology if capacity.accelerator is None else None)
    if topology is not None and capacity.accelerator is None:
        accelerator = accelerator.rpartition("-")[0]
    shape = resolve_shape(load_gke_table(), load_accelerators(), accelerator, topology, request.machine_type)
    slices = capacity.slices or was.slices
    rules = load_rules()
    mounts = tuple(parse_ref(rules, text) for text in capacity.mount)
    mounts = merge_mounts(tuple(from_data(MountRef, row) for row in was.mounts), mounts)
    found = [_disk(services, ref, shape, slices, name) for ref in _disk_refs(services, capacity, was)]
    volumes = tuple(volume for _, volume in found)
    tier = capacity.tier or (Tier(was.tier) if was.tier else Tier.ON_DEMAND)
    check_together(capacity, tier)
    return ExportTarget(
        name=name,
        namespace=namespace,
        shape=shape,
        slices=slices,
        provisioning=provisioning_of(capacity, tier, volumes),
        labels=capacity.label,
        mounts=mounts,
        buckets=tuple(bucket_volume(rules, each) for each in mounts),
        disks=tuple(ref for ref, _ in found),
        volumes=volumes,
    )


def _disk_refs(services: Services, capacity: SliceRequest, was: SliceSection) -> tuple[DiskRef, ...]:
    """Disks of `--disk`, and those of the slice. Without a mode they are read."""
    found = {row["name"]: from_data(DiskRef, row) for row in was.disks}
    for text in capacity.disk:
        said = parse_disk(text)
        known = find_record(services, said.name)
        path = said.path or f"/mnt/{known.master if known is not None else said.name}"
        found[said.name] = DiskRef(said.name, path, said.mode or DiskMode.READ_ONLY)
    return tuple(found.values())


def _disk(services: Services, ref: DiskRef, shape: Shape, slices: int, name: str) -> tuple[DiskRef, DiskVolume]:
    """The disk as it is in Compute Engine. Raises UsageError where pods of that shape cannot read it."""
    known = find_record(services, ref.name)
    zone = known.request.zone if known is not None else ""
    disk = services.disks.find_disk(zone, ref.name) if zone else None
    if disk is None:
        raise NotFoundError(f"there is no disk {ref.name}", hint="tpuctl disk ls")
    place = DiskTarget(name, disk.zone, shape.generation, shape.hosts * slices)
    for each in DiskRules(load_disk_rules()).check_attach(disk, DiskMode.READ_ONLY, place):
        if each.policy is Policy.DENY:
            raise UsageError.of("disk", each.why, each.hint or None)
        services.emit(Warn(name, each.why))
    return ref, disk_volume(ref, disk, services.project)


def check_capacity(request: SliceRequest) -> None:
    """Raises UsageError for an option of slices that a cluster has no use for."""
    for name, default in _OF_SLICES.items():
        if getattr(request, name) != default:
            flag = "--queued and --direct" if name == "queued" else f"--{name.replace('_', '-')}"
            why = f"{flag}: node pools of a cluster are as whoever made them wanted it"
            raise UsageError.of(name, why, f"leave out {flag}")


def provisioning_of(request: SliceRequest, tier: Tier, disks: Sequence[DiskVolume] = ()) -> ClusterCapacity:
    """Of `--spot` and its like, and of where `disks` are. Raises UsageError."""
    zones = tuple(zone for zone in request.zone if zone != "auto")
    for disk in disks:
        there = disk.handle.split("/")[3]
        if zones and zones != (there,):
            why = f"disk {disk.name} is in {there}, and pods there alone can read it"
            raise UsageError.of("zone", why, f"--zone {there}, or a clone: tpuctl disk clone {disk.name}")
        zones = (there,)
    duration = request.run_duration
    return ClusterCapacity(
        tier=tier,
        reservation=request.reservation or "",
        max_run_s=None if duration is None else round(parse_duration(duration, "--run-duration")),
        zones=zones,
    )


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
