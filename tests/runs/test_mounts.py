"""What a run is told of its mounts, and what of it is named at its end."""

from __future__ import annotations

from msgspec.structs import replace

from tests.support.builders import a_slice, an_attempt
from tpuctl.hosts.protocol import WorkerState
from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.model.attempts import MountState
from tpuctl.model.refs import MountRef
from tpuctl.runs.mounts import mount_news, mounts_now, sick_mounts, troubled_mounts

PATH = "/mnt/data"
DIED = MountState(1, PATH, well=False, why="gcsfuse died")
BACK = replace(DIED, well=True, restarts=1)
SLICE = a_slice()
SLICE = replace(SLICE, spec=replace(SLICE.spec, mounts=(MountRef("data", PATH, "train"),)))


def texts(before: list[MountState], now: list[MountState]) -> list[str]:
    return [each.text for each in mount_news(before, now)]


def test_a_death_and_the_return_are_told_once_each() -> None:
    assert texts([], [DIED]) == ["/mnt/data on worker 1: gcsfuse died"]
    assert texts([DIED], [replace(DIED, why="mounting")]) == []
    assert texts([DIED], [BACK]) == ["/mnt/data on worker 1 is well again, after: gcsfuse died"]
    assert texts([BACK], [BACK]) == []


def test_what_died_and_came_back_between_two_looks_is_told() -> None:
    assert texts([], [BACK]) == ["/mnt/data on worker 1 is well again, after: gcsfuse died"]
    assert texts([BACK], [replace(BACK, restarts=2)]) != []


def test_workers_with_the_same_trouble_are_told_of_together() -> None:
    assert texts([], [replace(DIED, worker=n) for n in (0, 1, 2, 5)]) == [
        "/mnt/data on workers 0-2,5: gcsfuse died"
    ]


def test_a_bucket_that_is_gone_is_the_trouble_of_every_worker() -> None:
    well = [WorkerStatus(worker, WorkerState.RUNNING) for worker in (0, 1)]
    found = mounts_now(an_attempt(workers=(0, 1)), SLICE, well, ["data"])
    assert [(each.worker, each.well) for each in found] == [(0, False), (1, False)]
    assert sick_mounts(found) == "/mnt/data on workers 0-1: the bucket gs://data is gone"
    assert mounts_now(an_attempt(workers=(0, 1)), SLICE, well, ["other"]) == ()


def test_what_a_silent_worker_said_counts_until_it_answers() -> None:
    told = an_attempt(workers=(0, 1), mounts=(DIED,))
    silent = [WorkerStatus(0, WorkerState.RUNNING), WorkerStatus(1, WorkerState.UNREACHABLE)]
    assert mounts_now(told, SLICE, silent) == (DIED,)
    answers = [WorkerStatus(0, WorkerState.RUNNING), WorkerStatus(1, WorkerState.RUNNING)]
    over = mounts_now(told, SLICE, answers)
    assert texts([DIED], list(over)) == ["/mnt/data on worker 1 is well again, after: gcsfuse died"]
    assert mounts_now(replace(told, mounts=over), SLICE, answers) == over


def test_the_end_names_what_came_back_too() -> None:
    assert troubled_mounts([BACK]) == "mount /mnt/data on worker 1: gcsfuse died"
    assert sick_mounts([BACK]) == troubled_mounts([]) == ""


def test_the_word_of_a_host() -> None:
    said = {"path": PATH, "well": False, "why": "gcsfuse died", "restarts": 2, "kept": True}
    status = {"run": "r", "attempt": "1", "state": "running", "boot_id": "b", "time": 1.0}
    found = WorkerStatus.parse({**status, "stdout_bytes": 0, "stderr_bytes": 0, "mounts": [said]}, 1)
    assert found.mounts == (replace(DIED, restarts=2),)
