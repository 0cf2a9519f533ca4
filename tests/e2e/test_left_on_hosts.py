"""What runs on a host is never lost sight of: programs without a supervisor, what a stop cannot end, a full
disk, and locks on the chips that are in the way."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import alive, require_tier, shared_folder
from tests.support.jobs import attempt_row, bring_up, meanwhile, run_to_end, submit
from tests.support.real_lab import RealClock
from tests.support.services import SimServices
from tests.support.sim import RunningSim, running_sim
from tpuctl.engine.ports import RemoteCall
from tpuctl.errors import TpuctlError
from tpuctl.hosts.targets import host_targets
from tpuctl.model.attempts import Cause
from tpuctl.model.records import RunRecord, RunState
from tpuctl.model.run_spec import RestartPolicy
from tpuctl.runs.follow import follow_run
from tpuctl.runs.request import request_stop
from tpuctl.runs.stops import stop_error
from tpuctl.state.repository import get_run, get_slice, list_attempts
from tpuctl.views.runs import run_rows
from tpuctl.workers.exec import execute


@pytest.fixture
def sim(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningSim]:
    tier = getattr(request, "param", "process")
    require_tier(tier)
    with running_sim(tmp_path, hosts=tier) as running:
        yield running


isolated = pytest.mark.parametrize("sim", ["isolated"], indirect=True)
"""For what needs root on a host, or a file system of its own."""


def on_worker(services: SimServices, worker: int, script: str) -> str:
    """What a shell on a worker of `big` says."""
    said: list[bytes] = []
    record = get_slice(services, "big").record
    [result] = execute(
        services, record, ["sh", "-c", script], workers=(worker,), sink=lambda _w, _s, data: said.append(data)
    )
    assert result.ok, (result, said)
    return b"".join(said).decode().strip()


DEAF = """
import os, pathlib, signal, subprocess, sys, time
attempt, rank = os.environ["TPUCTL_ATTEMPT"], os.environ["TPUCTL_RANK"]
marks = pathlib.Path(os.environ["MARKS"])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
earlier = marks / ("1-" + rank)
if attempt == "1":
    daemon = subprocess.Popen(["setsid", "sh", "-c", "trap '' TERM; exec sleep 600"])
    earlier.write_text(f"{os.getpid()} {daemon.pid}")
    (marks / ("supervisor-" + rank)).write_text(str(os.getppid()))
else:
    for pid in earlier.read_text().split():
        try:
            os.kill(int(pid), 0)
            sys.exit("beside " + pid)
        except ProcessLookupError:
            pass
print("attempt", attempt, flush=True)
while attempt == "1":
    time.sleep(0.05)
"""


def deaf_run(services: SimServices, marks: Path) -> RunRecord:
    shared_folder(marks)
    bring_up(services, "big")
    return submit(services, "big", DEAF, variables={"MARKS": str(marks)})


def kill_supervisor(marks: Path, worker: int) -> None:
    os.kill(int((marks / f"supervisor-{worker}").read_text()), signal.SIGKILL)


def test_a_program_whose_supervisor_died_is_ended_before_another_starts_beside_it(services, tmp_path):
    run = deaf_run(services, tmp_path / "marks")
    ended = meanwhile(services, run, lambda: kill_supervisor(tmp_path / "marks", 1))
    assert (ended.state, ended.failures, ended.preemptions) == (RunState.SUCCEEDED, 0, 1), ended.reason
    first, second = list_attempts(services, run.id)
    assert (first.cause, second.cause) == (Cause.HOST_LOST, Cause.SUCCEEDED)
    assert "worker 1 lost its supervisor" in attempt_row(services, run.id, 1)["why"]


def test_a_stop_ends_a_program_whose_supervisor_died(services, tmp_path):
    run = deaf_run(services, tmp_path / "marks")

    def act() -> None:
        kill_supervisor(tmp_path / "marks", 0)
        request_stop(services, run.id)

    ended = meanwhile(services, run, act)
    assert ended.state is RunState.STOPPED
    assert stop_error(services, ended) is None
    pids = [int(pid) for mark in (tmp_path / "marks").glob("1-*") for pid in mark.read_text().split()]
    assert [pid for pid in pids if alive(pid)] == []


ROOTS_CHILD = """
import os, subprocess, time
if os.environ["TPUCTL_RANK"] == "1":
    subprocess.Popen(["sudo", "-n", "setsid", "-f", "sh", "-c", "trap '' TERM; exec sleep 600"])
    time.sleep(0.5)
print("up", flush=True)
time.sleep(600)
"""


@isolated
@pytest.mark.long
def test_what_a_stop_cannot_end_is_shown_and_named_until_a_person_ends_it(services):
    services.clock = RealClock()
    bring_up(services, "big")
    # Nobody waits so long for what cannot be told to end.
    run = submit(services, "big", ROOTS_CHILD, policy=RestartPolicy(grace_s=600.0))
    ended = meanwhile(services, run, lambda: request_stop(services, run.id))
    error = stop_error(services, ended)
    assert ended.state is RunState.STOPPED
    assert error is not None
    assert error.exit_code == 3
    assert "worker 1: " in error.message
    assert "sleep of root" in error.message
    assert error.hint.startswith("tpuctl exec --worker 1 big -- sudo kill -9 ")
    assert "of root" in attempt_row(services, run.id, 1)["exits"][1]["note"]
    with pytest.raises(
        TpuctlError, match=rf"worker 1 has what outlived attempt 1 of {run.id}: \d+ .*of root"
    ) as stuck:
        run_to_end(services, "big", "print(1)")
    assert stuck.value.hint == error.hint
    on_worker(services, 1, error.hint.partition(" -- ")[2])
    waiting = get_run(services, "run-0002").record
    assert follow_run(services, waiting.id, deadline=services.clock.now() + 3600).state is RunState.SUCCEEDED


FILLS_THE_DISK = """
import os, sys
print("begin", flush=True)
while os.environ["TPUCTL_RANK"] == "1":
    os.write(1, b"x" * 65536)
