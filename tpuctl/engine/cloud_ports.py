"""The seams to the cloud: what workflows may ask of the APIs of one project.

As in `engine/ports.py`, all methods raise subclasses of `TpuctlError` and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tpuctl.model.cloud import (
        CloudResource,
        GuestHostKey,
        Listing,
        NodeInfo,
        NodeState,
        ObjectHeaders,
        ObjectInfo,
        OfferInfo,
        OperationInfo,
        QueuedInfo,
        ResourceKind,
    )
    from tpuctl.model.disks import ComputeOperation, DataDisk, DiskInfo, DiskRequest, SnapshotInfo
    from tpuctl.model.facts import BucketPlace, BucketSettings, BucketSpec
    from tpuctl.model.firewall import Firewall
    from tpuctl.model.hosts import Api
    from tpuctl.model.quota import ComputeQuota, ProjectInfo, TpuQuota
    from tpuctl.model.slice_spec import SliceSpec


class Cloud(Protocol):
    """What makes the TPUs of one project: the Cloud TPU API, or Compute Engine. `zone` is a location id such as
    `us-central2-b`; `-` means all.

    `find_…` returns None only when the API said NOT_FOUND; whatever else goes wrong raises.
    `delete_…` treats NOT_FOUND as done and returns None.
    """

    def list_nodes(self, zone: str = "-") -> Listing[NodeInfo]: ...

    def find_node(self, zone: str, name: str) -> NodeInfo | None: ...

    def find_end(self, zone: str, uid: str) -> NodeState | None:
        """How a node ended that is not there any more: PREEMPTED, TERMINATED (its time was over) or STOPPED (by
        a person). None where nothing tells: nodes of the TPU API stay until somebody deletes them."""
        ...

    def create_node(self, node_id: str, spec: SliceSpec) -> OperationInfo:
        """A node in `spec.zone`, with the labels and metadata of `spec` as they are."""
        ...

    def delete_node(self, zone: str, name: str, proved: CloudResource | None = None) -> OperationInfo | None:
        """Where `proved` is given, deletes that alone, and not what has its name or lies on top by now."""
        ...

    def update_node(
        self, zone: str, name: str, *, labels: Mapping[str, str], metadata: Mapping[str, str] | None = None
    ) -> OperationInfo:
        """Replaces all labels and, unless None, all metadata of a READY node."""
        ...

    def list_disk_changes(self, zone: str, name: str) -> Mapping[str, tuple[DataDisk, ...] | None]:
        """The updates of a node that succeeded or are at work, by operation, with the data disks that it had at
        the end; None while one is at work."""
        ...

    def set_data_disks(self, zone: str, name: str, disks: Sequence[DataDisk]) -> OperationInfo:
        """Replaces the whole list of a node's data disks."""
        ...

    def find_operation(self, name: str) -> OperationInfo | None: ...

    def list_offers(self, zone: str) -> tuple[OfferInfo, ...]:
        """The accelerator or machine types that the API lists for `zone`; more than there are, and not all."""
        ...

    def list_host_keys(self, zone: str, name: str) -> tuple[GuestHostKey, ...]:
        """Host keys of all workers from guest attributes, in worker order; empty where none are published."""
        ...

    def list_host_heartbeats(self, zone: str, name: str) -> Mapping[int, str]:
        """The heartbeats that the supervisors of runs publish in guest attributes, by worker: values that
        change as long as the host lives. Workers without one are left out."""
        ...


class TpuApi(Cloud, Protocol):
    """What the Cloud TPU API alone has: queued resources."""

    def list_queued(self, zone: str = "-") -> Listing[QueuedInfo]: ...

    def find_queued(self, zone: str, name: str) -> QueuedInfo | None: ...

    def create_queued(self, node_id: str, spec: SliceSpec) -> OperationInfo:
        """A queued resource named like its one node; with more slices, these are `NODE_ID-0`, `NODE_ID-1`, …"""
        ...

    def delete_queued(self, zone: str, name: str) -> OperationInfo | None:
        """Deletes the queued resource and its nodes (force)."""
        ...


