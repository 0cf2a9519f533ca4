"""What stays on hosts when a client goes, by Ctrl-C, kill -9 or a cut cable: nothing of exec, all of run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.family import FAMILY, MEMBERS
from tests.support.hosts import wait_until
from tests.support.require import require_isolated_hosts
from tests.support.session import NAMED_WITHIN_S, Session, open_session
from tpuctl.hosts.commands import SILENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EVERYBODY = 2 * len(MEMBERS)
"""On the two hosts of the slice."""
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    require_isolated_hosts()
    with open_session("--instant", "--hosts", "isolated") as session:
        (session.work / "family.py").write_text(FAMILY)
        session.type("up", "v4-16", "big", "--spot", "--pay")
        yield session


def count(mark: str) -> int:
    """Processes inside hosts whose command line has this word."""
    ours = os.readlink("/proc/self/ns/pid")
    found = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            found += mark.encode() in words and os.readlink(folder / "ns" / "pid") != ours
        except OSError:
            continue
    return found


def interrupt(session: Session, client: subprocess.Popen[str]) -> None:
    client.send_signal(signal.SIGINT)
    assert client.wait(TIMEOUT_S) == 130


def kill(session: Session, client: subprocess.Popen[str]) -> None:
    client.kill()
    client.wait()


EVENTS = {"ctrl-c": interrupt, "kill -9": kill}


@pytest.mark.parametrize("event", [*EVENTS, "cut cable"])
def test_nothing_of_a_command_is_left(session: Session, event: str) -> None:
    mark = uuid.uuid4().hex
    client = session.start("exec", "big", "--", "python3", "-c", FAMILY, mark)
    try:
        wait_until(lambda: count(mark) == EVERYBODY, what="the start")
        if event == "cut cable":
            session.set_cables("down")
        else:
            EVENTS[event](session, client)
        wait_until(lambda: count(mark) == 0, what="the end of everybody")
    finally:
        session.set_cables("up")
        client.kill()
        client.communicate()


@pytest.mark.parametrize("event", ["kill -9", "cut cable"])
def test_everything_of_a_run_is_left_and_is_found_again(session: Session, event: str) -> None:
    mark, name = uuid.uuid4().hex, f"run-{uuid.uuid4().hex[:6]}"
    client = session.start("run", "--name", name, "--no-checkpoint", "--on", "big", "family.py", "--", mark)
    try:
        wait_until(lambda: count(mark) == EVERYBODY, what="the start")
        if event == "cut cable":
            session.set_cables("down")
            time.sleep(SILENCE_S + 3)  # what would end a command; a run must not care
            assert count(mark) == EVERYBODY
            session.set_cables("up")
        kill(session, client)
        assert count(mark) == EVERYBODY
        found = session.start("attach", name)
        time.sleep(2)
        assert found.poll() is None
        kill(session, found)
        found.communicate()
        assert count(mark) == EVERYBODY
        session.type("stop", name, "--grace", "1", "--yes")
        wait_until(lambda: count(mark) == 0, what="the end of everybody")
    finally:
        session.set_cables("up")
        client.kill()
        client.communicate()


STEPS = """\
import os, time
for step in range(3):
    print("step", step, "of attempt", os.environ["TPUCTL_ATTEMPT"], flush=True)
if os.environ["TPUCTL_ATTEMPT"] == "1":
    time.sleep(600)
"""
LIMIT_S = 5


def test_a_worker_without_a_network_is_named_and_the_run_begins_again_without_leftovers(
    session: Session,
) -> None:
    (session.work / "steps.py").write_text(STEPS)
    stall = ("--stall", f"{LIMIT_S}s", "--on-stall", "restart", "--grace", "1")
    client = session.start("run", "--name", "cut", "--no-checkpoint", "--on", "big", *stall, "steps.py")
    try:
        assert client.stderr is not None
        while "runs on 2 workers" not in (line := client.stderr.readline()):
            assert line, "the run ended"
        session.set_cables("down", 1)

        def named() -> bool:
            return any("no answer" in row["reason"] for row in session.json("why", "cut"))

        wait_until(named, what="the name of the worker that lost its network")
        session.set_cables("up", 1)
        done = session.finish(client)
        assert done.returncode == 0, done.stderr
        assert "of attempt 2" in done.stdout
        took_s, said = session.stalled_after("cut")
        assert re.match("stands still: worker [01]: no answer; worker [01]: no output since ", said)
        assert took_s <= LIMIT_S + NAMED_WITHIN_S
        assert count("steps.py") == 0
    finally:
        session.set_cables("up")
        client.kill()
        client.communicate()


def test_a_worker_that_is_cut_off_while_an_attempt_is_prepared_is_named_and_waited_for(
    session: Session,
) -> None:
    session.set_cables("down", 1)
    client = session.start("run", "--name", "early", "--no-checkpoint", "--on", "big", "--", "true")
    cut = time.monotonic()
    try:

        def named() -> bool:
            return any("1 of 2 workers did not" in row["reason"] for row in session.json("why", "early"))

        wait_until(
            lambda: session.type("why", "early", status=None).returncode == 0 and named(), what="its name"
        )
        print(f"named {time.monotonic() - cut:.0f} s after the start")
        session.set_cables("up", 1)
        done = session.finish(client)
        assert done.returncode == 0, done.stderr
    finally:
        session.set_cables("up")
        client.kill()
        client.communicate()
