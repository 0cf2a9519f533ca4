"""Who is in the way of a run that has one chip of a host, who is not, and chips that are not free yet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from tests.support.jobs import bring_up, submit
from tests.support.memory.process import scripted
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.hosts.protocol import ChipHolder, ChipLock, Chips, HostFacts
from tpuctl.lib.time import render_moment
from tpuctl.model import timeouts
from tpuctl.model.attempts import AttemptPhase
from tpuctl.runs.attempt import AttemptHosts, attempt_hosts
from tpuctl.runs.context import RunContext
from tpuctl.runs.effects import apply_plan
from tpuctl.runs.follow import start_run
from tpuctl.runs.leftovers import free_chips
from tpuctl.runs.plan import plan_event
from tpuctl.runs.states import RunEvent, RunFinding
from tpuctl.state.leases import take_lease
from tpuctl.state.repository import get_run, get_slice, save

DEVICES = tuple(f"/dev/vfio/{number}" for number in range(4))


@pytest.fixture
def services() -> Iterator[MemoryServices]:
    place = MemoryPlace()
    place.hosts.programs["main.py"] = scripted(600.0, lines=["working"])
    services = place.machine()
    bring_up(services, "big", accelerator_type="v4-8", hosts=1, chips=4)
    for number in range(2):
        start_run(services, submit(services, "big", "hours", chips="1", tags=(str(number),)).id)
    yield services
    place.close()


def of_run(services: MemoryServices, run_id: str) -> AttemptHosts:
    hosts = attempt_hosts(services, get_run(services, run_id).record, get_slice(services, "big").record)
    assert hosts is not None
    return hosts


def found(
    services: MemoryServices,
    *holders: ChipHolder,
    locked_by: tuple[ChipHolder, ...] = (),
    busy: tuple[str, ...] = (),
) -> RunFinding | None:
    """What the run on chip 1 makes of what its host says."""
    lock = ChipLock("/tmp/libtpu_lockfile", "ada", foreign=False, holders=locked_by)
    chips = Chips(DEVICES, holders, unknown=False, lockfile=lock, busy=busy)
    facts = HostFacts("b", "h", "ada", "/home/ada", "3.10.12", "6.8", 0.0, 1 << 30, 240, None, chips)
    return free_chips(of_run(services, "run-0002"), [facts])


def holder(run: str = "", *devices: str) -> ChipHolder:
    return ChipHolder(7, "ada", "python train.py", 0.0, run=run, devices=devices)


def test_a_neighbour_keeps_its_chip_and_its_lock(services: MemoryServices) -> None:
    neighbour = holder("run-0001", DEVICES[0])
    assert found(services, neighbour) is None
    assert found(services, locked_by=(holder("run-0001"),)) is None
    assert found(services, holder("", DEVICES[3])) is None


@pytest.mark.parametrize(
    "other", [holder("run-0001", DEVICES[1]), holder("", DEVICES[0], DEVICES[1]), holder(), holder("run-9")]
)
def test_who_has_the_chip_of_a_run_is_named_and_left_alone(services: MemoryServices, other: ChipHolder) -> None:
    finding = found(services, other)
    assert finding is not None
    assert (finding.event, "pid 7 of ada" in finding.why) == (RunEvent.IN_THE_WAY, True)
    assert "sudo kill -9 7" in finding.reason


def test_a_chip_that_is_not_free_yet_is_waited_for_and_then_told(services: MemoryServices) -> None:
    stored = get_run(services, "run-0002")
    assert stored.record.attempt is not None
    preparing = replace(stored.record.attempt, state=AttemptPhase.PREPARING)
    save(services, stored, replace(stored.record, attempt=preparing))
    services.clock.sleep(2 * timeouts.CHIPS_BUSY_S)  # something else was in the way before
    since = render_moment(services.store.now())
    for waited_s in (0.0, 1.0, timeouts.CHIPS_BUSY_S - 2.0):
        services.clock.sleep(waited_s)
        finding = found(services, busy=DEVICES[1:2])
        assert finding is not None
        assert finding.event is not RunEvent.IN_THE_WAY
        assert finding.why == f"chip 1 of worker 0, busy since {since}"
        write_down(services, finding)
    services.clock.sleep(1.0)
    later = found(services, busy=DEVICES[1:2])
    assert later is not None
    assert later.event is RunEvent.IN_THE_WAY
    assert later.reason.endswith("tpuctl exec --worker 0 big -- sudo fuser -v /dev/vfio/1")
    write_down(services, later)
    other = found(services, busy=DEVICES[2:3])
    assert other is not None
    assert other.event is not RunEvent.IN_THE_WAY


def write_down(services: MemoryServices, finding: RunFinding) -> None:
    """Does what the table says of a finding."""
    with take_lease(services, "big") as lease:
        stored, slice_ = get_run(services, "run-0002"), get_slice(services, "big").record
        context = RunContext(services, stored, slice_, [], lease.fence, services.clock.now() + 20.0)
        apply_plan(context, plan_event(stored.record, finding))
