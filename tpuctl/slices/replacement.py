"""After how long a live slice whose hosts do not answer is made anew, of one slice."""

from __future__ import annotations

from tpuctl.engine.services import Services
from tpuctl.inventory.resources import written_disks
from tpuctl.model.cloud import NodeInfo
from tpuctl.model.disks import DiskMode
from tpuctl.model.records import SliceRecord
from tpuctl.money.slice_costs import list_price
from tpuctl.slices.liveness import replacement_limit


def find_replacement_limit(services: Services, record: SliceRecord, node: NodeInfo | None = None) -> float:
    """`replacement_limit` of a slice, by its list price, the setting `replace_after`, and what its
    hosts write: disks that its specification or its `node` lists, and mounts."""
    asked = any(disk.mode is DiskMode.READ_WRITE for disk in record.spec.disks) or any(
        not mount.read_only for mount in record.spec.mounts
    )
    writes = asked or (node is not None and bool(written_disks(node)))
    return replacement_limit(list_price(record.spec), writes_disks=writes, asked_s=services.replace_after_s)