class Disks(Protocol):
    """Disks and snapshots of one project. `find_…` returns None only when the API said NOT_FOUND; `delete_…`
    treats NOT_FOUND as done. `key` names a request: the same one again is not done twice."""

    def list_disks(self) -> Listing[DiskInfo]: ...

    def find_disk(self, zone: str, name: str) -> DiskInfo | None: ...

    def create_disk(self, request: DiskRequest, key: str) -> ComputeOperation: ...

    def resize_disk(self, zone: str, name: str, size_gib: int) -> ComputeOperation: ...

    def set_throughput(self, zone: str, name: str, mib_s: int) -> ComputeOperation: ...

    def delete_disk(self, zone: str, name: str) -> ComputeOperation | None: ...

    def list_snapshots(self) -> tuple[SnapshotInfo, ...]: ...

    def find_snapshot(self, name: str) -> SnapshotInfo | None: ...

    def create_snapshot(
        self, zone: str, disk: str, name: str, labels: Mapping[str, str], key: str
    ) -> ComputeOperation: ...

    def delete_snapshot(self, name: str) -> ComputeOperation | None: ...

    def find_operation(self, operation: ComputeOperation) -> ComputeOperation | None:
        """How an operation stands now."""
        ...


class Inventory(Protocol):
    """What the project holds besides TPUs. Reads only."""

    def list_assets(self, kind: ResourceKind) -> Listing[CloudResource]:
        """All of one kind, in all locations."""
        ...


class ProjectApi(Protocol):
    """What the project is and allows. Reads only; each method may be denied alone."""

    def list_services(self) -> frozenset[str]:
        """The enabled APIs, such as `tpu.googleapis.com`."""
        ...

    def granted_permissions(self, permissions: Sequence[str]) -> frozenset[str]:
        """Those of `permissions` that the caller has on the project."""
        ...

    def project_info(self) -> ProjectInfo: ...

    def network(self, name: str) -> str:
        """The name of a VPC network, which may be given as a path. Raises NotFoundError."""
        ...

    def firewall(self, name: str) -> Firewall:
        """What may arrive at hosts in a VPC network, which may be given as a path."""
        ...

    def region_quotas(self, region: str) -> tuple[ComputeQuota, ...]: ...

    def tpu_quotas(self, api: Api) -> tuple[TpuQuota, ...]:
        """The limits of the TPUs that `api` makes, in every place where one applies and is stated. Their use
        the API does not tell."""
        ...

    def bucket_place(self, bucket: str) -> BucketPlace:
        """Where a bucket is; NotFoundError if there is none."""
        ...

    def bucket_settings(self, bucket: str) -> BucketSettings: ...

    def bucket_permissions(self, bucket: str, permissions: Sequence[str]) -> frozenset[str]:
        """Those of `permissions` that the caller has on the bucket."""
        ...

    def bucket_members(self, bucket: str) -> Mapping[str, Sequence[str]]:
        """Who has each role by the policy of the bucket itself."""
        ...

    def clock_ahead(self) -> float:
        """Seconds by which the API's clock is ahead of this machine's, as its Date header shows it (so within
        a second or two). Needs no credentials."""
        ...


class Objects(Protocol):
    """Objects in buckets. `uri` is `gs://bucket/name`; generation 0 means "must not exist"."""

    def bucket_exists(self, bucket: str, *, timeout_s: float | None = None) -> bool:
        """TransientError where there is no answer in `timeout_s`; None for as long as reads have."""
        ...

    def create_bucket(self, spec: BucketSpec) -> None:
        """ConflictError where somebody has a bucket of that name."""
        ...

    def read(self, uri: str) -> tuple[bytes, int]:
        """Content and generation; NotFoundError if missing."""
        ...

    def write(
        self,
        uri: str,
        content: bytes,
        *,
        if_generation: int | None = None,
        headers: ObjectHeaders | None = None,
    ) -> int:
        """Returns the new generation; ConflictError when the precondition failed."""
        ...

    def upload(
        self, uri: str, pieces: Iterable[bytes], size: int, *, if_generation: int | None = None
    ) -> ObjectInfo:
        """Writes `size` bytes that need not be in memory together; there is no object before the last came.
        ConflictError when the precondition failed."""
        ...

    def read_pieces(self, uri: str) -> Iterator[bytes]:
        """The content in pieces of some megabytes; NotFoundError if missing."""
        ...

    def delete(self, uri: str, *, if_generation: int | None = None) -> None: ...

    def list(self, prefix_uri: str, *, limit: int | None = None, glob: str = "") -> tuple[ObjectInfo, ...]:
        """The first `limit` objects; with `glob`, such as `**/name`, those whose whole name it is."""
        ...

    def is_public(self, bucket: str) -> bool | None:
        """Whether anybody on the internet may read its objects; None where no answer says so."""
        ...

    def server_time(self, bucket: str) -> float:
        """The server's clock, in seconds since the epoch, to about a second."""
        ...
