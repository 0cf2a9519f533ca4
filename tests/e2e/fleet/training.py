"""The programs that a fleet runs, and a ledger of what really happened to each of their processes."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from tests.e2e.fleet.weather import MINUTE
from tests.support.builders import a_bundle
from tests.support.memory.process import Process, Steps, Wait
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.model.records import RunRecord
from tpuctl.model.run_spec import RestartPolicy, RunSpec
from tpuctl.runs.request import request_run
from tpuctl.runs.submit import freeze_run
from tpuctl.transfer.tree import make_tree

BUCKET = "gs://lab/runs"
EXIT_BUG, EXIT_RESTART = 1, 75


class Kind(StrEnum):
    """What a program does until it ends."""

    STEADY = "steady"
    """Writes a checkpoint every 8 to 25 minutes and goes on from the last one; done after some hours."""
    BARREN = "barren"
    """Never writes a checkpoint and never ends."""
    BUGGY = "buggy"
    """One of its workers exits with 1 after a while."""
    RESTLESS = "restless"
    """Writes a checkpoint and asks to be started again, a few times an hour."""


WEIGHTS = {Kind.STEADY: 12, Kind.BARREN: 3, Kind.BUGGY: 1, Kind.RESTLESS: 2}


@dataclass(frozen=True)
class Start:
    """One process that began to run: of which run, in which attempt, as which worker."""

    run: str
    attempt: int
    worker: int
    at: float
    process: Process

    def alive(self) -> bool:
        self.process.host.advance()
        return self.process.alive


class Training:
    """All runs of one fleet. `on_start` is called with each process before it does anything."""

    def __init__(self, place: MemoryPlace, chance: random.Random) -> None:
        self._place = place
        self._chance = chance
        self._number = 0
        self.starts: dict[str, list[Start]] = defaultdict(list)
        """By run, in the order in which they began."""
        self.kinds: dict[str, Kind] = {}
        self.go_ons: dict[str, int] = defaultdict(int)
        self.on_start = lambda _start: None
        place.hosts.programs["train.py"] = self._train

    def submit(self, services: MemoryServices, slice_name: str) -> RunRecord:
        """What `run --detach` writes down."""
        self._number += 1
        run_id = f"run-{self._number:04d}"
        [kind] = self._chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
        request = RunSpec(
            slice_name,
            ("python3", "train.py"),
            ".",
            policy=RestartPolicy(grace_s=10.0),
            variables={"KIND": kind, "SEED": str(self._chance.randrange(1 << 30))},
            secrets={},
            checkpoint_dir=f"{BUCKET}/{run_id}",
        )
        code = a_bundle(make_tree({"train.py": b"as registered"}))
        self.kinds[run_id] = kind
        return request_run(services, freeze_run(services, run_id, request, code))

    def checkpoints(self, run_id: str) -> int:
        return len(self._place.objects.list(f"{BUCKET}/{run_id}/"))

    def newest_checkpoint(self, run_id: str) -> float:
        """When it was written; 0 for a run without any."""
        found = self._place.objects.list(f"{BUCKET}/{run_id}/")
        return max((datetime.fromisoformat(each.updated).timestamp() for each in found), default=0.0)

    def last_attempt(self, run_id: str) -> list[Start]:
        """The processes of the newest attempt that began to run."""
        starts = self.starts.get(run_id, [])
        newest = max((start.attempt for start in starts), default=0)
        return [start for start in starts if start.attempt == newest]

    def _train(self, process: Process) -> Steps:
        env = process.env
        run, rank = env["TPUCTL_RUN_ID"], int(env["TPUCTL_RANK"])
        start = Start(run, int(env["TPUCTL_ATTEMPT"]), rank, process.now, process)
        self.on_start(start)
        self.starts[run].append(start)
        process.print(f"attempt {start.attempt}")
        # The same for all workers of a run, and for all its attempts.
        chance = random.Random(int(env["SEED"]))
        interval, goal = chance.uniform(8, 25) * MINUTE, chance.randrange(5, 40)
        kind = Kind(env["KIND"])
        if kind is Kind.BARREN:
            yield Wait()
        if kind is Kind.BUGGY:
            yield chance.uniform(2, 60) * MINUTE
            if rank == 0:
                return EXIT_BUG
            yield Wait()
        left = 1 if kind is Kind.RESTLESS else goal - self.checkpoints(run)
        for _ in range(left):
            yield interval
            if rank == 0:
                step = f"{start.attempt:04d}-{process.now:.0f}"
                self._place.objects.write(f"{BUCKET}/{run}/{step}/weights", b"")
        return EXIT_RESTART if kind is Kind.RESTLESS and self.checkpoints(run) < goal else 0
