"""What stays on hosts when a client goes, by Ctrl-C, kill -9 or a cut cable: nothing of exec, all of run."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.family import FAMILY, MEMBERS
from tests.support.require import require_isolated_hosts
from tests.support.session import Session, open_session
from tpuctl.hosts.commands import SILENCE_S
from tpuctl.sim.hosts.isolated.network import run_ip, tag_of
from tpuctl.sim.server import control

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


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.1)


def set_cables(session: Session, state: str) -> None:
    info = control.status(session.root / "state" / "sim")
    assert info is not None
    cables = [link for link in os.listdir("/sys/class/net") if link.startswith(f"tpv{tag_of(info.world_id)}")]
    assert len(cables) == 2
    run_ip([f"link set {cable} {state}" for cable in cables])


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
        until(lambda: count(mark) == EVERYBODY, "the start")
        if event == "cut cable":
            set_cables(session, "down")
        else:
            EVENTS[event](session, client)
        until(lambda: count(mark) == 0, "the end of everybody")
    finally:
        set_cables(session, "up")
        client.kill()
        client.communicate()


@pytest.mark.parametrize("event", [*EVENTS, "cut cable"])
def test_everything_of_a_run_is_left_and_is_found_again(session: Session, event: str) -> None:
    mark, name = uuid.uuid4().hex, f"run-{uuid.uuid4().hex[:6]}"
    client = session.start("run", "--name", name, "--no-checkpoint", "--on", "big", "family.py", "--", mark)
    try:
        until(lambda: count(mark) == EVERYBODY, "the start")
        if event == "cut cable":
            set_cables(session, "down")
            time.sleep(SILENCE_S + 3)  # what would end a command; a run must not care
            assert count(mark) == EVERYBODY
            set_cables(session, "up")
            kill(session, client)
        else:
            EVENTS[event](session, client)
        assert count(mark) == EVERYBODY
        found = session.start("attach", name)
        time.sleep(2)
        assert found.poll() is None
        kill(session, found)
        found.communicate()
        assert count(mark) == EVERYBODY
        session.type("stop", name, "--grace", "1", "--yes")
        until(lambda: count(mark) == 0, "the end of everybody")
    finally:
        set_cables(session, "up")
        client.kill()
        client.communicate()
