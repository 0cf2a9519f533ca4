"""Killed at any changing call of any workflow, left without an answer, or met by a rival: it converges, leaks
nothing, makes nothing twice and deletes nothing that lives; the same command or a watchdog sees to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.builders import a_bundle
from tests.support.jobs import SPEC, bring_up, limit, submit
from tests.support.memory.services import MemoryPlace, MemoryServices
from tests.support.stories import (
    HOUR,
    Up,
    Watched,
    begin_run,
    long_program,
    make_ready,
    nodes,
    passes,
    state_of,
)
from tests.support.surviving import Accident, Repair, Story, accidents, cases, settled, survive_all
from tpuctl.errors import PendingError
from tpuctl.fleet.apply import apply_fleet
from tpuctl.fleet.load import observe_and_plan
from tpuctl.fleet.plan import WantedFleet, WantedRun
from tpuctl.inventory.reap import caller_of, reap, survey
from tpuctl.inventory.resources import Fate
from tpuctl.model.cloud import USER_LABEL, Tier
from tpuctl.model.records import Desired, RunState, SliceState
from tpuctl.model.requests import ApplyRequest
from tpuctl.model.run_spec import RestartPolicy, RunSpec
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.money.coverage import keep_grant
from tpuctl.money.grants import AtEnd, Grant
from tpuctl.runs.follow import start_run, stop_run
from tpuctl.runs.take_down import take_down
from tpuctl.slices.adopt import adopt, find_candidate
from tpuctl.slices.desired import request_slice
from tpuctl.slices.reconcile import wait_for_slice
from tpuctl.slices.resolve import WantedSlice
from tpuctl.state.repository import find_slice, get_slice, list_runs, list_slices
from tpuctl.transfer.bundle import CodeBundle
from tpuctl.transfer.tree import make_tree
from tpuctl.watch.pause import current_pause, pause_fleet, resume_fleet
from tpuctl.watch.reconciler import run_pass

ZONE, ELSEWHERE = SPEC.zone, "europe-west4-b"
FULL = "europe-west1-b"
"""Has v5p, and no runtime version of other generations."""
V5P: dict[str, Any] = {
    "accelerator_type": "v5p-8",
    "zone": FULL,
    "runtime_version": "v2-alpha-tpuv5",
    "hosts": 1,
    "chips": 4,
}


class Hunt(Up):
    """The first zone has no capacity, or refuses."""

    def __init__(self, preset: str, **spec: object) -> None:
        super().__init__((FULL, ELSEWHERE), **{**V5P, **spec})
        self.preset = preset

    def prepare(self, place: MemoryPlace) -> None:
        place.world.faults.add({"preset": self.preset, "zone": FULL, "times": 0})

    def check(self, place: MemoryPlace) -> None:
        super().check(place)
        assert get_slice(place.machine("server"), "big").record.spec.zone == ELSEWHERE


class UpAgain(Up):
    """`up NAME` of a slice that a person had removed, and that waited since."""

    def prepare(self, place: MemoryPlace) -> None:
        services = place.machine()
        make_ready(services, "big", queued=self.spec.queued)
        parent = f"projects/{services.project}/locations/{ZONE}"
        place.world.call("DeleteNode", {"name": f"{parent}/nodes/big-1"})
        passes(place.machine("server"), 15)
        assert state_of(place, "big") is SliceState.REMOVED

    def check(self, place: MemoryPlace) -> None:
        super().check(place)
        assert nodes(place) == ["big-2"]


class UpRefused(Up):
    """`up NAME` of a slice that was refused."""

    def prepare(self, place: MemoryPlace) -> None:
        fault = {"kind": "error", "method": "*.create", "code": 3, "message": "no such thing"}
        place.world.faults.add(fault)
        with pytest.raises(Exception, match="no such thing"):
            self.command(place.machine())
        assert state_of(place, "big") is SliceState.REFUSED


class UpAfterDown(Up):
    """A second life under the same name."""

    def prepare(self, place: MemoryPlace) -> None:
        services = place.machine()
        self.command(services)
        take_down(services, "big")


class Down:
    """A slice with a run on it goes."""

    watched = True
    lasting = True

    def __init__(self, **spec: object) -> None:
        self.spec = spec

    def prepare(self, place: MemoryPlace) -> None:
        long_program(place)
        services = place.machine()
        make_ready(services, "big", **self.spec)
        begin_run(services)
        make_ready(services, "other")

    def command(self, services: MemoryServices) -> None:
        take_down(services, "big", deadline=services.clock.now() + HOUR)

    def check(self, place: MemoryPlace) -> None:
        assert state_of(place, "big") is SliceState.GONE
        assert nodes(place) == ["other-1"]
        [run] = list_runs(place.machine("server"))
        assert run.state is RunState.STOPPED


class Adopt:
    """A node made by hand becomes a slice."""

    watched = True
    lasting = True

    queued = ""

    def prepare(self, place: MemoryPlace) -> None:
        services = place.machine()
        parent = f"projects/{services.project}/locations/{ZONE}"
        body = {
            "acceleratorType": "v4-8",
            "runtimeVersion": SPEC.runtime_version,
            "metadata": {
                "ssh-keys": f"tpuctl:{services.public_key}\ntpuctl:{place.machine('server').public_key}"
            },
        }
        if self.queued:
            spec = {"parent": parent, "nodeId": "hand", "node": body}
            asked = {"parent": parent, "queuedResourceId": self.queued}
            place.world.call("CreateQueuedResource", {**asked, "queuedResource": {"tpu": {"nodeSpec": [spec]}}})
        else:
            place.world.call("CreateNode", {"parent": parent, "nodeId": "hand", "node": body})
        place.clock.advance(600.0)

    def command(self, services: MemoryServices) -> None:
        found = find_candidate(services, "hand", None, None)
        adopt(services, load_accelerators(), found, login_user="tpuctl", add_key=False, pay=True)
        services.clock.sleep(60.0)
        wait_for_slice(services, "hand", deadline=services.clock.now() + HOUR)

    def check(self, place: MemoryPlace) -> None:
        assert state_of(place, "hand") is SliceState.READY
        assert nodes(place) == ["hand"]
        services = place.machine()
        node = services.cloud.find_node(ZONE, "hand")
        assert node.labels[USER_LABEL] == "ada"
        assert survey(services).of(Fate.DELETE) == []


class AdoptQueued(Adopt):
    """A queued resource of another name becomes one."""

    queued = "outer"


class Reap:
    """Two leftovers of ours go, what is wanted and what is others' stays."""

    watched = False
    lasting = True

    def prepare(self, place: MemoryPlace) -> None:
        services = place.machine()
        make_ready(services, "a")
        make_ready(services, "b", "big", queued=False)
        for name in ("a", "b"):
            stored = find_slice(services, name)
            assert stored is not None
            services.store.delete(f"slices/{name}", if_generation=stored.generation)

    def command(self, services: MemoryServices) -> None:
        caller = caller_of(services, all_users=False)
        doomed = survey(services).of(Fate.DELETE)
        ends = reap(services, doomed, caller, deadline=services.clock.now() + HOUR)
        assert {end.result for end in ends} <= {"gone", "failed"}
        if any(end.result == "failed" for end in ends):
            self.command(services)

    def check(self, place: MemoryPlace) -> None:
        assert nodes(place) == ["big-1"]
        assert len(place.world.census()) == 1


