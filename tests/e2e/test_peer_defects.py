"""What other tools get wrong, each as a test: a failing look that deletes, one dropped connection that launches
twice, a failing worker reported as success, and more."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.hosts import shared_folder
from tests.support.jobs import bring_up, run_to_end, submit
from tests.support.session import REAL_PACE, Session, open_session
from tests.support.sim import RunningSim
from tpuctl.errors import DeniedError, PartialError
from tpuctl.hosts.targets import host_targets
from tpuctl.model.records import RunState, SliceState
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.runs.follow import follow_run
from tpuctl.runs.reconcile import request_stop, run_error
from tpuctl.slices.reconcile import wait_for_slice
from tpuctl.state.repository import get_slice
from tpuctl.watch.reconciler import run_pass

ROOT = Path(__file__).resolve().parents[2]


def eventually(check: Callable[[], bool], timeout_s: float = 30.0) -> None:
    end = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session(*REAL_PACE) as made:
        yield made


def changes(sim: RunningSim) -> list[tuple[str, str]]:
    return [(entry.method, entry.resource) for entry in sim.journal.entries()]


@pytest.mark.parametrize("code", [7, 16], ids=["permission denied", "unauthenticated"])
def test_a_look_that_is_denied_neither_deletes_nor_creates(sim, services, code):
    bring_up(services, "big")
    before = changes(sim)
    sim.fault(kind="error", method="*", code=code, message="Request had invalid credentials.", times=0)
    for _ in range(3):
        with pytest.raises(DeniedError) as raised:
            wait_for_slice(services, "big")
        assert raised.value.exit_code == 4
        assert [line.result for line in run_pass(services)] == ["failed"]
    assert changes(sim) == before
    assert get_slice(services, "big").record.state is SliceState.READY


def test_looks_that_fail_for_a_moment_neither_delete_nor_create(sim, services):
    bring_up(services, "big")
    before = changes(sim)
    sim.fault(preset="blip", method="*.get", times=3)
    bring_up(services, "big")
    assert changes(sim) == before


def test_a_dropped_connection_launches_nothing_twice(sim, services, tmp_path):
    tally, go = shared_folder(tmp_path / "shared") / "tally", tmp_path / "go"
    program = f"""
import os, time
open({str(tally)!r}, "a").write(os.environ["TPUCTL_RANK"] + "-" + os.environ["TPUCTL_ATTEMPT"] + " ")
while not os.path.exists({str(go)!r}):
    time.sleep(0.05)
