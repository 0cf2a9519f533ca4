"""Whether a TPU may be deleted: what its hosts write, what they answer, who asks, and since when."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.builders import a_node, a_slice
from tpuctl.inventory.resources import written_disks
from tpuctl.model import timeouts
from tpuctl.model.cloud import GroupHosts, NodeState
from tpuctl.model.disks import DataDisk, DiskMode
from tpuctl.model.hosts import Endpoint
from tpuctl.model.records import Worker
from tpuctl.model.refs import MountRef
from tpuctl.model.verdict import Wait
from tpuctl.slices.leaving import Go, HostsLeft, Refuse, Written, find_written, judge_leaving, running_workers
from tpuctl.slices.states import SliceEvent

SINCE = 1000.0
DISK = Written(disks=("data",))
SILENT = HostsLeft(DISK, "timed out", (0, 2))
HELD = HostsLeft(DISK, "worker 0: 7 dd of ada has /mnt/data/x open")
AT_IT = HostsLeft(Written(mounts=("/mnt/b",)), "unmounting /mnt/b", working=True)
VERDICT, LIMIT = timeouts.VERDICT_MAX_S, timeouts.UNREACHABLE_MAX_S


@pytest.mark.parametrize(
    ("found", "person", "may_lose", "after", "becomes"),
    [
        (HostsLeft(), True, False, 0.0, Go),
        (HostsLeft(), False, False, 0.0, Go),
        (SILENT, True, False, 0.0, Wait),
        (SILENT, True, False, VERDICT - 1, Wait),
        (SILENT, True, False, VERDICT, Refuse),
        (SILENT, True, True, 0.0, Go),
        (SILENT, False, False, VERDICT, Wait),
        (SILENT, False, False, LIMIT - 1, Wait),
        (SILENT, False, False, LIMIT, Go),
        (SILENT, False, True, 0.0, Go),
        (HELD, True, False, 0.0, Refuse),
        (HELD, True, True, 0.0, Go),
        (HELD, False, False, 0.0, Wait),
        (HELD, False, False, LIMIT, Go),
        (AT_IT, True, False, VERDICT, Wait),
        (AT_IT, True, True, VERDICT, Wait),
        (AT_IT, True, False, LIMIT, Refuse),
        (AT_IT, True, True, LIMIT, Go),
        (AT_IT, False, False, LIMIT - 1, Wait),
        (AT_IT, False, False, LIMIT, Go),
    ],
)
def test_what_follows_from_the_answers_of_hosts(
    found: HostsLeft, person: bool, may_lose: bool, after: float, becomes: type
) -> None:
    verdict = judge_leaving(found, person=person, may_lose=may_lose, since=SINCE, now=SINCE + after)
    assert isinstance(verdict, becomes)
    if isinstance(verdict, Go):
        assert bool(verdict.unsaved) == (found.left != Written())


def test_a_loss_names_what_is_lost_and_why() -> None:
    verdict = judge_leaving(SILENT, person=False, may_lose=False, since=0.0, now=LIMIT)
    assert verdict == Go("what was not yet on disk data: worker 0,2 does not answer")
    held = judge_leaving(HELD, person=True, may_lose=False, since=0.0, now=0.0)
    assert held == Refuse(f"what was not yet on disk data: {HELD.why}", silent=False)


RW, RO = (
    DataDisk("us-central2-b", f"d-{mode.short}", mode) for mode in (DiskMode.READ_WRITE, DiskMode.READ_ONLY)
)
BUCKET = MountRef("b", "/mnt/b", "train")


@pytest.mark.parametrize(
    ("disks", "mounts", "event", "written"),
    [
        ((RW, RO), (), SliceEvent.NODE_READY, Written(disks=("d-rw",))),
        ((RO,), (), SliceEvent.NODE_READY, Written()),
        ((), (BUCKET,), SliceEvent.NODE_READY, Written(mounts=("/mnt/b",))),
        ((), (replace(BUCKET, read_only=True),), SliceEvent.NODE_READY, Written()),
        ((RW,), (BUCKET,), SliceEvent.UNCLEAR, Written(("d-rw",), ("/mnt/b",))),
        ((RW,), (BUCKET,), SliceEvent.CREATING, Written(("d-rw",), ("/mnt/b",))),
        ((RW,), (BUCKET,), SliceEvent.PREEMPTED, Written()),
        ((RW,), (BUCKET,), SliceEvent.ENDED_BY_PERSON, Written()),
        ((RW,), (BUCKET,), SliceEvent.STOPPED, Written()),
    ],
)
def test_what_hosts_may_be_writing(disks, mounts, event, written) -> None:
    workers = (Worker(Endpoint("10.0.0.1", "10.0.0.1"), "key"),)
    incarnation = a_slice().incarnation
    assert incarnation is not None
    life = replace(incarnation, cloud_ready_at=1.0, workers=workers)
    assert find_written(replace(a_node(), data_disks=disks), mounts, event, life) == written


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (NodeState.STOPPED, SliceEvent.STOPPED),
        (NodeState.PREEMPTED, SliceEvent.PREEMPTED),
        (NodeState.TERMINATED, SliceEvent.TIME_OVER),
    ],
)
def test_hosts_that_run_on_when_others_ended_are_asked_for_what_they_write(state, event) -> None:
    workers = tuple(Worker(Endpoint(f"10.0.0.{n}", instance=f"h{n}"), "key") for n in (1, 0))
    incarnation = a_slice().incarnation
    assert incarnation is not None
    life = replace(incarnation, cloud_ready_at=1.0, workers=workers)
    disks = tuple(replace(RW, name=f"d{n}", workers=(str(n),)) for n in (0, 1))
    node = replace(a_node(), state=state, data_disks=disks, hosts=GroupHosts(2, ("h0", "h1"), ("h1",)))
    assert find_written(node, (BUCKET,), event, life) == Written(("d1",), ("/mnt/b",))
    assert running_workers(node, life) == (0,)
    over = replace(node, hosts=GroupHosts(2, ("h0", "h1")))
    assert find_written(over, (BUCKET,), event, life) == Written()
    assert written_disks(replace(node, data_disks=(RW,))) == ("d-rw",)


def test_a_node_that_never_was_ready_has_written_nothing() -> None:
    incarnation = a_slice().incarnation
    assert incarnation is not None
    life = replace(incarnation, cloud_ready_at=None, workers=())
    node = replace(a_node(), data_disks=(RW,))
    assert find_written(node, (BUCKET,), SliceEvent.CREATING, life) == Written()
    assert find_written(node, (BUCKET,), SliceEvent.NODE_READY, life) == Written(disks=("d-rw",))


def test_all_nodes_of_a_multislice_are_looked_at() -> None:
    incarnation = a_slice().incarnation
    assert incarnation is not None
    parts = (a_node(), replace(a_node(), data_disks=(RW,)))
    node = replace(a_node(), parts=parts)
    assert find_written(node, (), SliceEvent.NODE_READY, incarnation) == Written(disks=("d-rw",))
