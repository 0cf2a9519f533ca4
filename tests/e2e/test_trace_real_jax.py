"""Traces of a real JAX on four hosts, of programs without a word of profilers, as the real xprof opens them."""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.jax_python import VARIABLES, jax_python, xprof_program
from tests.support.session import Session, open_session

pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(900)]

TRAIN = """\
import os, sys, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
size, rank = int(os.environ["TPUCTL_WORLD_SIZE"]), int(os.environ["TPUCTL_RANK"])
jax.distributed.initialize(os.environ["TPUCTL_COORDINATOR"], size, rank)
if "serve" in sys.argv:
    jax.profiler.start_server(29911 + rank)
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
batch = jax.make_array_from_process_local_data(sharding, np.ones((8, 64), np.float32))
@jax.jit
def train_step(batch):
    return (jnp.sin(batch) @ batch.T).sum()
for step in range(100000):
    train_step(batch).block_until_ready()
    if step % 20 == 0:
        print("step", step, flush=True)
    time.sleep(0.02)
"""
RUN = ("run", "--on", "big", "--no-checkpoint", "--max-failures", "0", "--grace", "1", "--detach", *VARIABLES)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as opened:
        (opened.work / "train.py").write_text(TRAIN)
        opened.type("up", "v4-32", "big", "--spot", "--pay", within_s=400)
        yield opened


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    with jax_python() as made:
        yield made


def start(session: Session, name: str, *words: str) -> None:
    """Until all hosts are at work."""
    session.type(*RUN, "--name", name, *words, within_s=400)
    end = time.monotonic() + 300

    def at_work() -> int:
        logs = (session.root / "state").rglob(f"runs/{name}/1/stdout.log")
        return sum("step 20" in path.read_text() for path in logs)

    while at_work() < 4:
        assert time.monotonic() < end
        time.sleep(0.5)


@contextmanager
def viewer(folder: Path) -> Iterator[str]:
    """The address of xprof on a log directory."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(xprof_program()), "--logdir", str(folder), "--port", str(port)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield f"http://127.0.0.1:{port}/data/plugin/profile"
        finally:
            process.kill()


def ask(address: str, what: str, **words: str) -> Any:
    end = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(
                f"{address}/{what}?{urllib.parse.urlencode(words)}", timeout=60
            ) as answer:
                said = answer.read()
                return json.loads(
                    gzip.decompress(said) if answer.headers["Content-Encoding"] == "gzip" else said
                )
        except urllib.error.HTTPError:
            raise
        except OSError:  # it begins
            assert time.monotonic() < end
            time.sleep(0.3)


def shown(folder: Path, session: str) -> tuple[set[str], set[str]]:
    """The hosts that xprof lists for a session, and those of which it draws a timeline with the step."""
    with viewer(folder) as address:
        assert ask(address, "runs") == [session]
        hosts = {row["hostname"] for row in ask(address, "hosts", run=session, tag="trace_viewer")}
        drawn = set()
        for host in hosts:
            events = ask(address, "data", run=session, tag="trace_viewer", host=host)["traceEvents"]
            if any("train_step" in event.get("name", "") for event in events):
                drawn.add(host)
        return hosts, drawn


def test_xprof_shows_all_hosts_of_one_session(session: Session, python: Path) -> None:
    start(session, "well", "--", str(python), "train.py")
    said = session.json("trace", "well", "--seconds", "2")
    assert [row["trouble"] for row in said["workers"]] == [""] * 4
    assert said["spread_seconds"] < 1
    everyone = {f"big-{worker}" for worker in range(4)}
    assert shown(session.work / said["directory"], said["session"]) == (everyone, everyone)
    assert session.json("status", "well")["state"] == "running"
    session.type("stop", "well", "--yes")


def test_a_program_that_the_hook_does_not_see_is_traced_by_its_own_server(
    session: Session, python: Path
) -> None:
    start(session, "serves", "--var", "TF_CPP_MIN_LOG_LEVEL=0", "--", str(python), "-I", "train.py", "serve")
    said = session.json("trace", "serves", "--seconds", "1")  # its log names the port
    assert [row["trouble"] for row in said["workers"]] == [""] * 4
    everyone = {f"big-{worker}" for worker in range(4)}
    assert shown(session.work / said["directory"], said["session"]) == (everyone, everyone)
    assert session.json("trace", "serves", "--seconds", "0.5", "--worker", "1", "--port", "29912")["files"]
    session.type("stop", "serves", "--yes")
