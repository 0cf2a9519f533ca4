"""Somebody who watches the hosts themselves, and holds a fleet to its promises about runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from tests.e2e.fleet.observer import Broken
from tests.e2e.fleet.training import EXIT_BUG, Kind, Start, Training
from tests.support.memory.services import MemoryPlace
from tpuctl.runs.checkpoints import FRUITLESS_MAX

FINAL = frozenset({"succeeded", "failed", "stopped", "gave-up"})
CLOUDS_DOING = frozenset({"preempted", "host-lost"})
JUST_NOW_S = 240.0
"""An end that is no older need not be in the records: two passes of each machine, and an attempt's start."""


class Auditor:
    """Sees every process that begins, and every run record whenever it is told to look."""

    def __init__(self, place: MemoryPlace, training: Training) -> None:
        self._place = place
        self._training = training
        training.on_start = self.begins
        self._fences: dict[str, dict[int, int]] = defaultdict(dict)
        """By run: the fence of each attempt that began."""
        self._on_slice: dict[str, list[Start]] = defaultdict(list)
        self._read: dict[str, int] = {}
        self.taken_down: set[str] = set()
        """Slices that their users took down."""
        self.broken: Broken | None = None
        self.attempts = self.questions = 0
        self.ended: dict[str, int] = defaultdict(int)

    # Processes.

    def begins(self, start: Start) -> None:
        """Before a process of an attempt does anything."""
        try:
            self._check_start(start)
        except Broken as broken:
            self.broken = broken  # a pass survives whatever it meets
            raise

    def _check_start(self, start: Start) -> None:
        run = self._run(start.run)
        slice_name = run["spec"]["slice_name"]
        self.attempts += start.worker == 0
        for other in self._on_slice[slice_name]:
            same = (other.run, other.attempt) == (start.run, start.attempt)
            if same and other.worker == start.worker:
                raise Broken(f"worker {start.worker} of {start.run}/{start.attempt} is started twice")
            if not same and other.alive():
                raise Broken(f"{start} begins beside {other}")
        self._check_fence(start)
        self._on_slice[slice_name] = [each for each in self._on_slice[slice_name] if each.process.alive]
        self._on_slice[slice_name].append(start)

    def _check_fence(self, start: Start) -> None:
        fence = start.process.host.fence(start.run)
        known = self._fences[start.run]
        if known.setdefault(start.attempt, fence) != fence:
            raise Broken(f"{start} has fence {fence}, its other workers {known[start.attempt]}")
        if any(
            (number < start.attempt) != (other < fence)
            for number, other in known.items()
            if number != start.attempt
        ):
            raise Broken(f"{start} has fence {fence}, its other attempts {known}")

    def _run(self, run_id: str) -> Mapping[str, Any]:
        document = self._place.server.find(f"runs/{run_id}")
        if document is None:
            raise Broken(f"{run_id} is started without a record")
        return document.data

    # Records.

    def look(self) -> None:
        """What has changed in the records is true."""
        for document in self._place.server.list("runs/"):
            if self._read.get(document.key) != document.generation:
                self._read[document.key] = document.generation
                self._check_record(document.data)

    def _check_record(self, run: Mapping[str, Any]) -> None:
        if run["state"] in FINAL:
            self.ended[run["state"]] += 1
            self._check_final(run)
        elif (run["fruitless"] >= FRUITLESS_MAX) != bool(run["question"]):
            raise Broken(f"{run['id']} has {run['fruitless']} fruitless attempts, and asks {run['question']!r}")
        elif run["question"]:
            self.questions += 1
            self._check_question(run)
        if self._training.kinds[run["id"]] is Kind.BARREN:
            self._check_barren(run)

    def _check_final(self, run: Mapping[str, Any]) -> None:
        """A run ends as its programs did, or because its user said so; never for what the cloud took."""
        ends = [start.process.exit_status for start in self._training.last_attempt(run["id"])]
        truthful = {
            "succeeded": bool(ends) and all(status == 0 for status in ends),
            "failed": EXIT_BUG in ends,
            "stopped": run["spec"]["slice_name"] in self.taken_down,
            "gave-up": run["restarts"] > run["spec"]["policy"]["max_restarts"]
            or run["preemptions"] > run["spec"]["policy"]["max_preemptions"],
        }
        if not truthful[run["state"]] or not run["reason"]:
            raise Broken(f"{run['id']} is {run['state']} ({run['reason']}); its workers ended with {ends}")

    def _check_question(self, run: Mapping[str, Any]) -> None:
        """Five attempts in a row were the cloud's doing and brought no checkpoint."""
        attempts = [each.data for each in self._place.server.list(f"attempts/{run['id']}/")]
        taken = [each for each in attempts if each["cause"] in CLOUDS_DOING]
        if len(taken) < FRUITLESS_MAX:
            raise Broken(
                f"{run['id']} asks after {len(taken)} attempts that the cloud ended: {run['question']}"
            )
        newest = self._training.newest_checkpoint(run["id"])
        if newest > taken[-FRUITLESS_MAX]["created_at"]:
            raise Broken(f"{run['id']} asks although it has a checkpoint of {newest}: {run['question']}")

    def _check_barren(self, run: Mapping[str, Any]) -> None:
        begun = 0 if run["attempt"] is None else run["attempt"]["number"]
        most = FRUITLESS_MAX * (1 + self._training.go_ons[run["id"]])
        if begun > most:
            raise Broken(f"{run['id']} is in attempt {begun} without a checkpoint, and nobody said go on")

    # The end.

    def check_end(self) -> None:
        """After a calm: every run on a living slice runs where the slice is now, and nothing else runs."""
        runs = {each.data["id"]: each.data for each in self._place.server.list("runs/")}
        living = [start for starts in self._training.starts.values() for start in starts if start.alive()]
        for start in living:
            run = runs[start.run]
            if run["state"] != "running" or run["attempt"]["number"] != start.attempt:
                raise Broken(f"{start} is an orphan of {run}")
        for run in runs.values():
            if run["state"] not in FINAL and not run["question"]:
                self._check_going(run, [start for start in living if start.run == run["id"]])

    def _check_going(self, run: Mapping[str, Any], living: list[Start]) -> None:
        now = self._place.clock.now()
        document = self._place.server.find(f"slices/{run['spec']['slice_name']}")
        assert document is not None
        record = document.data
        if record["desired"] != "up" or record["state"] != "ready":
            if record["state"] in ("removed", "refused"):
                return  # both wait for a person
            raise Broken(f"{run['id']} is {run['state']}, its slice {record['state']}, at the end")
        last = self._training.last_attempt(run["id"])
        if any(now - (start.process.ended_at or 0.0) < JUST_NOW_S for start in last):
            return  # the next pass sees it
        attempt = run["attempt"]
        here = attempt is not None and attempt["incarnation"] == record["incarnation"]["number"]
        if run["state"] != "running" or not here:
            raise Broken(f"{run['id']} does not run on {record['incarnation']['cloud_name']}: {run}")
        if sorted(start.worker for start in living) != list(range(record["spec"]["hosts"])):
            raise Broken(f"{run['id']} is running with {living}")
