"""A clone that nobody held still, repaired on the slice that reads it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.crashing import Crash, Crashing, CrashPoint
from tests.support.jobs import SPEC, bring_up
from tests.support.memory.services import MemoryPlace
from tpuctl.disks.attach import attach
from tpuctl.disks.clone import clone, create_master
from tpuctl.disks.clone_request import plan_clone
from tpuctl.disks.make import bring_about, get_record, save_record
from tpuctl.disks.rules import DiskRules
from tpuctl.disks.use import use_disk
from tpuctl.errors import UsageError
from tpuctl.model.disks import DataDisk, DiskMode, DiskRequest
from tpuctl.model.requests import CloneRequest
from tpuctl.model.shipped_files import load_disk_rules

RULES = DiskRules(load_disk_rules())
ONE_HOST = {"accelerator_type": "v4-8", "hosts": 1, "chips": 4}


def test_what_a_repair_has_attached_that_was_cut_off_does_not_stand_in_the_way(place: MemoryPlace) -> None:
    services, dying = place.machine(), place.machine()
    for name in ("dev", "big"):
        bring_up(services, name, **ONE_HOST)
    create_master(services, RULES, DiskRequest("data", SPEC.zone, "pd-balanced", 10, {}), "data")
    use_disk(services, RULES, "data", to="dev", rw=True, path="", mounted=True, dry_run=False)
    request = CloneRequest("data", to="big", crash_consistent=True, on="big")
    dying.cloud = Crashing(dying.cloud, CrashPoint(1, after=True), lambda name, _: name == "set_data_disks")
    with pytest.raises(Crash):
        clone(dying, RULES, request)
    services.clock.sleep(60.0)
    [node] = [each for each in services.cloud.list_nodes().items if each.name == "big-1"]
    assert node.data_disks == (DataDisk(SPEC.zone, "data-g1", DiskMode.READ_WRITE),)
    plan = plan_clone(services, RULES, request)
    assert (plan.record.name, plan.on, plan.done) == ("data-g1", "big", False)
    with pytest.raises(UsageError, match="big-1 has disk data-g1 rw"):
        plan_clone(services, RULES, CloneRequest("data", to="big"))


def test_what_was_repaired_and_attached_before_the_end_is_not_repaired_again(place: MemoryPlace) -> None:
    services, request = place.machine(), CloneRequest("data", to="big", crash_consistent=True, on="big")
    for name in ("dev", "big"):
        bring_up(services, name, **ONE_HOST)
    create_master(services, RULES, DiskRequest("data", SPEC.zone, "pd-balanced", 10, {}), "data")
    use_disk(services, RULES, "data", to="dev", rw=True, path="", mounted=True, dry_run=False)
    save_record(services, plan_clone(services, RULES, request).record)
    bring_about(services, "data-g1")
    save_record(services, replace(get_record(services, "data-g1"), token="data-g1-word"))
    attach(services, SPEC.zone, ["big-1"], DataDisk(SPEC.zone, "data-g1", DiskMode.READ_ONLY))
    plan = plan_clone(services, RULES, request)
    assert (plan.record.name, plan.on, plan.done) == ("data-g1", "", False)
