"""Buckets that hosts in memory have mounted, as their keepers would say it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.support.memory.disks import OperationFailed
from tpuctl.model.facts import BucketPlace
from tpuctl.mounts.follow import load_rules

if TYPE_CHECKING:
    from tests.support.memory.host import MemoryHost

Json = Mapping[str, Any]
VERSION = load_rules().pinned


class NearBuckets:
    """The part of `cloud_ports.ProjectApi` that mounts ask: every bucket is near."""

    def bucket_place(self, _bucket: str) -> BucketPlace:
        return BucketPlace("US-CENTRAL2", "region")


def mount_bucket(host: MemoryHost, parameters: Json) -> Json:
    path = parameters["path"]
    if path in host.full:
        raise OperationFailed(f"{path} is not empty", permanent=True)
    same = {key: parameters[key] for key in ("path", "bucket", "digest", "version")}
    keeper = hashlib.sha256(parameters["keeper"].encode()).hexdigest()
    host.buckets[path] = {**same, "state": "up", "alive": True, "keeper": keeper}
    return {"mounted": path}


def unmount_bucket(host: MemoryHost, parameters: Json) -> Json:
    host.buckets.pop(parameters["path"], None)
    return {"unmounted": parameters["path"]}