print("finished", flush=True)
"""
    bring_up(services, "big")
    run = submit(services, "big", program)

    def trouble() -> None:
        eventually(lambda: tally.exists() and len(tally.read_text().split()) == 2)
        for _ in range(4):
            sim.cut_connections("big-1")
            time.sleep(0.3)
        go.touch()

    hiccups = threading.Thread(target=trouble)
    hiccups.start()
    ended = follow_run(services, run.id)
    hiccups.join()
    assert (ended.state, ended.failures, ended.preemptions) == (RunState.SUCCEEDED, 0, 0)
    assert sorted(tally.read_text().split()) == ["0-1", "1-1"]
    assert services.output().count("finished") == 2


@pytest.mark.slow
def test_a_run_outlives_the_kill_of_its_client_and_is_found_again(session, tmp_path):
    tally, go = shared_folder(tmp_path / "shared") / "tally", tmp_path / "go"
    (session.work / "long.py").write_text(
        "import os, time\n"
        f"open({str(tally)!r}, 'a').write(os.environ['TPUCTL_RANK'] + ' ')\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.05)\n"
        "print('the end')\n"
    )
    session.type("up", "v4-16", "long", "--spot", "--pay")
    client = session.start("run", "long.py", "--on", "long", "--no-checkpoint", "--name", "long-run")
    eventually(lambda: tally.exists() and len(tally.read_text().split()) == 2)
    client.send_signal(signal.SIGKILL)
    client.communicate()
    assert session.json("runs")[0]["state"] in {"preparing", "running"}
    go.touch()
    done = session.type("attach", "long-run")
    assert "the end" in done.stdout
    assert sorted(tally.read_text().split()) == ["0", "1"]
    session.type("down", "long", "--yes")


@pytest.mark.slow
def test_a_later_attempt_runs_the_code_of_the_first_even_when_the_script_was_edited(session, tmp_path):
    mark = shared_folder(tmp_path / "shared") / "mark"
    script = session.work / "frozen.py"
    script.write_text(
        "import os, time\n"
        "print('the first version, attempt', os.environ['TPUCTL_ATTEMPT'], flush=True)\n"
        f"open({str(mark)!r}, 'a').write('x')\n"
        "while os.environ['TPUCTL_ATTEMPT'] == '1': time.sleep(0.05)\n"
    )
    session.type("up", "v4-16", "frozen", "--spot", "--pay")
    client = session.start("run", "frozen.py", "--on", "frozen", "--no-checkpoint")
    eventually(lambda: mark.exists() and len(mark.read_text()) == 2)
    script.write_text("raise SystemExit('the second version')\n")
    session.type("sim", "preempt", "frozen-1")
    done = session.finish(client)
    assert done.returncode == 0, done.stderr
    assert "the first version, attempt 2" in done.stdout
    assert "the second version" not in done.stdout + done.stderr
    session.type("down", "frozen", "--yes")


def test_one_failing_worker_is_a_failure_of_the_run_with_an_exit_status(services):
    bring_up(services, "big")
    run = run_to_end(services, "big", "import os, sys; sys.exit(int(os.environ['TPUCTL_RANK']))")
    error = run_error(run, "tpuctl logs")
    assert run.state is RunState.FAILED
    assert isinstance(error, PartialError)
    assert error.exit_code == 3
    assert error.details["workers"] == [1]


def test_no_file_of_the_project_has_windows_line_ends():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    packed = (b".png", b".gz")
    names = [Path(os.fsdecode(name)) for name in listed.split(b"\0") if name and not name.endswith(packed)]
    assert names
    assert [
        str(name) for name in names if (ROOT / name).is_file() and b"\r\n" in (ROOT / name).read_bytes()
    ] == []


@pytest.mark.parametrize(
    ("name", "hosts"),
    [("v6e-16", 4), ("v5litepod-16", 4), ("v5p-16", 2), ("v6e-8", 1), ("v4-64", 8)],
)
def test_host_counts_come_from_the_table_and_agree_with_the_api(sim, name, hosts):
    found = load_accelerators().get(name)
    assert found.hosts == hosts
    node = {"acceleratorType": name, "runtimeVersion": found.runtime_version}
    parent = f"projects/{sim.profile['project']}/locations/{found.zones[0]}"
    sim.world.call("CreateNode", {"parent": parent, "nodeId": "n", "node": node})
    assert sim.world.settle()
    assert len(sim.world.snapshot()["nodes"][0]["networkEndpoints"]) == hosts


def test_every_worker_of_a_detached_run_has_a_log_and_a_process_of_its_own(services):
    bring_up(services, "big")
    run = submit(services, "big", "import os, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(600)")
    run_pass(services)

    def logs() -> list[str]:
        run_pass(services)
        paths = [Path(services.logs.path(run.id, 1, worker, "stdout")) for worker in (0, 1)]
        return [path.read_text() if path.exists() else "" for path in paths]

    eventually(lambda: all(text.startswith("pid ") for text in logs()))
    pids = {text.split()[1] for text in logs()}
    assert len(pids) == 2


def test_a_stop_leaves_foreign_processes_of_the_same_login_and_files_alone(services, tmp_path):
    record = bring_up(services, "big")
    program = "import time; time.sleep(600)"
    start = f"nohup python3 -c '{program}' >/dev/null 2>&1 & echo $! >foreign.pid; touch $TMPDIR/keep"
    # Not in a session: as somebody would start it in a shell of their own.
    services.remote.run(host_targets(services, record), start)
    run = submit(services, "big", program)
    run_pass(services)
    request_stop(services, run.id, grace_s=0.2)
    assert follow_run(services, run.id).state is RunState.STOPPED
    check = "kill -0 $(cat foreign.pid) && test -f $TMPDIR/keep"
    results = services.remote.run(host_targets(services, record), check)
    assert [result.exit_status for result in results] == [0, 0]
