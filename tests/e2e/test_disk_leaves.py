"""`disk detach` of a disk that is written: of a slice that is not ready, and of silent hosts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.builders import a_run
from tests.support.jobs import bring_up
from tests.support.services import ProcessByProcess, SimServices
from tests.support.sim import RunningSim, running_sim
from tpuctl.disks.clone import create_master
from tpuctl.disks.follow import remember
from tpuctl.disks.rules import DiskRules
from tpuctl.disks.use import leave_disk, use_disk
from tpuctl.errors import ConflictError, DamagedRecordError, TpuctlError, UnreachableError, UsageError
from tpuctl.model.disks import DiskMode, DiskRequest
from tpuctl.model.records import RunState, SliceState
from tpuctl.model.refs import DiskRef
from tpuctl.model.shipped_files import load_disk_rules
from tpuctl.state.repository import Versioned, get_slice, save

ZONE = "us-central2-b"
RULES = DiskRules(load_disk_rules())
REF = DiskRef("data", "/mnt/data", DiskMode.READ_WRITE)
pytestmark = pytest.mark.slow


class Lab(ProcessByProcess):
    """A slice of one host that writes a disk, and one process after the other on one machine."""

    def __init__(self, sim: RunningSim, folder: Path) -> None:
        super().__init__(sim, folder)
        with self.process() as services:
            for name in ("box", "other"):
                bring_up(services, name, accelerator_type="v4-8", hosts=1, chips=4)
            create_master(services, RULES, DiskRequest("data", ZONE, "pd-balanced", 10, {}), "data")
            self.attach(services)

    def attach(self, services: SimServices) -> None:
        use_disk(services, RULES, "data", to="box", rw=True, path="", mounted=False, dry_run=False)
        remember(services, "box", REF)  # as if it had been mounted, which takes root

    def stands(self, services: SimServices) -> tuple[bool, bool]:
        """Whether the node has it, and whether the slice shall have it."""
        record = get_slice(services, "box").record
        assert record.incarnation is not None
        node = services.cloud.find_node(ZONE, record.incarnation.cloud_name)
        assert node is not None
        return bool(node.data_disks), bool(record.spec.disks)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_sim(tmp_path_factory.mktemp("sim")) as sim:
        yield Lab(sim, tmp_path_factory.mktemp("lab"))


def test_the_slice_that_was_named_is_checked_although_another_has_the_disk(lab: Lab) -> None:
    with lab.process() as services, pytest.raises(UsageError, match="not attached to other, but to box"):
        leave_disk(services, "data", to="other", detached=True)


@pytest.mark.parametrize("detached", [True, False])
def test_it_stays_under_a_container_that_has_it(lab: Lab, detached: bool) -> None:
    run = a_run(id=f"writes-{detached}".lower(), slice_name="box", container="lab/tools:1")
    with lab.process() as services:
        stored = save(services, Versioned(run, 0), run)
        with pytest.raises(ConflictError, match=f"run {run.id} on box is in a container, which has") as no:
            leave_disk(services, "data", to="box", detached=detached)
        assert no.value.hint == f"tpuctl stop {run.id}"
        assert lab.stands(services) == (True, True)
        save(services, stored, replace(run, state=RunState.SUCCEEDED))


def test_a_run_that_has_no_container_yet_or_no_record_to_read_elsewhere_keeps_no_disk(lab: Lab) -> None:
    waits = a_run(id="waits", slice_name="box", container="lab/tools:1", attempt=None, state=RunState.WAITING)
    with lab.process() as services:
        stored = save(services, Versioned(waits, 0), waits)
        broken = services.store.put("runs/broken", {"spec": {"slice_name": "other"}}, if_generation=0)
        said = leave_disk(services, "data", to="box", detached=False, dry_run=True)["said"]
        assert said == "would unmount data from box"
        damaged = services.store.put("runs/damaged", {"spec": {"slice_name": "box"}}, if_generation=0)
        with pytest.raises(DamagedRecordError):
            leave_disk(services, "data", to="box", detached=False, dry_run=True)
        save(services, stored, replace(waits, state=RunState.STOPPED))
        for each in (broken, damaged):
            services.store.delete(each.key, if_generation=each.generation)


def test_a_detach_from_a_slice_that_is_not_ready_changes_nothing(lab: Lab) -> None:
    with lab.process() as services:
        stored = get_slice(services, "box")
        save(services, stored, replace(stored.record, state=SliceState.BOOTING))
        with pytest.raises(TpuctlError, match="slice box is booting"):
            leave_disk(services, "data", to="box", detached=True)
        assert lab.stands(services) == (True, True)
        save(services, get_slice(services, "box"), stored.record)


def test_a_host_that_is_silent_wants_force_which_is_written_down(lab: Lab) -> None:
    lab.sim.fail_hosts("box-1")
    with lab.process() as services:
        before = services.clock.now()
        with pytest.raises(UnreachableError, match=r"worker 0 of box does not answer: .* data yet") as refused:
            leave_disk(services, "data", to="box", detached=True)
        assert services.clock.now() - before >= 90  # a preemption shows late
        assert "--force" in str(refused.value.hint)
        assert lab.stands(services) == (True, True)
        leave_disk(services, "data", to="box", detached=True, force=True)
        assert lab.stands(services) == (False, False)
        entries = [str(dict(each.data)) for each in services.store.list("journal/slices/box/")]
        [entry] = [each for each in entries if "--force" in each]
        assert "worker 0 of box does not answer" in entry
