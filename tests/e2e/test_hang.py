"""Programs on two hosts that stand still: who is named, their stacks, and that nothing stays half alive."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.hosts import shared_folder
from tests.support.proc import programs_of
from tests.support.session import NAMED_WITHIN_S, Session, open_training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TRAIN = """\
import os, signal, time
for step in range(3):
    print(f"step {step} of 9", flush=True)
    time.sleep(0.2)
def wait_for_the_others():
    time.sleep(600)
if os.environ["TPUCTL_RANK"] == "1": os.kill(os.getpid(), signal.SIGSTOP)
wait_for_the_others()
"""
STEPS, WAIT = TRAIN[: TRAIN.index("if os")], "wait_for_the_others()"
LIMIT_S = 3
RUN = ("run", "--on", "big", "--no-checkpoint", "--grace", "1", "--stall", f"{LIMIT_S}s", "--max-failures", "0")
STEP = r"step (\d+) of (\d+)"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_training(TRAIN) as opened:
        yield opened


def test_a_worker_that_is_stopped_by_a_signal_is_named_and_the_run_restarted(session: Session) -> None:
    done = session.type(*RUN, "--name", "held", "--on-stall", "restart", "train.py", status=1)
    took_s, said = session.stalled_after("held")
    assert "worker 1: stopped by a signal since " in said
    assert took_s <= LIMIT_S + NAMED_WITHIN_S
    told = " ".join(done.stderr.split())
    assert "worker 1: stopped by a signal since " in told
    assert "(stalled)" in told
    assert programs_of("held") == []
    kept = session.root / "state"
    (stacks,) = kept.glob("**/held/1/worker-0.stacks.log")
    assert "wait_for_the_others" in stacks.read_text()


def test_a_stall_is_told_once_stacks_show_where_and_it_may_go_on(session: Session) -> None:
    session.type(*RUN, "--name", "told", "--progress", STEP, "--detach", "train.py")

    def stalled() -> list[str]:
        """Worker 0, which has waited longer, may be told of before."""
        rows = [row for row in session.json("why", "told") if row["action"] in ("stalled", "goes-on")]
        return [row["action"] for row in rows if "stopped by a signal since" in row["reason"]]

    session.watch_until(lambda: bool(stalled()))
    assert stalled() == ["stalled"], session.json("why", "told")
    shown = " ".join(session.type("top", "told", "--once").stdout.split())
    assert "stands still (`tpuctl stacks told`): worker 1: stopped by a signal" in shown
    (first, second) = session.json("stacks", "told")
    assert [each["by"] for each in first["processes"]] == ["faulthandler"]
    assert "wait_for_the_others" in first["processes"][0]["text"]
    assert (second["processes"][0]["state"], second["processes"][0]["by"]) == ("T", "/proc")
    assert "pid" in session.type("stacks", "told", "--worker", "1").stdout
    for pid in programs_of("told"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    session.type("stop", "told", "--yes")
    assert programs_of("told") == []
    refused = session.type("stacks", "told", status=5).stderr
    assert "run told runs nowhere: it is stopped" in refused


def test_a_host_whose_chips_are_behind_is_named_before_the_restart(session: Session) -> None:
    """All wait at the same place, so that only the chips tell who has not begun what the others wait for."""
    session.type("sim", "load", "big-1", "launch=57")
    session.type("sim", "load", "big-1", "launch=41", "--worker", "1")
    words = (
        "--name",
        "behind",
        "--on-stall",
        "restart",
        "--",
        "python3",
        "-c",
        STEPS + WAIT,
    )
    told = " ".join(session.type(*RUN, *words, status=1).stderr.split())
    session.type("sim", "load", "big-1", "--off")
    assert "at launch 41 of 57; the others wait for it" in told
    (cores,) = (session.root / "state").glob("**/behind/1/worker-1.cores.log")
    assert "launch 41" in cores.read_text()
    assert (cores.parent / "worker-1.stacks.log").exists()


def test_stacks_come_from_the_py_spy_of_the_environment(session: Session) -> None:
    folder = shared_folder(session.root / "spy")
    shutil.copy(Path(sys.executable).with_name("py-spy"), folder)
    command = ("sh", "-c", f"PATH={folder}:$PATH exec python3 train.py")
    session.type("run", "--on", "big", "--no-checkpoint", "--name", "seen", "--detach", "--", *command)
    until = time.monotonic() + 60

    def found() -> dict[str, object]:
        return session.json("stacks", "seen", "--worker", "0")[0]["processes"][0]

    while "wait_for_the_others" not in str(found()["text"]):
        assert time.monotonic() < until, found()
        time.sleep(0.2)
    assert found()["by"] == "py-spy"
    session.type("stop", "seen", "--yes", "--grace", "1")
