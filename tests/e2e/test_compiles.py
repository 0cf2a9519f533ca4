"""A real JAX on two simulated hosts, whose program compiles again: what is said of it, and how often."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.support.jax_python import flax_packages
from tests.support.session import Session, open_training

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(300)]

TRAIN = """\
import os, time, jax, jax.numpy as jnp
@jax.jit
def train_step(w, batch): return w @ batch
w = jnp.ones((8, 8))
worker = int(os.environ["TPUCTL_RANK"])
sizes = [4, 4, 4, 5, 7, 6, 4] if worker == 0 else [4] * 7
for step, size in enumerate(sizes):
    train_step(w, jnp.ones((8, size))).block_until_ready()
    print(f"step {step + 100} of 200", flush=True)
    time.sleep(2.0)
"""
STEP = r"step (\d+) of (\d+)"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_training(TRAIN) as opened:
        yield opened


def test_a_function_that_compiles_again_is_told_once_with_its_shapes(session: Session) -> None:
    given = ("--var", f"PYTHONPATH={flax_packages()}", "--var", "JAX_PLATFORMS=cpu", "--progress", STEP)
    words = (
        "run",
        "--on",
        "big",
        "--no-checkpoint",
        "--name",
        "again",
        *given,
        "--",
        sys.executable,
        "train.py",
    )
    done = session.type(*words, within_s=200.0)
    told = " ".join(done.stderr.split())
    assert told.count("train_step (train.py:2) compiled again at step 102 on worker 0: (8,5)") == 1
    attempt = session.json("status", "again")["attempt"]
    assert attempt["compiled"].startswith("1 function")
    why = [row["reason"] for row in session.json("why", "again") if row["action"] == "recompiled"]
    assert len(why) == 1
    rows = session.json("manifest", "again")["attempts"][-1]["hosts"]
    said = {row["worker"]: row.get("compiled_again") for row in rows}
    assert said == {
        "0": "train_step (train.py:2) compiled 3 times since step 102: (8,5), (8,7), (8,6)",
        "1": None,
    }