class Pause:
    """A pause, and its end; in between nothing is done."""

    watched = True
    lasting = True

    def prepare(self, place: MemoryPlace) -> None:
        make_ready(place.machine(), "big")

    def command(self, services: MemoryServices) -> None:
        pause_fleet(services, until=None, reason="a talk")
        assert {line.result for line in run_pass(services)} == {"paused"}
        resume_fleet(services)

    def check(self, place: MemoryPlace) -> None:
        assert current_pause(place.machine("server")) is None
        assert state_of(place, "big") is SliceState.READY


class WatchedRecovery(Watched):
    """A preempted slice comes back with its run."""

    minutes = 15

    def __init__(self, **spec: object) -> None:
        self.spec = spec

    def begin(self, place: MemoryPlace) -> None:
        long_program(place)
        services = place.machine()
        make_ready(services, "big", **self.spec)
        begin_run(services)
        place.world.preempt("big-1")

    def check(self, place: MemoryPlace) -> None:
        assert state_of(place, "big") is SliceState.READY
        assert {name[:5] for name in nodes(place)} == {"big-2"}
        [run] = list_runs(place.machine("server"))
        assert run.attempt is not None
        assert (run.state, run.preemptions, run.failures) == (RunState.RUNNING, 1, 0)
        assert run.attempt.number == 2


