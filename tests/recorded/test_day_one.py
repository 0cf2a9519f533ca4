"""Day one by the real command line, against a server that answers in recorded form only (`google.py`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.recorded.google import answering
from tests.support.session import Session

pytestmark = pytest.mark.slow

TRAIN = """
import pathlib, sys, time
shared = pathlib.Path(sys.argv[1])
tries = len(list(shared.iterdir()))
(shared / str(tries)).touch()
print("try", tries, flush=True)
if tries == 0:
    time.sleep(600)
print("trained", flush=True)
"""
"""Waits to be preempted, and ends at once when it comes back."""


def until(seen: Callable[[], bool], what: str, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not seen():
        assert time.monotonic() < deadline, f"never seen: {what}"
        time.sleep(0.1)


@pytest.mark.parametrize("way", [(), ("--direct",)], ids=["queued", "direct"])
def test_up_exec_run_a_preemption_recovery_and_down(tmp_path: Path, way: tuple[str, ...]) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    with answering(tmp_path) as (google, variables):
        (tmp_path / "home").mkdir()
        session = Session(tmp_path / "home")
        del session.environ["TPUCTL_PROFILE"]
        session.environ.update(variables)
        (session.work / "train.py").write_text(TRAIN)

        session.type("up", "v4-8", "first", "--zone", "us-central2-b", "--spot", "--pay", *way)
        assert session.type("exec", "first", "--", "echo", "hello").stdout == "first-0 │ hello\n"

        run = session.start("run", "--no-checkpoint", "--on", "first", "train.py", "--", str(shared))
        until(lambda: len(list(shared.iterdir())) == 1, "the program's first try")
        google.preempt("first-1")
        done = session.finish(run, timeout_s=240.0)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        assert "trained" in done.stdout
        assert len(list(shared.iterdir())) == 2
        row = session.json("runs")[0]
        counted = {key: row[key] for key in ("state", "attempts", "failures", "preemptions")}
        assert counted == {"state": "succeeded", "attempts": 2, "failures": 0, "preemptions": 1}

        session.type("down", "first", "--yes")
        assert google.slices == {}
        assert google.astray == []
        assert not list(Path(session.environ["TPUCTL_STATE_DIR"]).rglob("*crash*"))
