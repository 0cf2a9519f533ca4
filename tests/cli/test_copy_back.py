"""`tpuctl cp NAME:path DIR` as typed: where copies come to lie, what it says, and what a cut leaves."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.require import require_isolated_hosts
from tests.support.session import Session, open_session
from tests.support.soak import soak

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MIB = 1 << 20
SIZE_MIB = 80
"""Too much to be there before somebody has looked."""
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    if request.param == "isolated":
        require_isolated_hosts()
    with open_session("--instant", "--hosts", request.param) as session:
        session.type("up", "v4-16", "big", "--spot", "--pay")
        make = f"head -c {SIZE_MIB * MIB} /dev/urandom > blob; sha256sum < blob"
        session.type("exec", "big", "--", "sh", "-c", make)
        yield session


def received(done: subprocess.CompletedProcess[str]) -> float:
    """MiB, as the last line says."""
    found = re.search(r"received ([0-9.]+) (B|MiB) in", done.stderr.strip().splitlines()[-1])
    assert found is not None, done.stderr
    return float(found[1]) / (MIB if found[2] == "B" else 1)


def digests(session: Session) -> dict[str, str]:
    """By worker, as the hosts tell."""
    done = session.type("exec", "--json", "big", "--", "sha256sum", "blob")
    return {f"big-{row['worker']}": row["stdout"].split()[0] for row in json.loads(done.stdout)}


def check_whole(session: Session, folder: Path) -> None:
    """Both copies are right, and there is nothing else."""
    for name, digest in digests(session).items():
        assert [path.name for path in (folder / name).iterdir()] == ["blob"]
        with (folder / name / "blob").open("rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == digest


def start_and_wait(session: Session, folder: str) -> subprocess.Popen[str]:
    """A copy of which a part has arrived. It stands still until it is struck: on a busy machine the rest would
    be there before."""
    client = session.start("cp", "big:blob", folder)
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        client.send_signal(signal.SIGSTOP)
        if sum(path.stat().st_size for path in parts(session.work / folder)) >= 10 * MIB:
            return client
        client.send_signal(signal.SIGCONT)
        assert time.monotonic() < deadline
        assert client.poll() is None, client.communicate()
        time.sleep(0.01)


def parts(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*/.tpuctl-part.*/*") if path.name != "lock"]


def interrupt(_session: Session, client: subprocess.Popen[str]) -> None:
    client.send_signal(signal.SIGINT)
    client.send_signal(signal.SIGCONT)
    assert client.wait(TIMEOUT_S) == 130


def kill(_session: Session, client: subprocess.Popen[str]) -> None:
    client.kill()
    client.wait()


def cut(session: Session, client: subprocess.Popen[str]) -> None:
    session.set_cables("down")
    client.send_signal(signal.SIGCONT)
    try:
        _, stderr = client.communicate(timeout=TIMEOUT_S)
    finally:
        session.set_cables("up")
    assert client.returncode == 3
    assert "no sign of life" in stderr
    assert "goes on where it broke off" in stderr


@pytest.mark.parametrize(
    ("session", "strike"),
    [
        pytest.param("process", kill, id="kill -9"),
        soak("isolated", cut, id="cut cable"),
        soak("process", interrupt, id="ctrl-c"),
        soak("isolated", interrupt, id="isolated, ctrl-c"),
        soak("isolated", kill, id="isolated, kill -9"),
    ],
    indirect=["session"],
)
def test_a_copy_that_broke_off_goes_on(
    session: Session, strike: Callable[[Session, subprocess.Popen[str]], None]
) -> None:
    folder = f"out-{strike.__name__}"
    client = start_and_wait(session, folder)
    try:
        strike(session, client)
    finally:
        client.kill()
        client.communicate()
    had = sum(path.stat().st_size for path in parts(session.work / folder))
    assert had >= 10 * MIB
    assert not list((session.work / folder).glob("*/blob"))
    done = session.type("cp", "big:blob", folder)
    assert received(done) == pytest.approx(2 * SIZE_MIB - had / MIB, abs=0.1)
    check_whole(session, session.work / folder)
    assert received(session.type("cp", "big:blob", folder)) == 0.0
    check_whole(session, session.work / folder)


@pytest.mark.parametrize("session", ["process", soak("isolated")], indirect=True)
def test_the_last_line_says_what_came_from_whom_and_where_it_is(session: Session) -> None:
    session.type("exec", "big", "--", "sh", "-c", "mkdir -p out; echo one > out/a; echo two > out/b")
    done = session.type("cp", "big:out", "here")
    assert done.stdout == ""
    last = done.stderr.strip().splitlines()[-1].removeprefix("[sim] ")
    assert last.startswith("4 files, 16 B, from 2 workers are in here/big-*: received 16 B in ")
    assert (session.work / "here/big-1/out/b").read_text() == "two\n"
    alone = session.type("cp", "--worker", "1", "big:out/a", "alone.txt").stderr
    assert "1 file, 4 B, from 1 worker is in alone.txt: received 4 B in " in alone
    assert (session.work / "alone.txt").read_text() == "one\n"
    session.type("cp", "--worker", "1", "big:out/a", "folder/")
    assert (session.work / "folder/a").read_text() == "one\n"
    missing = session.type("cp", "big:nothing", "here", status=1)
    assert "no such file or directory" in missing.stderr