class RunBeside:
    """Runs begin on the chips of one host, beside one that goes on as it was."""

    watched = True
    lasting = True

    def prepare(self, place: MemoryPlace) -> None:
        long_program(place)
        services = place.machine()
        make_ready(services, "big", accelerator_type="v4-8", hosts=1, chips=4)
        start_run(services, submit(services, "big", "hours", chips="1", policy=RestartPolicy(grace_s=1.0)).id)

    def command(self, services: MemoryServices) -> None:
        for tag in ("second", "third"):
            run = submit(services, "big", "hours", chips="1", tags=(tag,), policy=RestartPolicy(grace_s=1.0))
            start_run(services, run.id)

    def chips(self, place: MemoryPlace) -> dict[str, tuple[int, ...]]:
        """Of the runs that are not over, by their tags; each in its first attempt."""
        runs = [run for run in list_runs(place.machine("server")) if not run.state.final]
        attempts = [run.attempt for run in runs]
        assert {(run.state, run.failures, run.preemptions) for run in runs} == {(RunState.RUNNING, 0, 0)}
        assert {attempt.number for attempt in attempts if attempt is not None} == {1}
        return {"".join(run.spec.tags): run.chips for run in runs}

    def check(self, place: MemoryPlace) -> None:
        found = self.chips(place)
        assert found[""] == (0,)
        assert sorted(found) == ["", "second", "third"]
        assert sorted(found.values()) == [(0,), (1,), (2,)]


class StopBeside(RunBeside):
    """One of two runs on a host is stopped, and its chip is the next one's."""

    def prepare(self, place: MemoryPlace) -> None:
        super().prepare(place)
        services = place.machine()
        start_run(services, submit(services, "big", "hours", chip="1", policy=RestartPolicy(grace_s=1.0)).id)

    def command(self, services: MemoryServices) -> None:
        second = list_runs(services)[1]
        stop_run(services, second.id)

    def check(self, place: MemoryPlace) -> None:
        assert self.chips(place) == {"": (0,)}
        stopped = [run.chips for run in list_runs(place.machine("server")) if run.state is RunState.STOPPED]
        assert stopped == [(1,)]


class WatchedRecoveryBeside(Watched):
    """A preempted slice of one host comes back with its runs, each on the chip that it had."""

    minutes = 15

    def begin(self, place: MemoryPlace) -> None:
        RunBeside().prepare(place)
        RunBeside().command(place.machine())
        place.world.preempt("big-1")

    def check(self, place: MemoryPlace) -> None:
        runs = list_runs(place.machine("server"))
        assert {(run.state, run.preemptions, run.failures) for run in runs} == {(RunState.RUNNING, 1, 0)}
        assert {run.attempt.number for run in runs if run.attempt is not None} == {2}
        assert sorted(run.chips for run in runs) == [(0,), (1,), (2,)]


class CopyingRun:
    """A run begins whose code its hosts copy from each other, which takes them longer than a step."""

    watched = True
    lasting = True

    def prepare(self, place: MemoryPlace) -> None:
        long_program(place)
        place.hosts.copy_bytes_per_s = 80_000.0
        bring_up(place.machine(), "big", accelerator_type="v4-64", hosts=8, chips=32)

    def command(self, services: MemoryServices) -> None:
        start_run(services, submit(services, "big", "x" * 1_100_000, policy=RestartPolicy(grace_s=1.0)).id)

    def check(self, place: MemoryPlace) -> None:
        [run] = list_runs(place.machine("server"))
        assert run.attempt is not None
        assert (run.state, run.attempt.number) == (RunState.RUNNING, 1)
        hosts = place.hosts.all()
        assert [host.blob_sizes().count(1_100_000) for host in hosts] == [1] * 8


