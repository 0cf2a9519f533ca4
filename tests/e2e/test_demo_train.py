"""The demo's training script, for real: two processes, JAX, the simulator's bucket, a kill half-way.

Only in `make soak`: tests/cli/test_demo.py runs the same script on hosts, through a preemption.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from tests.support.sim import RunningSim, running_sim
from tpuctl.envs.load import pin, read_environment
from tpuctl.envs.pinned import environment_files
from tpuctl.sim.world.paths import storage_endpoint

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "templates" / "demo_train.py"
MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"
BUCKET = "demo-train"


@pytest.fixture(scope="module")
def jax_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The interpreter of the pinned `demo-cpu` environment, installed as a host would."""
    home = tmp_path_factory.mktemp("home")
    pinned = pin(read_environment("demo-cpu", home))
    installer = (ROOT / "templates" / "env_install.py").read_bytes()
    for name, content in environment_files(pinned, MINOR, installer).items():
        (home / name).write_bytes(content)
    done = subprocess.run(
        [sys.executable, "env_install.py"],
        cwd=home,
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    if done.returncode != 0 and "cannot be fetched" in done.stdout:
        pytest.skip("needs a package index: " + done.stderr)
    assert done.returncode == 0, done.stderr
    (python,) = home.glob(".tpuctl/envs/*/bin/python")
    yield python
    shutil.rmtree(home)  # half a gigabyte, and as much again in its cache


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[RunningSim]:
    with running_sim(tmp_path) as running:
        bucket_client(running).create_bucket(BUCKET)
        yield running


def bucket_client(sim: RunningSim) -> storage.Client:
    return storage.Client(
        project=sim.simulator.options.project,
        credentials=AnonymousCredentials(),
        client_options={"api_endpoint": storage_endpoint(sim.endpoint, sim.token)},
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.77.0.1", 0))
        return int(probe.getsockname()[1])


class Attempt:
    """Two processes of one attempt, writing their output to files."""

    def __init__(self, python: Path, sim: RunningSim, directory: Path, run: str, number: int) -> None:
        self.logs = [directory / f"{run}-{number}-{rank}.log" for rank in range(2)]
        port = free_port()
        self.processes = []
        for rank, log in enumerate(self.logs):
            environment = {
                "PATH": "/usr/bin:/bin",
                "HOME": str(directory),
                "JAX_PLATFORMS": "cpu",
                "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
                "STORAGE_EMULATOR_HOST": storage_endpoint(sim.endpoint, sim.token),
                "TPUCTL_RANK": str(rank),
                "TPUCTL_WORLD_SIZE": "2",
                "TPUCTL_COORDINATOR": f"127.77.0.1:{port}",
                "TPUCTL_ATTEMPT": str(number),
                "TPUCTL_CHECKPOINT_DIR": f"gs://{BUCKET}/runs/{run}",
                "STEPS": "60",
                "CHECKPOINT_EVERY": "10",
                "STEP_SECONDS": "0.05",
            }
            with log.open("wb") as output:
                self.processes.append(
                    subprocess.Popen([python, SCRIPT], env=environment, stdout=output, stderr=subprocess.STDOUT)
                )

    def __enter__(self) -> Attempt:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def text(self) -> str:
        return "\n".join(log.read_text(errors="replace") for log in self.logs)

    def wait_for(self, words: str) -> None:
        deadline = time.monotonic() + 120
        while words not in self.text():
            assert all(process.poll() is None for process in self.processes), self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.02)

    def finish(self) -> list[int]:
        return [process.wait(timeout=180) for process in self.processes]


def stored_metrics(sim: RunningSim, run: str) -> dict[str, object]:
    blob = bucket_client(sim).bucket(BUCKET).blob(f"runs/{run}/metrics.json")
    metrics: dict[str, object] = json.loads(blob.download_as_bytes())
    return metrics


def test_run_killed_half_way_resumes_and_ends_like_an_unbroken_one(
    jax_python: Path, sim: RunningSim, tmp_path: Path
) -> None:
    with Attempt(jax_python, sim, tmp_path, "unbroken", 1) as unbroken:
        assert unbroken.finish() == [0, 0], unbroken.text()
    with Attempt(jax_python, sim, tmp_path, "broken", 1) as first:
        first.wait_for("saved step 20")  # leaving the block kills both processes
    with Attempt(jax_python, sim, tmp_path, "broken", 2) as second:
        assert second.finish() == [0, 0], second.text()
    assert "resumed from step" in second.text()
    assert "(attempt 2)" in second.text()
    assert "step 10/60" not in second.text()
    metrics = stored_metrics(sim, "broken")
    assert metrics == stored_metrics(sim, "unbroken")
    assert metrics["steps"] == 60
    assert float(str(metrics["accuracy"])) > 0.9


def test_terminated_process_ends_at_once_and_takes_the_others_along(
    jax_python: Path, sim: RunningSim, tmp_path: Path
) -> None:
    with Attempt(jax_python, sim, tmp_path, "stopped", 1) as attempt:
        attempt.wait_for("step 10/60")
        attempt.processes[1].terminate()
        assert attempt.processes[1].wait(timeout=30) == -15
        assert attempt.processes[0].wait(timeout=120) != 0
