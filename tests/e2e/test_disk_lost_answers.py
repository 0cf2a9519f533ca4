"""Every change of a disk takes effect and its answer is lost: it is done once, and no command ends for that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_disk_lists import Box
from tests.support.services import SimServices, sim_services
from tests.support.sim import RunningSim, running_sim
from tpuctl.disks.attach import attach, detach
from tpuctl.disks.clone import clone, create_master
from tpuctl.disks.remove import remove_disk, unused_copies
from tpuctl.disks.resize import resize_disk
from tpuctl.disks.rules import DiskRules
from tpuctl.engine.events import Waiting
from tpuctl.errors import QuotaError
from tpuctl.model.disks import DataDisk, DiskMode, DiskRequest
from tpuctl.model.requests import CloneRequest
from tpuctl.model.shipped_files import load_disk_rules

ZONE, OTHER = "us-central2-b", "us-central1-a"
RULES = DiskRules(load_disk_rules())


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with running_sim(tmp_path) as sim, sim_services(sim, tmp_path / "state") as services:
        made = Box(sim, services)
        made.set("a")
        yield made


def make(services: SimServices) -> None:
    create_master(services, RULES, DiskRequest("data", ZONE, "pd-balanced", 10, {}), "data")


def live(box: Box) -> None:
    """The life of a disk and its copy, every command typed once."""
    services = box.services
    make(services)
    attach(services, ZONE, ["box"], DataDisk(ZONE, "data", DiskMode.READ_ONLY))
    detach(services, ZONE, ["box"], "data")
    resize_disk(services, "data", 20, dry_run=False)
    clone(services, RULES, CloneRequest("data", zone=OTHER))
    [snapshot] = services.disks.list_snapshots()
    assert (snapshot.name, snapshot.disk_gib) == ("data-g1-s", 20)
    for each in unused_copies(services, 0).records:
        remove_disk(services, each.name)
    remove_disk(services, "data")


def changes(sim: RunningSim, since: int) -> list[str]:
    """What took effect, in order."""
    return [
        f"{entry.method} {entry.resource.rsplit('/', 1)[-1]}"
        for entry in list(sim.journal.entries())[since:]
        if entry.status in ("OK", "DROPPED")
    ]


LIFE = [
    "disks.insert data",
    "nodes.patch box",
    "nodes.patch box",
    "disks.resize data",
    "disks.createSnapshot data",
    "disks.insert data-g1",
    "disks.delete data-g1",
    "snapshots.delete data-g1-s",
    "disks.delete data",
]


def test_answers_that_are_lost_cost_time_alone(box: Box) -> None:
    before = len(list(box.sim.journal.entries()))
    for method in {each.split()[0] for each in LIFE}:
        box.sim.fault(kind="drop", method=method, times=0)
    live(box)
    assert changes(box.sim, before) == LIFE
    assert "DROPPED" in {entry.status for entry in box.sim.journal.entries()}
    assert box.names() == ["a"]
    assert {each.name for each in box.services.disks.list_disks().items} == {"a", "b", "c"}
    assert box.services.disks.list_snapshots() == ()


def test_what_somebody_attached_meanwhile_stays_although_our_answer_is_lost(box: Box) -> None:
    make(box.services)
    services = box.overtaken_by("a", "b")
    box.sim.fault(kind="drop", method="nodes.patch", skip=1)
    attach(services, ZONE, ["box"], DataDisk(ZONE, "data", DiskMode.READ_ONLY))
    assert sorted(box.names()) == ["a", "b", "data"]


def test_what_failed_once_is_asked_for_anew_by_the_next_command(box: Box) -> None:
    box.sim.fault(preset="disk-quota", times=1)
    with pytest.raises(QuotaError, match="SSD_TOTAL_GB"):
        make(box.services)
    make(box.services)
    found = box.services.disks.find_disk(ZONE, "data")
    assert found is not None
    assert found.status == "READY"


def test_waits_for_copies_tell_how_far_they_are(tmp_path: Path) -> None:
    slow = {"disk_copy": 1.0, "compute_operation": 0.0}
    with running_sim(tmp_path, delays=slow) as sim, sim_services(sim, tmp_path / "state") as services:
        make(services)
        clone(services, RULES, CloneRequest("data", zone=OTHER))
        waits = [each for each in services.events if isinstance(each, Waiting) and each.progress]
    assert {each.why for each in waits} >= {"snapshot data-g1-s is UPLOADING", "disk data-g1 is RESTORING"}
    assert {each.progress for each in waits if each.subject == "snapshot data-g1-s"} == {"0 B stored of 10 GiB"}
    disk = [int(each.progress.partition(" % of 10 GiB")[0]) for each in waits if "RESTORING" in each.why]
    assert disk == sorted(disk)
    assert 0 <= disk[0] < disk[-1] < 100