class WatchedGrantEnd(Watched):
    """A grant is over, and its slice was to go with it."""

    def begin(self, place: MemoryPlace) -> None:
        long_program(place)
        services = place.machine()
        make_ready(services, "big")
        begin_run(services)
        grant = Grant(ZONE, Tier.SPOT, "v4", 32, "2020-01-01", at_end=AtEnd.DOWN)
        keep_grant(services, grant)

    def check(self, place: MemoryPlace) -> None:
        assert state_of(place, "big") is SliceState.GONE
        assert nodes(place) == []
        [run] = list_runs(place.machine("server"))
        assert run.state is RunState.STOPPED


class WatchedTimeLimit(Watched):
    """The time of a slice is over; others stay."""

    def begin(self, place: MemoryPlace) -> None:
        super().begin(place)
        limit(place.machine(), "big", ttl_s=660.0)

    def check(self, place: MemoryPlace) -> None:
        assert state_of(place, "big") is SliceState.GONE
        assert nodes(place) == ["other-1"]


class WatchedSilence(Watched):
    """Hosts that stay silent while those of another slice answer are given up."""

    minutes = 60

    def begin(self, place: MemoryPlace) -> None:
        super().begin(place)
        place.world.fail_hosts("big-1")

    def check(self, place: MemoryPlace) -> None:
        assert state_of(place, "big") is SliceState.READY
        assert nodes(place) == ["big-2", "other-1"]


class WatchedHunt(Watched):
    """A slice that waits in a queue without capacity moves on to another zone."""

    def begin(self, place: MemoryPlace) -> None:
        place.world.set_capacity(FULL, 0)
        spec = replace(SPEC, **V5P)
        services = place.machine()
        zones = (FULL, ELSEWHERE)
        request_slice(services, "big", spec, pay=True, zones=zones, admit=lambda: None)

    def check(self, place: MemoryPlace) -> None:
        assert state_of(place, "big") is SliceState.READY
        assert get_slice(place.machine("server"), "big").record.spec.zone == ELSEWHERE
        assert nodes(place) == ["big-2"]


class WatchedLeftover(Watched):
    """What a create made whose answer was lost, shown after its slice was gone."""

    def begin(self, place: MemoryPlace) -> None:
        place.world.faults.add({"kind": "late", "method": "*.create", "seconds": 600.0})
        place.world.faults.add({"kind": "drop", "method": "*.create"})
        services = place.machine()
        spec = replace(SPEC, queued=False)
        request_slice(services, "big", spec, pay=False, admit=lambda: None)
        with pytest.raises(PendingError):
            wait_for_slice(services, "big", deadline=services.clock.now() + 30.0)
        take_down(services, "big")
        assert nodes(place) == ["big-1"]

    def check(self, place: MemoryPlace) -> None:
        assert nodes(place) == []


def _fleet(small: SliceSpec | None, *, run: bool) -> tuple[WantedFleet, dict[str, CodeBundle]]:
    code = a_bundle(make_tree({"main.py": b"hours"}))
    request = RunSpec(
        "big", ("python3", "main.py"), ".", RestartPolicy(grace_s=1.0), {}, {}, no_checkpoint=True
    )
    slices = [WantedSlice("big", (SPEC,), pay=True)]
    slices += [] if small is None else [WantedSlice("small", (small,), pay=True)]
    runs = [WantedRun("train", request, code.sha256)] if run else []
    return WantedFleet("lab", tuple(slices), tuple(runs)), {"train": code}


SMALL = replace(SPEC, accelerator_type="v4-8", hosts=1, chips=4)


