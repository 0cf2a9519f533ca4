"""What programs on two hosts come up with: the CPU, a worker that is missing, what was compiled before."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest

from tests.support.frameworks import FILES, write_jax
from tests.support.proc import programs_of
from tests.support.session import Session, open_training
from tests.support.wheels import Project

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TRAIN = """\
import os, sys, time
odd = os.environ["TPUCTL_RANK"] == "1"
if odd and "LATE" in os.environ:
    time.sleep(600)
if odd:
    os.environ.update(pair.split("=") for pair in os.environ.get("ODD", "").split())
import jax
print("devices", jax.device_count(), flush=True)
time.sleep(float(os.environ.get("TRAINS", "600")))
"""
RUN = ("run", "--on", "big", "--no-checkpoint", "--max-failures", "0", "--grace", "1")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_training(TRAIN) as opened:
        write_jax(opened.work)
        yield opened


def refused(session: Session, name: str, *words: str) -> str:
    """A run that is stopped, within a minute of when it began; what was said."""
    began = time.monotonic()
    told = session.type(*RUN, "--name", name, *words, "train.py", status=1).stderr
    assert time.monotonic() - began < 60
    assert programs_of(name) == []
    row = next(row for row in session.json("runs") if row["id"] == name)
    assert row["state"] == "failed"
    assert session.json("manifest", name)["attempts"][-1]["cause"] == "not-joined"
    return told


def test_a_worker_on_the_cpu_is_named_and_all_are_stopped(session: Session) -> None:
    told = refused(session, "fallback", "--var", "ODD=FAKE_BACKEND=cpu")
    assert "worker 1 came up on cpu, not on the chips (--allow-cpu if that is wanted" in told


def test_a_worker_that_does_not_come_is_named(session: Session) -> None:
    words = ("--var", "LATE=1", "--var", "FAKE_WAIT=600", "--join-limit", "2")
    told = refused(session, "late", *words)
    assert "worker 1 did not come to take the chips: the others wait since " in told


def test_passes_find_it_too(session: Session) -> None:
    session.type(*RUN, "--name", "alone", "--detach", "--var", "FAKE_BACKEND=cpu", "train.py")
    session.watch_until(lambda: session.json("runs")[0]["state"] == "failed")
    (row,) = [row for row in session.json("runs") if row["id"] == "alone"]
    # A pass may find the first before the other has told of its chips.
    assert re.search("worker (0|1|0-1) came up on cpu", row["reason"])


def test_what_is_wanted_is_recorded_and_goes_on(session: Session) -> None:
    short = ("--var", "TRAINS=0", "--var", "FAKE_BACKEND=cpu", "--allow-cpu")
    session.type(*RUN, "--name", "wanted", *short, "train.py")
    assert session.json("manifest", "wanted")["command"]["allow_cpu"] is True


def test_a_run_on_all_chips_says_so_once(session: Session) -> None:
    session.type(*RUN, "--name", "well", "--var", "TRAINS=10", "train.py")
    found = session.json("manifest", "well")
    joined = [entry["detail"] for entry in found["attempts"][0]["timeline"] if entry["event"] == "joined"]
    assert joined == ["8 chips, 2 workers"]
    assert json.dumps(found).count("allow_cpu") == 1


@pytest.mark.long
def test_what_was_compiled_is_there_for_the_next_run(session: Session) -> None:
    Project(session.work).add("cached", {"jax": "1.0"}, "compile_cache: disk", FILES)
    program = "from jax._src.compiler import compile\ncompile('step')\n"
    said = []
    for name in ("first", "second"):
        session.type(*RUN, "--name", name, "--env", "cached", "--", "python3", "-c", program)
        said.append({row["compile_cache"] for row in session.json("manifest", name)["attempts"][-1]["hosts"]})
    assert said == [{"cold: 0 of 1 programs loaded"}, {"warm: 1 of 1 programs loaded"}]
