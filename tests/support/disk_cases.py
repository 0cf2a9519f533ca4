"""What stories of interrupted commands of disks begin with, and what is looked at afterwards."""

from __future__ import annotations

from typing import Any

from tests.support.jobs import SPEC
from tests.support.memory.disks import written
from tests.support.memory.services import MemoryPlace, MemoryServices
from tests.support.stories import make_ready
from tpuctl.disks.clone import clone, create_master
from tpuctl.disks.make import list_records
from tpuctl.disks.rules import DiskRules
from tpuctl.disks.use import use_disk
from tpuctl.model.disks import DiskRequest
from tpuctl.model.requests import CloneRequest
from tpuctl.model.shipped_files import load_disk_rules

DISK, COPY, PATH = "data", "data-g1", "/mnt/data"
ZONE, ELSEWHERE = SPEC.zone, "us-central1-a"
ONE_HOST = {"accelerator_type": "v4-8", "hosts": 1, "chips": 4}
RULES = DiskRules(load_disk_rules())


def make_disk(services: MemoryServices, *, kind: str = "pd-balanced", **more: Any) -> None:
    create_master(services, RULES, DiskRequest(DISK, ZONE, kind, 10, {}, **more), DISK)


def attach(services: MemoryServices) -> None:
    use_disk(services, RULES, DISK, to="dev", rw=True, path="", mounted=True, dry_run=False)


def make_written(services: MemoryServices) -> None:
    """A disk that is written on the one host of `dev`."""
    make_disk(services)
    make_ready(services, "dev", **ONE_HOST)
    attach(services)


def copy(services: MemoryServices, **request: Any) -> None:
    clone(services, RULES, CloneRequest(DISK, **request))


def disks(place: MemoryPlace) -> list[str]:
    return sorted(each.name for each in place.machine("server").disks.list_disks().items)


def snapshots(place: MemoryPlace) -> list[str]:
    return sorted(each.name for each in place.machine("server").disks.list_snapshots())


def listed(place: MemoryPlace) -> list[str]:
    """Disks in the lists of all nodes."""
    services = place.machine("server")
    return [disk.name for node in services.cloud.list_nodes().items for disk in node.data_disks]


def mounted(place: MemoryPlace) -> list[str]:
    """Where hosts have disks."""
    return [str(row["path"]) for host in place.hosts.all() for row in host.mounts]


def is_written(place: MemoryPlace) -> bool:
    """Whether just one host has the one disk for writing."""
    return len([key for host in place.hosts.all() for key in written(host)]) == 1


def content(place: MemoryPlace, name: str) -> Any:
    """What is on a disk, or in a snapshot."""
    services = place.machine("server")
    snapshot = services.disks.find_snapshot(name)
    found = snapshot or next(each for each in services.disks.list_disks().items if each.name == name)
    return place.hosts.disks.contents[found.uid]


def check_recorded(place: MemoryPlace) -> None:
    """Whatever is in the cloud has a record, and nothing is recorded that is not there."""
    records = list_records(place.machine("server"))
    assert sorted(each.name for each in records if each.wanted) == disks(place)
    assert set(snapshots(place)) <= {each.snapshot for each in records}
    assert all(each.complete and not each.hold for each in records), records


def check_copy(place: MemoryPlace, name: str = COPY) -> None:
    """A copy is of one moment, and holds the word by which hosts know it."""
    check_recorded(place)
    [record] = [each for each in list_records(place.machine("server")) if each.name == name]
    found = content(place, record.snapshot if record.is_snapshot else name)
    assert not found.dirty
    assert record.token in ("", found.word)