class Apply:
    """A file with two slices and a run is brought about."""

    watched = True
    lasting = True

    how = ApplyRequest(replace=True, prune=True)
    small: SliceSpec | None = SMALL
    run = True

    def prepare(self, place: MemoryPlace) -> None:
        long_program(place)

    def command(self, services: MemoryServices) -> None:
        self.apply(services, *_fleet(self.small, run=self.run))

    def apply(self, services: MemoryServices, wanted: WantedFleet, code: dict[str, CodeBundle]) -> None:
        changes = observe_and_plan(services, wanted, self.how)
        apply_fleet(services, wanted, code, changes, deadline=services.clock.now() + 2 * HOUR)

    def check(self, place: MemoryPlace) -> None:
        wanted, _ = _fleet(self.small, run=self.run)
        server = place.machine("server")
        up = {record.name for record in list_slices(server) if record.desired is Desired.UP}
        assert up == {item.name for item in wanted.slices}
        assert settled(place)
        running = [run.id for run in list_runs(server) if not run.state.final]
        assert len(running) == len(wanted.runs)
        assert len(nodes(place)) == len(wanted.slices)


class ApplyReplace(Apply):
    """One of the slices is to be another."""

    small = replace(SPEC, queued=False)

    def prepare(self, place: MemoryPlace) -> None:
        super().prepare(place)
        self.apply(place.machine(), *_fleet(SMALL, run=True))

    def check(self, place: MemoryPlace) -> None:
        super().check(place)
        assert nodes(place) == ["big-1", "small-2"]


class ApplyPrune(ApplyReplace):
    """A slice and a run are no longer in the file."""

    small = None
    run = False

    def check(self, place: MemoryPlace) -> None:
        Apply.check(self, place)
        assert nodes(place) == ["big-1"]


STORIES: dict[str, Callable[[], Story]] = {
    "run whose code hosts copy": CopyingRun,
    "runs beside another": RunBeside,
    "stop beside another": StopBeside,
    "up queued": Up,
    "up direct": lambda: Up(queued=False),
    "up multislice": lambda: Up(accelerator_type="v4-8", hosts=2, chips=8, slices=2),
    "hunt after a stockout": lambda: Hunt("stockout", queued=False),
    "hunt after a stockout at once": lambda: Hunt("stockout-now", queued=False),
    "hunt after a refusal for good": lambda: Hunt("stockout", runtime_version=SPEC.runtime_version),
    "hunt in queues": lambda: Hunt("queued-internal"),
    "up of what a person removed": lambda: UpAgain(queued=False),
    "up of what was refused": UpRefused,
    "up after down": UpAfterDown,
    "down queued": Down,
    "down direct": lambda: Down(queued=False),
    "down multislice": lambda: Down(accelerator_type="v4-8", hosts=2, chips=8, slices=2),
    "adopt": Adopt,
    "adopt a queued resource": AdoptQueued,
    "reap": Reap,
    "pause and resume": Pause,
    "pass: recovery queued": WatchedRecovery,
    "pass: recovery direct": lambda: WatchedRecovery(queued=False),
    "pass: recovery multislice": lambda: WatchedRecovery(accelerator_type="v4-8", hosts=2, chips=8, slices=2),
    "pass: recovery of runs beside each other": WatchedRecoveryBeside,
    "pass: end of a grant": WatchedGrantEnd,
    "pass: end of a time limit": WatchedTimeLimit,
    "pass: silent hosts": WatchedSilence,
    "pass: another zone": WatchedHunt,
    "pass: leftovers": WatchedLeftover,
    "apply": Apply,
    "apply --replace": ApplyReplace,
    "apply --prune": ApplyPrune,
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "repair", "sample"), cases(STORIES))
def test_every_accident_of_every_workflow_is_survived(name: str, repair: Repair, sample: bool) -> None:
    assert survive_all(STORIES[name], repair, sample=sample) == []


def test_a_story_has_accidents_of_every_kind() -> None:
    kinds = {where.accident for where in accidents(Up)}
    assert kinds == set(Accident)
