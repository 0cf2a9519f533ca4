"""Failures of real programs on two hosts: which worker has the cause, what it means, and what follows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.session import Session, open_training
from tests.support.soak import soak

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Worker 1 fails, worker 0 waits for it by a real connection, as for a collective.
TRAIN = """\
import ctypes, os, socket, sys, time
how = sys.argv[1]
host, _, port = os.environ["TPUCTL_COORDINATOR"].rpartition(":")
def fail():
    if how == "import": import no_such_module
    if how == "symbol": ctypes.CDLL(None).no_such_function
    if how == "python": import built
    if how == "killed": os.kill(os.getpid(), 9)
    if how == "crashed": os.kill(os.getpid(), 11)
    if how == "disk":
        with open("/dev/full", "w") as file: file.write("x")
    if how == "port":
        first, second = socket.socket(), socket.socket()
        first.bind(("127.0.0.1", 0)); first.listen()
        second.bind(first.getsockname())
    if how == "oom":
        with open(sys.argv[2] + "/cgroup.procs", "w") as file: file.write(str(os.getpid()))
        held = [bytearray(b"x" * (8 << 20)) for _ in range(64)]
if os.environ["TPUCTL_RANK"] == "1":
    for _ in range(100):
        try: peer = socket.create_connection((host, int(port)))
        except ConnectionRefusedError: time.sleep(0.1)
        else: break
    fail()
server = socket.create_server((host, int(port)))
peer, _ = server.accept()
if not peer.recv(1): raise ConnectionResetError("Connection closed by peer")
"""
RUN = ("run", "--on", "big", "--no-checkpoint", "--grace", "1")
MEMORY = Path("/sys/fs/cgroup/memory")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_training(TRAIN) as opened:
        (opened.work / "built.pyc").write_bytes(b"\x03\xf3\r\n" + bytes(12))
        yield opened


def failed(session: Session, name: str, *words: str, limit: int = 0) -> tuple[dict[str, Any], str]:
    """The row of a run that fails, and what was said."""
    options = ("--name", name, "--max-failures", str(limit))
    told = session.type(*RUN, *options, *(words or ("train.py", name)), status=1).stderr
    (row,) = [row for row in session.json("runs") if row["id"] == name]
    return row, told


@pytest.mark.parametrize(
    ("name", "signature", "whose"),
    [
        ("symbol", "undefined-symbol", "environment"),
        soak("python", "wrong-python", "environment"),
        soak("killed", "killed", "unknown"),
        soak("crashed", "crashed", "unknown"),
        ("disk", "disk-full", "environment"),
        soak("port", "port-in-use", "environment"),
    ],
)
def test_the_worker_with_the_cause_is_named_not_the_one_that_lost_it(
    session: Session, name: str, signature: str, whose: str
) -> None:
    row, told = failed(session, name)
    found = row["failure"]
    assert (found["signature"], found["whose"], found["worker"]) == (signature, whose, 1)
    said = signature if whose == "unknown" else f"{signature}, {whose}"
    assert f"({said})" in " ".join(told.split())


def test_a_program_that_cannot_import_is_not_tried_again(session: Session) -> None:
    row, told = failed(session, "import", limit=5)
    assert (row["attempts"], row["failures"], row["preemptions"]) == (1, 1, 0)
    assert row["failure"]["evidence"] == "ModuleNotFoundError: No module named 'no_such_module'"
    said = " ".join(told.split())
    assert "worker 1: Python does not find no_such_module (module-not-found, environment)" in said
    assert "hint: add no_such_module to the environment (`run --env`)" in said
    assert "failed: module-not-found" in session.type("runs").stdout
    assert "module-not-found" in str(session.json("why", "import"))


@pytest.fixture
def driver_log() -> Iterator[Path]:
    """What libtpu wrote on the hosts, which have the `/tmp` of this machine."""
    folder = Path("/tmp/tpu_logs")
    folder.mkdir(exist_ok=True)
    file = folder / f"tpu_driver.{os.getpid()}.INFO"
    file.write_text("I0000 tpu_driver.cc:1] chip 3 does not answer\n")
    yield file
    file.unlink()
    with suppress(OSError):
        folder.rmdir()


def test_a_program_that_is_not_there_is_not_tried_again(session: Session, driver_log: Path) -> None:
    row, told = failed(session, "absent", "--", "no-such-program", limit=5)
    assert (row["failure"]["signature"], row["attempts"]) == ("command-not-found", 1)
    (host,) = (session.root / "state").glob("**/absent/1/worker-*.host.log")
    said = host.read_text()
    assert all(f"== {part}\n" in said for part in ("kernel", "memory", "disks", "processes"))
    assert f"== {driver_log}\n{driver_log.read_text()}" in said
    assert f"worker-{row['failure']['worker']}.host.log" == host.name
    assert host.name in "".join(told.split())


@contextmanager
def little_memory() -> Iterator[Path]:
    """A group of processes that may use 48 MB, into which every user may go."""
    group = MEMORY / f"tpuctl-test-{id(object())}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(48 << 20))
        (group / "cgroup.procs").chmod(0o666)
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"needs root and cgroups of version 1: {error}")
    try:
        yield group
    finally:
        group.rmdir()


def test_the_kernels_kill_for_want_of_memory_is_told_from_others(session: Session) -> None:
    with little_memory() as group:
        row, told = failed(session, "oom", "train.py", "oom", str(group))
    assert (row["failure"]["signature"], row["failure"]["worker"]) == ("oom-killed", 1)
    assert "worker 1 was killed by signal 9 (its host ran out of memory)" in " ".join(told.split())
