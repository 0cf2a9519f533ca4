"""A real JAX on isolated hosts that reach no package index: all of it comes through the wheelhouse in the
bucket, to the hosts of today and to those after a preemption."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.require import require_index, require_isolated_hosts
from tests.support.session import Session, open_session
from tests.support.wheels import MINOR

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

INSTALL_S = 400.0
INDEX = "https://pypi.org/simple/"
PROGRAM = """\
import os

import jax

rank, world = int(os.environ["TPUCTL_RANK"]), int(os.environ["TPUCTL_WORLD_SIZE"])
jax.distributed.initialize(os.environ["TPUCTL_COORDINATOR"], world, rank)

from jax.experimental import multihost_utils

seen = multihost_utils.process_allgather(jax.numpy.array([rank + 1]))
print("sum", int(seen.sum()), "on", jax.process_count())
"""


@pytest.fixture
def session() -> Iterator[Session]:
    require_isolated_hosts()
    require_index()
    with open_session("--instant", "--hosts", "isolated") as opened:
        (opened.work / "sum.py").write_text(PROGRAM)
        yield opened


def trained(session: Session, name: str, hosts: int) -> None:
    words = ("run", "sum.py", "--on", "big", "--no-checkpoint", "--name", name)
    said = session.type(*words, within_s=INSTALL_S).stdout
    assert said.count(f"sum {sum(range(1, hosts + 1))} on {hosts}") >= 1, said


def test_jax_is_installed_run_and_brought_back_without_a_byte_from_the_registry(session: Session) -> None:
    hosts = 8
    session.type("env", "new", "train", "--like", "cpu", "--python", MINOR)
    session.environ["TPUCTL_WHEELHOUSE"] = "gs://sim-bucket/wheels"
    session.type("sim", "fault", "no-internet")
    session.type("up", "v4-64", "big", "--spot", "--pay", "--env", "train", within_s=INSTALL_S)
    curl = f"curl -sS -m 5 {INDEX} >/dev/null 2>&1 || echo cut off"
    reached = json.loads(session.type("exec", "--json", "big", "--", "sh", "-c", curl).stdout)
    said = {row["worker"]: row["stdout"] for row in reached}
    assert said == dict.fromkeys(range(hosts), "cut off\n")
    tested = session.type("smoke", "big", "--limit", "300", "--json", within_s=INSTALL_S)
    rows = json.loads(tested.stdout)
    assert [(row["worker"], row["backend"]) for row in rows] == [(worker, "cpu") for worker in range(hosts)]
    session.type("sim", "preempt", "big-1")
    session.type("up", "big", within_s=INSTALL_S)
    assert (
        f"{hosts} hosts of big are as train says"
        in session.type("env", "verify", "train", "--on", "big").stderr
    )
    trained(session, "second", hosts)