"""


@isolated
def test_a_full_disk_keeps_no_end_from_being_reported_and_is_named(services):
    bring_up(services, "big")
    on_worker(services, 1, 'sudo mount -t tmpfs -o size=8m,mode=700,uid=$(id -u) tmpfs "$HOME"')
    run = run_to_end(services, "big", FILLS_THE_DISK)
    assert (run.state, run.failures) == (RunState.FAILED, 1)
    assert "worker 1 exited with 1 (its disk is full)" in run.reason
    assert "disk is full" in attempt_row(services, run.id, 1)["exits"][1]["note"]
    again = run_to_end(services, "big", "print(2)")
    assert again.state is RunState.FAILED
    assert "worker 1: OSError: [Errno 28] No space left on device" in again.reason
    on_worker(services, 1, 'rm -rf "$HOME/.tpuctl/runs"/*/*/stdout.log')
    assert run_to_end(services, "big", "print(3)").state is RunState.SUCCEEDED


HOLDS_THE_LOCK = "import fcntl, time; f = open('/tmp/libtpu_lockfile', 'w'); fcntl.flock(f, 2); time.sleep(600)"
"""What libtpu does while a program has the chips."""
HOLDS_A_CHIP = "import time; f = open('/dev/accel0'); time.sleep(600)"


def begin(services, worker: int, program: str, *variables: str) -> None:
    """A program that goes on beside whatever else the worker does."""
    target = host_targets(services, get_slice(services, "big").record)[worker]
    words = " ".join((*variables, "setsid", "-f", "python3", "-c"))
    command = f'{words} "{program}" > /dev/null 2>&1 < /dev/null; sleep 1'
    assert services.remote.run([target], RemoteCall(f"env {command}"))[0].ok


@isolated
@pytest.mark.long
def test_who_has_the_chips_is_named_before_a_run_starts_and_ends_by_the_hint(services):
    bring_up(services, "big")
    on_worker(services, 1, "sudo touch /dev/accel0 && sudo chmod 666 /dev/accel0")
    run = submit(services, "big", "print('up')")
    for worker, program in ((0, HOLDS_THE_LOCK), (1, HOLDS_A_CHIP)):
        begin(services, worker, program)
        said = rf"worker {worker}: pid \d+ of tpuctl \(python3 -c .*\) since 20.*Z has the chips"
        with pytest.raises(TpuctlError, match=said) as held:
            follow_run(services, run.id, deadline=services.clock.now() + 3600)
        assert held.value.hint.startswith(f"tpuctl exec --worker {worker} big -- sudo kill -9 ")
        on_worker(services, worker, held.value.hint.partition(" -- ")[2])
    assert get_run(services, run.id).record.failures == 0
    assert follow_run(services, run.id, deadline=services.clock.now() + 3600).state is RunState.SUCCEEDED


@isolated
def test_what_a_run_that_is_over_left_on_the_chips_goes_and_a_lock_that_nobody_holds(services):
    bring_up(services, "big")
    ended = run_to_end(services, "big", "print('first')")
    on_worker(services, 0, "sudo touch /dev/accel0 && sudo chmod 666 /dev/accel0")
    # No process is older than the first one: what began it is gone.
    begin(services, 0, HOLDS_A_CHIP, f"TPUCTL_RUN_ID={ended.id}", "TPUCTL_SUPERVISOR=1.1")
    on_worker(services, 1, "sudo touch /tmp/libtpu_lockfile")
    assert run_to_end(services, "big", "print('up')").state is RunState.SUCCEEDED
    assert "left on the chips by a run that is over" in str(services.events)
    on_worker(services, 1, "test ! -e /tmp/libtpu_lockfile")
    begin(services, 0, HOLDS_A_CHIP, "TPUCTL_RUN_ID=of-somebody-else", "TPUCTL_SUPERVISOR=1.1")
    run = submit(services, "big", "print('up')")
    with pytest.raises(TpuctlError, match=r"worker 0: pid \d+ of tpuctl .* has the chips"):
        follow_run(services, run.id, deadline=services.clock.now() + 3600)
    (row,) = [each for each in run_rows(services) if each["id"] == run.id]
    assert (row["state"], row["reason"].partition(":")[0]) == ("preparing", "does not start")
    assert "has the chips" in row["reason"]
    said = [document.data for document in services.store.list(f"journal/{run.key}/")]
    assert ["has the chips" in each["reason"] for each in said if each["action"] == "blocked"] == [True]


@isolated
@pytest.mark.long
def test_a_program_that_wants_no_chips_minds_no_lock_on_them(services):
    bring_up(services, "big")
    on_worker(services, 1, "sudo touch /tmp/libtpu_lockfile")
    cpu = {"JAX_PLATFORMS": "cpu"}
    assert run_to_end(services, "big", "print('up')", variables=cpu).state is RunState.SUCCEEDED
