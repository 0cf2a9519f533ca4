"""`run --debug` and `collect` on hosts: what real processes dump, and a file with all of it."""

from __future__ import annotations

import json
import signal
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.jax_python import flax_packages, old_jax_packages
from tests.support.session import Session, open_session

pytestmark = pytest.mark.slow

MEET = """\
import os, time

def all_dumped():
    \"\"\"The first process that fails ends the others: each waits until all have dumped.\"\"\"
    own, place = os.environ["TPUCTL_ATTEMPT"], os.environ["MEETING"]
    open(os.path.join(place, own + "-" + os.environ["TPUCTL_RANK"]), "w").close()
    while sum(name.startswith(own) for name in os.listdir(place)) < int(os.environ["TPUCTL_WORLD_SIZE"]):
        time.sleep(0.05)
"""
DUMPS = """\
import os, sys, time
from meet import all_dumped
folder = os.environ["TPUCTL_DUMPS"]
with open(os.path.join(folder, "module_0000.txt"), "w") as file:
    file.write("%s %s %s" % (os.environ["TPUCTL_ATTEMPT"], os.environ["XLA_FLAGS"], os.environ["TOKEN"]))
with open(os.path.join(os.environ["TPU_LOG_DIR"], "tpu_driver.INFO"), "w") as file:
    file.write("I0000 the driver of process " + os.environ["TPUCTL_LOCAL_RANK"])
print("dumped", flush=True)
all_dumped()
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
        (made.work / "meet.py").write_text(MEET)
        made.environ["TOKEN"] = TOKEN
        yield made


def shared(session: Session, variable: str, name: str) -> tuple[str, str]:
    """Words of `tpuctl run` that name a folder into which programs of hosts write."""
    place = session.root / name
    place.mkdir()
    place.chmod(0o777)
    return "--var", f"{variable}={place}"


def contents(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {row.name: archive.extractfile(row) for row in archive}
        return {name: file.read().decode(errors="replace") for name, file in found.items() if file is not None}


def test_processes_and_attempts_dump_apart_and_all_of_it_comes_home(session: Session) -> None:
    words = (*RUN, *shared(session, "MEETING", "apart"), "--per", "chip", "--secret", "TOKEN=env:TOKEN")
    session.type(*words, "--max-failures", "1", "dumps.py", "0")
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
    words = (
        *RUN,
        *shared(session, "MEETING", "long"),
        "--secret",
        "TOKEN=env:TOKEN",
        "--name",
        "long",
        "--detach",
    )
    session.type(*words, "dumps.py", "300")
    session.watch_until(lambda: "big[0-1] │ dumped" in session.type("logs", "long", status=None).stdout)
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
    session.type("sim", "crash", session.json("status", "big")["node"], "--worker", "1")
    told = session.type("collect", "long", "-o", "silent.tar", status=3, within_s=120)
    assert "worker 1 did not answer, and silent.tar has nothing of it" in " ".join(told.stderr.split())
    silent = contents(session.work / "silent.tar")
    assert "hosts/worker-0/attempts.json" in silent
    assert "hosts/worker-1/attempts.json" not in silent


REAL = """\
import os, sys
import jax, jax.numpy as jnp
from meet import all_dumped

@jax.jit
def train_step(x):
    return jnp.log(x).sum()

print(train_step(jnp.ones((8, 8))))
all_dumped()
if "nan" in sys.argv:
    print(train_step(-jnp.ones((8, 8))))
sys.exit(int(os.environ["TPUCTL_ATTEMPT"]) == 1 and "again" in sys.argv)
"""
OF_JAX = ("run", "--on", "one", "--no-checkpoint", "--var", "JAX_PLATFORMS=cpu", "--debug")


@pytest.fixture(scope="module")
def one(session: Session) -> Session:
    session.type("up", "v4-8", "one", "--spot", "--pay")
    (session.work / "real.py").write_text(REAL)
    return session


@pytest.mark.soak
def test_jax_dumps_all_programs_of_each_process_and_attempt(one: Session) -> None:
    """Also where a compile cache has them: the second attempt would load them from there."""
    cache = {
        "PYTHONPATH": str(flax_packages()),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    variables = [word for name, value in cache.items() for word in ("--var", f"{name}={value}")]
    variables += shared(one, "JAX_COMPILATION_CACHE_DIR", "cache")
    program = ("--max-failures", "1", "--", sys.executable, "real.py", "again")
    one.type(
        *OF_JAX, "hlo", *variables, *shared(one, "MEETING", "jax"), "--per", "chip", *program, within_s=300
    )
    one.type("collect", "-o", "jax.tar")
    found = contents(one.work / "jax.tar")
    top = "hosts/worker-0"
    for attempt in (1, 2):
        for process in range(4):
            folder = f"{top}/attempt-{attempt}/dumps/{process}"
            names = [name.removeprefix(f"{folder}/") for name in found if name.startswith(folder)]
            steps = [name for name in names if "train_step" in name]
            for ending in (
                "before_optimizations.txt",
                "cpu_after_optimizations.txt",
                "memory-usage-report.txt",
            ):
                assert [name for name in steps if name.startswith("hlo/") and name.endswith(ending)], names
            assert [name for name in steps if name.startswith("ir/") and name.endswith(".mlir")]
            assert [name for name in steps if name.endswith(".jaxpr.txt")]


@pytest.mark.soak
@pytest.mark.parametrize("packages", [flax_packages, old_jax_packages], ids=["0.10.2", "0.4.30"])
def test_the_first_nan_ends_jax_with_its_line(one: Session, packages: Callable[[], Path]) -> None:
    words = (*OF_JAX, "nans", "--debug", "hlo", "--var", f"PYTHONPATH={packages()}", "--max-failures", "0")
    words += shared(one, "MEETING", f"nan-{packages.__name__}")
    one.type(*words, "--", sys.executable, "real.py", "nan", status=1, within_s=300)
    one.type("collect", "-o", "nan.tar", "--overwrite")
    found = contents(one.work / "nan.tar")
    assert "invalid value (nan) encountered in" in found["logs/attempt-1/worker-0.stderr.log"]
    dumped = [name for name in found if name.startswith("hosts/worker-0/attempt-1/dumps/0/")]
    assert [name for name in dumped if name.endswith("cpu_after_optimizations.txt") and "train_step" in name]
