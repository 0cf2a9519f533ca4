"""The examples of training, for real: a TERM, a status of 75, and the same result. In CI each is alone, in the
soak a run on two hosts.

That a run goes on after a preemption, on new hosts with its environment, is what the demo shows, with a program
of its own (tests/cli/test_demo.py); what a status of 75 asks for is in tests/data/plans/runs.yaml."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.gcs import make_bucket, serving_gcs
from tests.support.jax_python import VARIABLES, jax_python
from tests.support.kube.processes import free_port
from tests.support.session import ROOT, Session, open_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EXAMPLES = ROOT / "manifests" / "examples"
NAMES = ("train_jax.py", "train_torch.py")
PACE = ("--var", "STEPS=60", "--var", "SAVE_EVERY=1000")
"""Nothing is saved before the end but by a program that is told to leave."""


@contextmanager
def interpreter(name: str) -> Iterator[str]:
    """One that has what an example imports. Skips without its framework."""
    if name == "train_jax.py":
        with jax_python() as python:
            yield str(python)
        return
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch, which is too large to be installed for this test alone")
    yield sys.executable


def program_of_rank(run: str, rank: int) -> int:
    """The process id of a worker's program; hosts of the process tier are processes of this machine."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ = (folder / "environ").read_bytes().split(b"\0")
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended meanwhile
        wanted = {f"TPUCTL_RUN_ID={run}".encode(), f"TPUCTL_RANK={rank}".encode()}
        if wanted <= set(environ) and any(word.startswith(b"train_") for word in map(os.path.basename, words)):
            return int(folder.name)
    raise AssertionError(f"no program of rank {rank} of run {run}")


class Followed:
    """`tpuctl run`, as it is followed at a terminal, with what it printed so far."""

    def __init__(self, session: Session, name: str, step_s: float, words: tuple[str, ...]) -> None:
        self.log = session.root / f"{name}.log"
        place = ("--checkpoint-dir", f"gs://sim-bucket/{name}")
        pace = (*PACE, "--var", f"STEP_SECONDS={step_s}")
        command = ("tpuctl", "run", "--on", "big", "--name", name, *place, *pace, *words)
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=session.work,
                env=session.environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + 400
        while (found := re.search(pattern, self.text())) is None:
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.05)
        return found


class Alone:
    """An example on one process, without tpuctl, whose variables it has; what it prints is in a file."""

    def __init__(self, python: str, name: str, storage: str, folder: Path, step_s: float, attempt: int) -> None:
        self.said = folder / f"said-{attempt}"
        environ = {
            **os.environ,
            **dict(each.split("=", 1) for each in (*VARIABLES, *PACE) if "=" in each),
            "STEP_SECONDS": str(step_s),
            "STORAGE_EMULATOR_HOST": storage,
            "TPUCTL_ATTEMPT": str(attempt),
            "TPUCTL_CHECKPOINT_DIR": f"gs://bbb/{folder.name}",
            "TPUCTL_COORDINATOR": f"127.0.0.1:{free_port()}",
            "TPUCTL_RANK": "0",
            "TPUCTL_WORLD_SIZE": "1",
        }
        with self.said.open("wb") as output:
            self.process = subprocess.Popen(
                (python, EXAMPLES / name), env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def ends(self) -> tuple[int, str]:
        """With which status, and what it said."""
        return self.process.wait(timeout=300), self.said.read_text()

    def leaves(self) -> tuple[int, str]:
        """A TERM as soon as it trains."""
        while "step 20/60" not in self.said.read_text():
            assert self.process.poll() is None, self.said.read_text()
            time.sleep(0.05)
        self.process.send_signal(signal.SIGTERM)
        return self.ends()


def result_of(text: str) -> str:
    found = re.search(r"finished: parameters (\w+)", text)
    assert found, text
    return found[1]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_alone_leaves_with_75_and_goes_on_to_the_same_result(name: str, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    with interpreter(name) as python, serving_gcs(tmp_path / "storage") as storage:
        make_bucket(storage)
        status, unbroken = Alone(python, name, storage, whole, 0.0, 1).ends()
        assert status == 0, unbroken
        status, first = Alone(python, name, storage, broken, 0.1, 1).leaves()
        left = re.search(r"asked to leave at step (\d+)", first)
        assert status == 75, first
        assert left, first
        status, second = Alone(python, name, storage, broken, 0.0, 2).ends()
        assert status == 0, second
    assert f"resumed from step {left[1]} (attempt 2)" in second
    assert result_of(second) == result_of(unbroken)


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_an_example_that_is_asked_to_leave_ends_like_an_unbroken_one(name: str) -> None:
    with interpreter(name) as python, open_session("--instant") as session:
        words = (*VARIABLES, "--", python, name)
        session.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{session.environ['PATH']}"
        shutil.copy(EXAMPLES / name, session.work)
        session.type("up", "v4-16", "big", "--spot", "--pay")

        unbroken = Followed(session, "unbroken", 0.0, words)
        result = unbroken.wait_for(r"finished: parameters (\w+)")
        assert unbroken.process.wait(timeout=60) == 0, unbroken.text()

        broken = Followed(session, "broken", 0.1, words)
        broken.wait_for(r"step 20/60")
        os.kill(program_of_rank("broken", 1), signal.SIGTERM)
        left = broken.wait_for(r"asked to leave at step (\d+)")
        broken.wait_for(rf"resumed from step {left[1]} \(attempt 2\)")
        assert broken.wait_for(r"finished: parameters (\w+)")[1] == result[1]
        assert broken.process.wait(timeout=60) == 0, broken.text()

        manifests = [session.json("manifest", "broken", "--attempt", str(number)) for number in (1, 2)]
        assert [each["attempts"][0]["cause"] for each in manifests] == ["restart-asked", "succeeded"]
        row = next(row for row in session.json("runs") if row["id"] == "broken")
        assert (row["failures"], row["preemptions"]) == (0, 0)
