"""A real JAX on two hosts: its compile cache in a bucket, and what a smoke test finds."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.require import require_index
from tests.support.session import Session, open_session
from tests.support.wheels import MINOR

pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(900)]

INSTALL_S = 400.0
FILE = f"""\
name: train
backend: cpu
python: "{MINOR}"
requirements: [jax==0.10.2, jaxlib==0.10.2, "etils[epath-gcs]==1.13.0"]
imports: [jax, gcsfs]
variables:
  JAX_PLATFORMS: cpu
  JAX_CPU_COLLECTIVES_IMPLEMENTATION: gloo
  JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS: "0"
compile_cache: gs://sim-bucket/compiled
"""
TRAIN = """\
import os
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
size, rank = int(os.environ["TPUCTL_WORLD_SIZE"]), int(os.environ["TPUCTL_RANK"])
jax.distributed.initialize(os.environ["TPUCTL_COORDINATOR"], size, rank)
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
batch = jax.make_array_from_process_local_data(sharding, np.ones((4, 8), np.float32))
print(float(jax.jit(lambda batch: (jnp.sin(batch) @ batch.T).sum())(batch)))
"""
RUN = ("run", "--on", "big", "--env", "train", "--no-checkpoint", "--max-failures", "0")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    require_index()
    with open_session() as opened:
        (opened.work / "envs").mkdir()
        (opened.work / "envs" / "train.yaml").write_text(FILE)
        (opened.work / "train.py").write_text(TRAIN)
        opened.environ["TPUCTL_WHEELHOUSE"] = "gs://sim-bucket/wheels"
        opened.type("env", "lock", "train", "--no-python", within_s=INSTALL_S)
        opened.type("up", "v4-16", "big", "--spot", "--pay", "--env", "train", within_s=INSTALL_S)
        yield opened


def compiled(session: Session) -> dict[str, str]:
    """The programs in the bucket, with their generations."""
    at = f"{session.storage()}/storage/v1/b/sim-bucket/o?prefix=compiled/"
    with urllib.request.urlopen(at, timeout=60) as answer:
        return {item["name"]: item["generation"] for item in json.load(answer).get("items", [])}


def test_what_worker_0_compiled_is_in_the_bucket_for_the_next_run(session: Session) -> None:
    said, kept = [], []
    for name in ("first", "second"):
        session.type(*RUN, "--name", name, "train.py", within_s=INSTALL_S)
        hosts = session.json("manifest", name)["attempts"][-1]["hosts"]
        said.append([row["compile_cache"] for row in hosts if row["worker"] == "0"])
        kept.append(compiled(session))
    assert said == [["cold: 0 of 1 programs loaded"], ["warm: 1 of 1 programs loaded"]]
    # Worker 1 wrote nothing: on the CPU its program would have another name.
    assert len(kept[0]) == 1
    assert kept[0] == kept[1]
    key = hosts[0]["environment_key"]
    assert next(iter(kept[0])).startswith(f"compiled/{key}-v4-16-")


AGAIN = """\
import os, time
exec(open("train.py").read())
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.2)
"""


def test_it_is_there_for_the_hosts_that_come_after_a_preemption(session: Session) -> None:
    go = session.root / "go"
    (session.work / "again.py").write_text(AGAIN)
    session.type(*RUN, "--name", "lost", "--detach", "--var", f"GO={go}", "again.py", within_s=INSTALL_S)

    def stands(attempt: int, state: str) -> bool:
        row = next(row for row in session.json("runs") if row["id"] == "lost")
        return (row["attempts"], row["state"]) == (attempt, state)

    session.watch_until(lambda: stands(1, "running"), within_s=INSTALL_S)
    session.type("sim", "preempt", "big-1")
    session.watch_until(lambda: stands(2, "running"), within_s=INSTALL_S)
    go.touch()
    session.watch_until(lambda: stands(2, "succeeded"), within_s=INSTALL_S)
    found = session.json("manifest", "lost")["attempts"]
    assert [attempt["cause"] for attempt in found] == ["preempted", "succeeded"]
    said = [row["compile_cache"] for row in found[-1]["hosts"] if row["worker"] == "0"]
    assert said == ["warm: 1 of 1 programs loaded"]


def process_of(session: Session, worker: int) -> int | None:
    """The program of a smoke test on that worker; hosts of the process tier are processes of this machine."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            said = (folder / "environ").read_bytes()
            mine = f"TPUCTL_RANK={worker}".encode() in said.split(b"\0") and bytes(session.root) in said
            if mine and b"tpuctl-smoke-step" in (folder / "cmdline").read_bytes():
                return int(folder.name)
    return None


@contextmanager
def disturbed(work: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()


def smoke(session: Session, limit: str) -> dict[int, str]:
    told = session.type("smoke", "big", "--limit", limit, "--json", status=3, within_s=INSTALL_S).stdout
    rows: list[dict[str, Any]] = json.loads(told)["error"]["details"]["workers"]
    return {row["worker"]: row["finding"] for row in rows}


def test_a_slice_that_is_well_passes(session: Session) -> None:
    rows = session.json("smoke", "big", "--limit", "300")
    assert [(row["worker"], row["backend"], row["finding"]) for row in rows] == [
        (0, "cpu", "ok"),
        (1, "cpu", "ok"),
    ]


def test_a_host_for_which_the_other_waits_is_named(session: Session) -> None:
    def stop() -> None:
        while (pid := process_of(session, 1)) is None:
            time.sleep(0.02)
        os.kill(pid, signal.SIGSTOP)

    with disturbed(stop):
        assert smoke(session, "60") == {0: "waits for worker 1", 1: "did not finish"}
