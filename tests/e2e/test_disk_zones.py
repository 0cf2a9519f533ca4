"""Clones beyond one node and one zone, on isolated hosts: on every node of a multislice, and restored where a
slice comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.crashing import DISK_CHANGES, Crash, Crashing, CrashPoint
from tests.support.jobs import SPEC
from tests.support.require import require_isolated_hosts
from tests.support.services import ProcessByProcess, SimServices
from tests.support.sim import RunningSim, running_sim
from tests.support.soak import soak
from tests.support.things import with_disks
from tpuctl.disks.clone import clone, create_master
from tpuctl.disks.make import get_record, list_records, save_record
from tpuctl.disks.remove import check_removable, remove_disk, unused_copies
from tpuctl.disks.rules import DiskRules
from tpuctl.disks.thing import DISKS
from tpuctl.disks.use import leave_disk, use_disk
from tpuctl.errors import TpuctlError, UsageError
from tpuctl.model.disks import DiskMode, DiskRequest
from tpuctl.model.records import SliceRecord, SliceState
from tpuctl.model.refs import DiskRef
from tpuctl.model.requests import CloneRequest
from tpuctl.model.shipped_files import load_disk_rules
from tpuctl.runs.take_down import take_down
from tpuctl.slices.desired import request_slice
from tpuctl.slices.reconcile import wait_for_slice
from tpuctl.state.repository import get_slice
from tpuctl.watch.reconciler import run_pass

HERE, THERE = "us-central1-a", "us-west4-a"
SMALL = replace(SPEC, accelerator_type="v5litepod-4", zone=HERE, hosts=1, chips=4, queued=False)
RULES = DiskRules(load_disk_rules())
REF = DiskRef("data-g1", "/mnt/data", DiskMode.READ_ONLY)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Lab(ProcessByProcess):
    """A dev box with a disk, and one process after the other on one machine."""

    def __init__(self, sim: RunningSim, folder: Path) -> None:
        super().__init__(sim, folder)
        with self.process() as services:
            self.ask(services, "dev", (HERE,), ())
            wait_for_slice(services, "dev")
            create_master(services, RULES, DiskRequest("data", HERE, "pd-balanced", 10, {}), "data")
            use_disk(services, RULES, "data", to="dev", rw=True, path="", mounted=True, dry_run=False)
            self.on(services, "dev", "echo first > /mnt/data/word && sync")
            clone(services, RULES, CloneRequest("data", zone=HERE))
            self.on(services, "dev", "echo second > /mnt/data/word && sync")

    def ask(
        self,
        services: SimServices,
        name: str,
        zones: tuple[str, ...],
        disks: tuple[DiskRef, ...] = (REF,),
        **more: Any,
    ) -> None:
        spec = replace(SMALL, zone=zones[0], disks=disks, **more)
        request_slice(services, name, spec, pay=False, zones=zones, admit=lambda: None)

    def passes(self, services: SimServices, until: Callable[[SliceRecord], bool]) -> SliceRecord:
        for _ in range(60):
            services.clock.skip(60.0)
            run_pass(services)
            record = get_slice(services, "box").record
            if until(record):
                return record
        raise AssertionError(f"box is {record.state} in {record.spec.zone}")

    def forget_elsewhere(self) -> None:
        """As before a slice came up elsewhere."""
        with self.process() as services:
            take_down(services, "box")
            for each in list_records(services):
                if each.parent:
                    remove_disk(services, each.name)
            record = get_record(services, "data-g1")
            if record.snapshot:
                services.disks.delete_snapshot(record.snapshot)
                save_record(services, replace(record, snapshot=""))
            assert {each.name for each in services.disks.list_disks().items} == {"data", "data-g1"}
            assert services.disks.list_snapshots() == ()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    require_isolated_hosts()
    folder = tmp_path_factory.mktemp("zones")
    with running_sim(folder, hosts="isolated") as sim:
        yield Lab(sim, folder)


def test_every_node_of_a_multislice_gets_the_clone_in_one_call_each(lab: Lab) -> None:
    def patches() -> list[str]:
        calls = lab.sim.journal.entries()
        return [each.resource.rpartition("/")[2] for each in calls if each.method == "nodes.patch"]

    with lab.process() as services:
        before = len(patches())
        lab.ask(services, "box", (HERE,), slices=2, hosts=2, chips=8, queued=True)
        wait_for_slice(services, "box")
        assert lab.on(services, "box", "cat /mnt/data/word") == ["first\n"] * 2
        assert sorted(patches()[before:]) == ["box-1-0", "box-1-1"]
        clone(services, RULES, CloneRequest("data", to="box", path="/mnt/next"))
        assert (
            lab.on(services, "box", "cat /mnt/next/word; ! touch /mnt/next/x 2>/dev/null") == ["second\n"] * 2
        )
        assert len(patches()) == before + 4
        leave_disk(services, "data-g2", to="box", detached=True)
        assert lab.on(services, "box", "ls /mnt/next") == [""] * 2
        assert len(patches()) == before + 6
        disk = services.disks.find_disk(HERE, "data-g1")
        assert disk is not None
        assert len(disk.users) == 2
        assert get_slice(services, "box").record.spec.disks == (REF,)
        take_down(services, "box")
        remove_disk(services, "data-g2")
    lab.forget_elsewhere()


def test_the_next_master_is_written_and_an_older_snapshot_is_mounted(lab: Lab) -> None:
    with lab.process() as services:
        lab.ask(services, "box", (HERE,), ())
        wait_for_slice(services, "box")
        clone(services, RULES, CloneRequest("data", rw=True, name="next"))
        use: dict[str, Any] = {"rw": True, "path": "", "mounted": True, "dry_run": False}
        with pytest.raises(UsageError, match="data on dev has the same file system label as next"):
            use_disk(services, RULES, "next", to="dev", **use)
        use_disk(services, RULES, "next", to="box", **use)
        lab.on(services, "box", "grep -q second /mnt/next/word && echo third > /mnt/next/word && sync")
        older = clone(services, RULES, CloneRequest("next", snapshot_only=True)).snapshot
        lab.on(services, "box", "echo fourth > /mnt/next/word && sync")
        clone(services, RULES, CloneRequest("next", to="box", path="/mnt/older", from_snapshot=older))
        assert lab.on(services, "box", "cat /mnt/older/word /mnt/next/word") == ["third\nfourth\n"]
        take_down(services, "box")
        services.disks.delete_snapshot(older)
        for each in (record for record in list_records(services) if record.master == "next"):
            remove_disk(services, each.name)
    lab.forget_elsewhere()


def test_the_same_clone_is_there_in_the_zone_where_the_slice_comes_back(lab: Lab) -> None:
    with lab.process() as services:
        lab.ask(services, "box", (HERE, THERE))
        wait_for_slice(services, "box")
        assert lab.on(services, "box", "cat /mnt/data/word") == ["first\n"]
        lab.sim.fault(preset="stockout-now", zone=HERE, times=0)
        lab.sim.preempt(get_slice(services, "box").record.incarnation.cloud_name)  # type: ignore[union-attr]
    with lab.process() as services:
        record = lab.passes(services, lambda box: box.spec.zone == THERE and box.state is SliceState.READY)
        assert record.spec.disks == (REF,)
        assert lab.on(services, "box", "cat /mnt/data/word") == ["first\n"]
        lab.on(services, "box", "! touch /mnt/data/x 2>/dev/null")
        name = f"data-g1-{THERE}"
        restored = get_record(services, name)
        assert (restored.parent, restored.master, restored.generation) == ("data-g1", "data", 1)
        assert (restored.snapshot, restored.complete) == ("data-g1-s", True)
        told = [str(each) for each in services.events if "is restored in" in str(each)]
        assert any("about 2 min, about $1.00 a month more" in each for each in told), told
        [row] = DISKS.manifest(services, record, ())
        assert (row["name"], row["generation"], row["snapshot"]) == (name, 1, "data-g1-s")
        assert unused_copies(services, 0).records == ()
        for each in ("data-g1", name):
            with pytest.raises(UsageError, match=r"slice box|is attached"):
                check_removable(services, each)
        before = len(lab.sim.journal.entries())
        lab.ask(services, "box", (HERE, THERE))
        run_pass(services)
        assert lab.sim.journal.entries()[before:] == []
        assert get_slice(services, "box").record.state is SliceState.READY
        # By the name that it has elsewhere, too: the slice says which one is meant.
        assert leave_disk(services, "data-g1", to="box", detached=True)["name"] == name
        assert get_slice(services, "box").record.spec.disks == ()
    lab.sim.world.faults.clear()
    lab.forget_elsewhere()


@pytest.mark.parametrize(
    ("at", "when"), [(1, "after"), soak(1, "before"), soak(2, "before"), (2, "after"), soak(3, "before")]
)
def test_a_restore_killed_at_a_change_is_finished_by_the_next_pass(lab: Lab, at: int, when: str) -> None:
    """1: the snapshot, 2: the disk, 3: none is left."""
    point = CrashPoint(at, after=when == "after")
    with lab.process() as services, suppress(Crash):
        services.disks = Crashing(services.disks, point, lambda name, _: name in DISK_CHANGES)
        lab.ask(services, "box", (THERE,))
        wait_for_slice(services, "box")
    assert point.count == min(at, 2)
    with lab.process() as services:
        assert {each.name for each in services.disks.list_disks().items} <= {
            each.name for each in list_records(services)
        }
        wait_for_slice(services, "box")
        assert lab.on(services, "box", "cat /mnt/data/word") == ["first\n"]
        assert [each.name for each in services.disks.list_snapshots()] == ["data-g1-s"]
        assert len(services.disks.list_disks().items) == 3
    lab.forget_elsewhere()


def test_what_the_policy_does_not_allow_waits_for_a_person_who_says_so(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(load_disk_rules()["restore"], "most_usd_per_month", 0.5)
    typed = f"tpuctl disk clone data-g1 --zone {THERE} --allow restore-cost"
    with lab.process() as services:
        specs = (replace(SMALL, zone=HERE), replace(SMALL, zone=THERE))
        with pytest.raises(UsageError, match=r"costs about \$1.00 a month in us-west4-a") as refused:
            with_disks(services, ["data-g1"], specs)
        assert refused.value.hint == typed
        lab.ask(services, "box", (THERE,))
        with pytest.raises(TpuctlError, match="costs about") as blocked:
            wait_for_slice(services, "box")
        assert blocked.value.hint == typed
        assert {each.name for each in services.disks.list_disks().items} == {"data", "data-g1"}
        with pytest.raises(UsageError, match="costs about"):
            clone(services, RULES, CloneRequest("data-g1", zone=THERE))
        clone(services, DiskRules(load_disk_rules(), ["restore-cost"]), CloneRequest("data-g1", zone=THERE))
        wait_for_slice(services, "box")
        assert lab.on(services, "box", "cat /mnt/data/word") == ["first\n"]
    lab.forget_elsewhere()


def test_a_master_stays_where_it_is(lab: Lab) -> None:
    with lab.process() as services:
        lab.ask(services, "box", (THERE,), (DiskRef("data", "/mnt/data", DiskMode.READ_WRITE),))
        with pytest.raises(TpuctlError, match=f"disk data is in {HERE}, not in {THERE}"):
            wait_for_slice(services, "box")
        with pytest.raises(UsageError, match="a copy of data"):
            clone(services, RULES, CloneRequest("data-g1", zone=THERE, name="other"))
    lab.forget_elsewhere()
