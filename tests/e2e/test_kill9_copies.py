"""A real kill -9 of the real command line while hosts copy code from each other: they go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.session import REAL_PACE, Session, open_session

HOSTS = 8
TIMEOUT_S = 60.0


def until(condition: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < ends, f"no {what} after {TIMEOUT_S:g} s"
        time.sleep(0.01)


def statuses(session: Session, verb: str) -> list[dict[str, Any]]:
    """What the supervisors of copies wrote down on the hosts that run one; of servers, those with a port."""
    found = session.root.glob(f"state/sim/**/.tpuctl/runs/copy-*/*-{verb}/status.json")
    logs = [(path, path.with_name("stdout.log")) for path in found]
    told = [path for path, log in logs if verb == "fetch" or (log.exists() and b"port" in log.read_bytes())]
    return [status for path in told if "pid" in (status := json.loads(path.read_text()))]


def having(session: Session, size: int) -> int:
    """How many hosts have a content of that size."""
    blobs = session.root.glob("state/sim/**/.tpuctl/blobs/*")
    return len({path.parent for path in blobs if path.suffix == "" and path.stat().st_size == size})


def kill(client: subprocess.Popen[str]) -> None:
    client.kill()
    client.communicate(timeout=TIMEOUT_S)


@pytest.mark.slow
@pytest.mark.long
def test_hosts_complete_what_a_killed_client_had_them_begin(tmp_path: Path) -> None:
    with open_session(*REAL_PACE) as session:
        (session.work / "main.py").write_text("print('whole', len(open('weights', 'rb').read()))\n")
        (session.work / "weights").write_bytes(os.urandom(8 << 20))
        session.type("up", "v4-64", "big", "--spot", "--pay", "--zone", "us-central2-b")
        client = session.start("run", "main.py", "--on", "big", "--no-checkpoint")
        try:
            until(lambda: bool(statuses(session, "serve")), "server")
            [server] = statuses(session, "serve")
            os.kill(server["pid"], signal.SIGSTOP)
            until(lambda: len(statuses(session, "fetch")) == HOSTS - 1, "copies under way")
        finally:
            kill(client)
        assert having(session, 8 << 20) < HOSTS, "it was killed in mid-copy"
        os.kill(server["pid"], signal.SIGCONT)
        until(lambda: having(session, 8 << 20) == HOSTS, "code on all hosts although nobody is connected")
        session.type("watch", "once")
        [run] = session.json("runs")
        logged = session.json("logs", run["id"])
        told = [worker for line in logged if line["text"] == f"whole {8 << 20}" for worker in line["workers"]]
        assert sorted(told) == list(range(HOSTS))
