"""A host of a paid slice dies while its node stays READY: how long until its run goes on elsewhere."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.jobs import bring_up, submit
from tests.support.memory.process import scripted
from tpuctl.errors import TpuctlError
from tpuctl.model.disks import DiskMode
from tpuctl.model.records import RunState
from tpuctl.model.refs import DiskRef, MountRef
from tpuctl.runs.follow import start_run
from tpuctl.slices.reconcile import wait_for_slice
from tpuctl.slices.replacement import find_replacement_limit
from tpuctl.state.repository import get_run, get_slice
from tpuctl.views.decisions import decisions
from tpuctl.views.slices import slice_status
from tpuctl.watch.reconciler import run_pass

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("asked_s", "limit_s"), [(None, 900.0), (300.0, 300.0)])
def test_a_dead_host_costs_one_limit_and_it_is_said_meanwhile(place, asked_s, limit_s):
    """Its peers hang in a collective operation. The silence is counted once, for the run and for its slice."""
    services = place.machine()
    services.replace_after_s = asked_s
    place.hosts.programs["main.py"] = scripted(7200.0)
    bring_up(services, "big")
    run = submit(services, "big", "main")
    start_run(services, run.id)
    began = services.store.now()
    place.hosts.all()[1].vanish()
    said = []
    while get_run(services, run.id).record.attempt.number == 1 or not running(services, run.id):
        place.clock.advance(60.0)
        said += [line.why for line in run_pass(services)]
        assert services.store.now() - began < limit_s + 600.0, said
    assert get_slice(services, "big").record.incarnation.cloud_name == "big-2"
    assert services.store.now() - began >= limit_s
    words = f"given up after {round(limit_s / 60)} min"
    assert any(words in each for each in said)
    assert any(words in row["reason"] for row in decisions(services, "big"))


def test_a_slice_in_doubt_says_when_it_is_given_up(place):
    services = place.machine()
    services.replace_after_s = 420.0
    bring_up(services, "big")
    place.hosts.all()[1].vanish()
    with pytest.raises(TpuctlError):
        wait_for_slice(services, "big", deadline=services.clock.now() + 60.0)
    assert "after 7 min" in slice_status(services, "big")["remark"]


def test_what_hosts_write_is_never_given_up_sooner(place):
    services = place.machine()
    services.replace_after_s = 300.0
    record = bring_up(services, "big")
    assert find_replacement_limit(services, record) == 300.0
    written = replace(record.spec, disks=(DiskRef("data", "/mnt/data", DiskMode.READ_WRITE),))
    assert find_replacement_limit(services, replace(record, spec=written)) == 900.0
    for read_only, limit_s in ((True, 300.0), (False, 900.0)):
        mounted = replace(record.spec, mounts=(MountRef("b", "/mnt/b", "p", read_only=read_only),))
        assert find_replacement_limit(services, replace(record, spec=mounted)) == limit_s


def running(services, run_id: str) -> bool:
    return get_run(services, run_id).record.state is RunState.RUNNING
