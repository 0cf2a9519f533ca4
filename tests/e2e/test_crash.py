"""A crash at any call that changes something, then the same command again: it converges and leaks nothing.

In `make soak`: test_crash_everywhere.py dies at every call of every workflow, on hosts in memory, and
test_kill9.py kills real commands at some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.builders import a_bundle
from tests.support.crashing import Crash, CrashPoint, make_crashing
from tests.support.hosts import shared_folder
from tests.support.services import SimServices, sim_services
from tests.support.sim import RunningSim, running_sim
from tpuctl.model.cloud import Tier
from tpuctl.model.records import RunState, SliceState
from tpuctl.model.run_spec import Policy, RunSpec
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.runs.follow import follow_run
from tpuctl.runs.reconcile import request_run
from tpuctl.runs.submit import check_request, freeze_run
from tpuctl.runs.take_down import take_down
from tpuctl.slices.desired import request_slice
from tpuctl.slices.reconcile import wait_for_slice
from tpuctl.state.repository import get_slice, list_runs
from tpuctl.transfer.tree import make_tree

SPEC = SliceSpec("v4-16", "us-central2-b", Tier.SPOT, "tpu-ubuntu2204-base", hosts=2, chips=8)
PROGRAM = b"""
import os
line = os.environ["TPUCTL_RANK"] + " attempt " + os.environ["TPUCTL_ATTEMPT"] + "\\n"
with open(os.environ["TALLY"], "a") as tally:
    tally.write(line)
print("done", line.strip())
"""
SHARDS = 8
"""The crash points are spread over this many tests so that they can run side by side."""


@pytest.fixture(scope="module")
def sim(tmp_path_factory) -> Iterator[RunningSim]:
    with running_sim(tmp_path_factory.mktemp("sim")) as running:
        yield running


class Life:
    """`up`, `run` and `down` of one slice as three commands, each in a process that may die."""

    def __init__(self, sim: RunningSim, directory: Path, name: str) -> None:
        self.sim = sim
        self.state_dir = directory / "state"
        self.tally = directory / "tally"
        self.name = name
        self.processes = 0
        shared_folder(directory)

    def commands(self) -> list[Callable[[SimServices], None]]:
        return [self.up, self.run, self.down]

    def up(self, services: SimServices) -> None:
        request_slice(services, self.name, SPEC, pay=False, admit=lambda: None)
        wait_for_slice(services, self.name)

    def run(self, services: SimServices) -> None:
        request = RunSpec(
            self.name,
            ("python3", "main.py"),
            ".",
            Policy(),
            {"TALLY": str(self.tally)},
            {},
            no_checkpoint=True,
        )
        check_request(services, request)
        code = a_bundle(make_tree({"main.py": PROGRAM}))
        fresh = freeze_run(services, f"{self.name}-r{self.processes}", request, code)
        follow_run(services, request_run(services, fresh).id)

    def down(self, services: SimServices) -> None:
        take_down(services, self.name)

    def execute(self, command: Callable[[SimServices], None], point: CrashPoint) -> bool:
        """Runs one command in a "process" of its own; False when it crashed."""
        self.processes += 1
        with sim_services(self.sim, self.state_dir, process=self.processes) as services:
            make_crashing(services, point)
            try:
                command(services)
            except Crash:
                return False
        return True

    def live_through(self, point: CrashPoint) -> None:
        """All commands; the one that crashed is simply typed again."""
        for command in self.commands():
            if not self.execute(command, point):
                assert self.execute(command, CrashPoint())

    def check(self) -> None:
        with sim_services(self.sim, self.state_dir, process=0) as services:
            assert get_slice(services, self.name).record.state is SliceState.GONE
            assert all(run.state is RunState.SUCCEEDED for run in list_runs(services))
            names = [node.name for node in services.cloud.list_nodes().items]
            names += [queued.name for queued in services.cloud.list_queued().items]
            assert [name for name in names if name.startswith(f"{self.name}-")] == []
        lines = sorted(self.tally.read_text().splitlines())
        runs = len(lines) // 2
        assert lines == sorted(["0 attempt 1", "1 attempt 1"] * runs)
        assert runs == len(self.finished_runs())
        creates = [entry for entry in self.sim.journal.entries() if self._is_create(entry)]
        assert len(creates) == 1

    def finished_runs(self) -> list[str]:
        with sim_services(self.sim, self.state_dir, process=0) as services:
            return [run.id for run in list_runs(services)]

    def _is_create(self, entry) -> bool:
        return entry.method.endswith("create") and f"{self.name}-" in entry.resource and entry.status == "OK"


def count_changes(sim: RunningSim, directory: Path) -> int:
    life = Life(sim, directory / "counted", "counted")
    point = CrashPoint()
    life.live_through(point)
    life.check()
    return point.count


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_command_converges_after_a_crash_at_any_changing_call(sim, tmp_path, shard, after):
    total = count_changes(sim, tmp_path) if shard == 0 and not after else 70
    for k in range(1 + shard, total + 1, SHARDS):
        life = Life(sim, tmp_path / f"at-{k}", f"s{shard}{'a' if after else 'b'}{k}")
        life.live_through(CrashPoint(k, after=after))
        life.check()
