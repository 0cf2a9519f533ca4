"""`run --debug` and `collect` on hosts: what real processes dump, and a file with all of it."""

from __future__ import annotations

import json
import signal
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.session import Session, open_session

pytestmark = pytest.mark.slow

DUMPS = """\
import os, sys, time
folder = os.environ["TPUCTL_DUMPS"]
with open(os.path.join(folder, "module_0000.txt"), "w") as file:
    file.write("%s %s %s" % (os.environ["TPUCTL_ATTEMPT"], os.environ["XLA_FLAGS"], os.environ["TOKEN"]))
with open(os.path.join(os.environ["TPU_LOG_DIR"], "tpu_driver.INFO"), "w") as file:
    file.write("I0000 the driver of process " + os.environ["TPUCTL_LOCAL_RANK"])
print("dumped", flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(int(os.environ["TPUCTL_ATTEMPT"]) == 1)
"""
RUN = ("run", "--on", "big", "--no-checkpoint", "--debug", "hlo", "--var", "XLA_FLAGS=--own=1")
TOKEN = "correct-horse-battery"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as made:
        made.type("up", "v4-16", "big", "--spot", "--pay")
        (made.work / "dumps.py").write_text(DUMPS)
        made.environ["TOKEN"] = TOKEN
        yield made


def contents(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {row.name: archive.extractfile(row) for row in archive}
        return {name: file.read().decode() for name, file in found.items() if file is not None}


def test_processes_and_attempts_dump_apart_and_all_of_it_comes_home(session: Session) -> None:
    words = (*RUN, "--per", "chip", "--secret", "TOKEN=env:TOKEN", "--max-failures", "1", "dumps.py", "0")
    session.type(*words)
    said = session.type("collect", "-o", "out/all.tar")
    assert "wrote out/all.tar: " in said.stdout
    found = contents(session.work / "out" / "all.tar")
    assert TOKEN not in "".join(found.values())
    for worker in (0, 1):
        for attempt in (1, 2):
            top = f"hosts/worker-{worker}/attempt-{attempt}"
            for process in range(4):
                text = found[f"{top}/dumps/{process}/module_0000.txt"]
                number, *flags, token = text.split(" ")
                assert (number, flags[0], token) == (str(attempt), "--own=1", "*" * len(TOKEN))
                assert flags[1].endswith(f"/{attempt}/dumps/{process}/hlo")
            assert found[f"{top}/driver-logs/tpu_driver.INFO"].startswith("I0000")
    index = json.loads(found["index.json"])
    assert index["status"]["state"] == "succeeded"
    assert index["status"]["earlier"][0]["number"] == 1
    refused = session.type("run", "--on", "big", "--no-checkpoint", "--debug", "hol", "dumps.py", status=2)
    assert "--debug 'hol' is unknown" in refused.stderr
    (session.work / "notes.tar").write_text("mine")
    refused = session.type("collect", "-o", "notes.tar", status=2)
    assert "is there and is no collection" in refused.stderr


def test_a_run_that_goes_on_is_collected_and_ctrl_c_keeps_what_came(session: Session) -> None:
    session.type(*RUN, "--secret", "TOKEN=env:TOKEN", "--name", "long", "--detach", "dumps.py", "300")
    deadline = time.monotonic() + 60
    while session.json("status", "long")["state"] != "running" and time.monotonic() < deadline:
        session.type("watch", "once")
    data = session.json("collect", "long")
    found = contents(session.work / data["file"])
    assert "dumps.py" in found["hosts/worker-1/stacks.txt"]
    assert found["logs/attempt-1/worker-0.stdout.log"] == "dumped\n"
    client = session.start("collect", "long", "-o", "half.tar")
    while not list(session.work.glob(".half.tar.*/run.json")) and client.poll() is None:
        time.sleep(0.02)
    client.send_signal(signal.SIGINT)
    done = session.finish(client)
    assert done.returncode == 130, done.stderr
    assert "interrupted: what came until then is in half.tar" in done.stderr
    half = contents(session.work / "half.tar")
    assert "Interrupted" in half["INDEX.md"]
    assert json.loads(half["index.json"])["interrupted"]
    assert not list(session.work.glob(".half*"))
    session.type("stop", "long", "--yes")
