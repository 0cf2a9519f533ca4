"""`python -m tests.soak [--minutes N] [--seed N]`: random trouble for a long time, invariants after each life.

Each life is a slice that is brought up, runs a program on its two hosts and is taken down, while preemptions,
stockouts, blips, lost answers and crashes of the client strike at random. Whatever happens, typing the commands
again must converge, run every attempt once per worker and leave nothing in the cloud.

Between them whole fleets of forty slices live for half a day by a clock of their own; a long soak begins with
a week of one.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.e2e.fleet.life import Plan, half_a_day, week
from tests.e2e.fleet.life import live as live_fleet
from tests.e2e.fleet.weather import DAY
from tests.support.builders import a_bundle
from tests.support.crashing import Crash, CrashPoint, make_crashing
from tests.support.fuzzing import Fuzzer, few_chips
from tests.support.hosts import shared_folder
from tests.support.services import SimServices, sim_services
from tests.support.sim import RunningSim, running_sim
from tpuctl.errors import TpuctlError
from tpuctl.model.cloud import Tier
from tpuctl.model.records import RunState, SliceState
from tpuctl.model.run_spec import RestartPolicy, RunSpec
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.runs.follow import follow_run
from tpuctl.runs.request import request_run
from tpuctl.runs.submit import check_request, freeze_run
from tpuctl.runs.take_down import take_down
from tpuctl.slices.desired import request_slice
from tpuctl.slices.reconcile import wait_for_slice
from tpuctl.state.repository import get_slice, list_runs
from tpuctl.transfer.tree import make_tree

FAULTS = (
    "stockout",
    "stockout-now",
    "queued-internal",
    "blip",
    "lost-response",
    "slow-operation",
    "rate-limit",
)
TRIES = 60
TROUBLED_TRIES = 25
"""So often a command is crashed and its slice taken away; then it must converge, on a busy machine, too."""
LIVES_PER_FLEET = 5
WEEK_FROM_MINUTES = 20
"""A whole week of a fleet takes several minutes of a processor: only a long soak begins with one."""


SPEC = SliceSpec("v4-16", "us-central2-b", Tier.SPOT, "tpu-ubuntu2204-base", hosts=2, chips=8)
PROGRAM = b"""
import os
line = os.environ["TPUCTL_RANK"] + " attempt " + os.environ["TPUCTL_ATTEMPT"] + "\\n"
with open(os.environ["TALLY"], "a") as tally:
    tally.write(line)
print("done", line.strip())
"""


class SliceLife:
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
            RestartPolicy(),
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


class Preempter(threading.Thread):
    """Takes every TPU of the world away at random moments until it is told to end."""

    def __init__(self, sim: RunningSim, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self._sim = sim
        self._chance = chance
        self.over = threading.Event()
        self.resting = threading.Event()

    def run(self) -> None:
        while not self.over.wait(self._chance.uniform(0.5, 4.0)):
            if self.resting.is_set():
                continue
            for node in self._sim.world.snapshot().get("nodes", []):
                self._preempt(str(node["name"]).rsplit("/", 1)[-1])

    def _preempt(self, name: str) -> None:
        try:
            self._sim.preempt(name)
        except Exception as error:  # noqa: BLE001 - it may be gone already; only the invariants count
            print(f"  not preempted: {error}", flush=True)


def live(sim: RunningSim, preempter: Preempter, directory: Path, name: str, chance: random.Random) -> None:
    """One life with crashes at random changing calls."""
    life = SliceLife(sim, directory / name, name)
    for command in life.commands():
        preempter.resting.clear()
        for number in range(TRIES):
            point = CrashPoint(chance.randrange(1, 90), after=chance.random() < 0.5)
            if number >= TROUBLED_TRIES:
                preempter.resting.set()
                point = CrashPoint()
            try:
                if life.execute(command, point):
                    break
            except TpuctlError as error:
                print(f"  {name}: {error.message}", flush=True)
        else:
            raise AssertionError(f"{name}: {command.__name__} did not converge in {TRIES} tries")
    check(sim, life)


def check(sim: RunningSim, life: SliceLife) -> None:
    """Nothing is left, every run has ended, and no attempt ran twice on a worker."""
    with sim_services(sim, life.state_dir, process=0) as services:
        assert get_slice(services, life.name).record.state is SliceState.GONE
        final = {RunState.SUCCEEDED, RunState.STOPPED}
        assert all(run.state in final for run in list_runs(services)), (
            "a run was charged with the cloud's doing"
        )
        names = [node.name for node in services.cloud.list_nodes().items]
        names += [queued.name for queued in services.cloud.list_queued().items]
        assert not [name for name in names if name.startswith(f"{life.name}-")]


def live_as_fleet(plan: Plan) -> None:
    """Raises `Broken`, an AssertionError, at the first broken promise, and says how to see it again."""
    try:
        life = live_fleet(plan)
    except AssertionError:
        kind = "week" if plan.length_s > DAY else "half"
        print(f"  again: python -m tests.e2e.fleet {kind} {plan.seed}", flush=True)
        raise
    story = f"{plan.length_s / DAY:g} days, {life.passes} passes, {life.kills} kills"
    print(f"  a fleet of seed {plan.seed}: {story}", flush=True)


def ask_nonsense(directory: Path, seed: int) -> None:
    """Thousands of requests that are nearly right, to every API of a simulator of their own."""
    with running_sim(directory, quotas=few_chips(load_accelerators())) as sim:
        fuzzer = Fuzzer(sim, seed)
        for _ in range(5):
            fuzzer.run(4000)
            fuzzer.check_lists()
        fuzzer.close()
    if fuzzer.failures:
        raise AssertionError(f"seed {seed}: {fuzzer.failures[0]}")
    print(f"  {fuzzer.sent} odd requests answered", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    print(f"seed {arguments.seed}", flush=True)
    end = time.monotonic() + 60 * arguments.minutes
    lives = 0
    if arguments.minutes >= WEEK_FROM_MINUTES:
        live_as_fleet(week(arguments.seed))
    with tempfile.TemporaryDirectory(prefix="tpuctl-soak-") as root, running_sim(Path(root)) as sim:
        preempter = Preempter(sim, random.Random(arguments.seed + 1))
        preempter.start()
        try:
            while time.monotonic() < end:
                if lives % LIVES_PER_FLEET == 0:
                    live_as_fleet(half_a_day(arguments.seed + lives))
                    ask_nonsense(Path(root) / f"nonsense{lives}", arguments.seed + lives)
                lives += 1
                sim.fault(preset=chance.choice(FAULTS), times=chance.randrange(1, 3))
                live(sim, preempter, Path(root), f"life{lives}", chance)
                print(f"{lives} passed, 0 failed", flush=True)
        finally:
            preempter.over.set()
            preempter.join()


if __name__ == "__main__":
    main()
