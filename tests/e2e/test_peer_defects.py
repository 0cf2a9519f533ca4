"""What other tools get wrong: a stop that ends what is not its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.jobs import bring_up, submit
from tpuctl.engine.ports import RemoteCall
from tpuctl.hosts.targets import host_targets
from tpuctl.model.records import RunState
from tpuctl.runs.follow import follow_run
from tpuctl.runs.request import request_stop
from tpuctl.watch.reconciler import run_pass

ROOT = Path(__file__).resolve().parents[2]


def test_no_file_of_the_project_has_windows_line_ends():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    packed = (b".png", b".gz")
    names = [Path(os.fsdecode(name)) for name in listed.split(b"\0") if name and not name.endswith(packed)]
    assert names
    assert [
        str(name) for name in names if (ROOT / name).is_file() and b"\r\n" in (ROOT / name).read_bytes()
    ] == []


def test_a_stop_leaves_foreign_processes_of_the_same_login_and_files_alone(services, tmp_path):
    record = bring_up(services, "big")
    program = "import time; time.sleep(600)"
    start = f"nohup python3 -c '{program}' >/dev/null 2>&1 & echo $! >foreign.pid; touch $TMPDIR/keep"
    # Not in a session: as somebody would start it in a shell of their own.
    services.remote.run(host_targets(services, record), RemoteCall(start))
    run = submit(services, "big", program)
    run_pass(services)
    request_stop(services, run.id, grace_s=0.2)
    assert follow_run(services, run.id).state is RunState.STOPPED
    check = "kill -0 $(cat foreign.pid) && test -f $TMPDIR/keep"
    results = services.remote.run(host_targets(services, record), RemoteCall(check))
    assert [result.exit_status for result in results] == [0, 0]
