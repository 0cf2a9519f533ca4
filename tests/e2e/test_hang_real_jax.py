"""A real JAX on four hosts, of which one keeps the others: named with what it does, by whoever looks."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import pytest

from tests.support.jax_python import VARIABLES, flax_packages
from tests.support.proc import programs_of
from tests.support.session import NAMED_WITHIN_S, Session, open_session
from tpuctl.lib.time import parse_timestamp

pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(900)]

TRAIN = """\
import os, sys, time
import jax, jax.numpy as jnp, numpy as np
from flax.training.prefetch_iterator import PrefetchIterator
from jax.sharding import Mesh, NamedSharding, PartitionSpec
size, rank = int(os.environ["TPUCTL_WORLD_SIZE"]), int(os.environ["TPUCTL_RANK"])
fault = sys.argv[1] if rank == 2 else ""
jax.distributed.initialize(os.environ["TPUCTL_COORDINATOR"], size, rank)
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
@jax.jit
def train_step(batch):
    return (jnp.sin(batch) @ batch.T).sum()
@jax.jit
def grown(x):
    for _ in range(10_000):
        x = jnp.sin(x) @ x
    return x
def shards():
    for step in range(100):
        if fault == "data" and step == 4:
            time.sleep(600)
        yield np.ones((4, 8), np.float32)
def evaluate():
    from orbax.checkpoint.multihost import get_barrier_sync_fn
    get_barrier_sync_fn()(key="evaluated", timeout_ms=600_000)
batches = PrefetchIterator(shards(), 1)
for step in range(100):
    batch = jax.make_array_from_process_local_data(sharding, next(batches))
    if step == 3 and fault == "compile":
        grown(jnp.ones((8, 8)))
    if step == 3 and fault == "collective":
        evaluate()
    print("step", step, float(train_step(batch)), flush=True)
    time.sleep(0.3)
"""
LIMIT_S = 10
STEP = r"step (\d+)"
RUN = ("run", "--on", "big", "--no-checkpoint", "--grace", "1", "--max-failures", "0", *VARIABLES)
LOADS = "    batch = jax.make_array_from_process_local_data(sharding, next(batches))"
MEETS = '    get_barrier_sync_fn()(key="evaluated", timeout_ms=600_000)'
STEPS = '    print("step", step, float(train_step(batch)), flush=True)'


def at(line: str) -> str:
    return f"train.py:{TRAIN.splitlines().index(line) + 1}"


SAID = {
    "data": f"worker 2: loading data ({at(LOADS)}); the others wait for it",
    "compile": "worker 2: compiling (train.py:",
    "collective": f"worker 2: waiting in a collective or barrier ({at(MEETS)} evaluate); "
    f"the others wait at another place: worker 0-1,3: waiting for its devices ({at(STEPS)})",
}


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    packages = flax_packages()
    with open_session() as opened:
        (opened.work / "train.py").write_text(TRAIN)
        opened.environ["PACKAGES"] = str(packages)
        opened.type("up", "v4-32", "big", "--spot", "--pay")
        yield opened


def words(session: Session, name: str, fault: str, *options: str) -> tuple[str, ...]:
    path = ("--var", f"PYTHONPATH={session.environ['PACKAGES']}")
    return (
        *RUN,
        "--stall",
        f"{LIMIT_S}s",
        "--name",
        name,
        *path,
        *options,
        "--",
        sys.executable,
        "train.py",
        fault,
    )


def told_in_time(session: Session, run: str) -> str:
    """What its journal says of a run that stood still, which is there soon after the limit."""
    row = next(row for row in session.json("why", run) if row["action"] == "stalled")
    [since] = re.findall(r"since (\S+Z)", row["reason"])
    stood_s = (parse_timestamp(row["at"]) or 0.0) - (parse_timestamp(since) or 0.0)
    assert LIMIT_S - 1 <= stood_s <= LIMIT_S + NAMED_WITHIN_S
    return str(row["reason"])


@pytest.mark.parametrize("fault", SAID)
def test_the_one_of_four_that_keeps_the_others_is_named_before_the_restart(
    session: Session, fault: str
) -> None:
    told = session.type(*words(session, fault, fault, "--on-stall", "restart"), status=1, within_s=180)
    assert SAID[fault] in " ".join(told.stderr.split())
    assert SAID[fault] in session.json("manifest", fault)["attempts"][0]["why"]
    assert SAID[fault] in told_in_time(session, fault)
    assert programs_of(fault) == []


def test_passes_say_the_same_and_so_do_status_why_hooks_and_stacks(session: Session) -> None:
    told = session.root / "told"
    folder = session.root / ".config" / "tpuctl"
    folder.mkdir(parents=True, exist_ok=True)
    command = f"[sh, -c, 'cat >> {told}; echo >> {told}']"
    (folder / "config.yaml").write_text(f"hooks: [{{name: page, events: [needs-human], command: {command}}}]\n")
    session.type("watch", "once")
    session.type(*words(session, "told", "data", "--detach"), within_s=300)
    session.watch_until(lambda: told.exists() and SAID["data"] in told.read_text(), within_s=180)
    assert SAID["data"] in told_in_time(session, "told")
    assert SAID["data"] in " ".join(session.type("why", "told").stdout.split())
    assert SAID["data"] in " ".join(session.type("status", "told").stdout.split())
    screen = " ".join(session.type("top", "told", "--once").stdout.split())
    assert f"stands still (`tpuctl stacks told`): {SAID['data']}" in screen
    shown = session.type("stacks", "told")
    assert SAID["data"] in " ".join(shown.stderr.split())
    assert "prefetch_iterator.py" in shown.stdout
    causes = {row["worker"]: row["cause"] for row in session.json("stacks", "told")}
    assert causes == {0: None, 1: None, 2: SAID["data"], 3: None}
    session.type("stop", "told", "--yes")
