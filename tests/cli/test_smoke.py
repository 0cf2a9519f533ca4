"""`tpuctl smoke`, with a small library in the place of JAX: real ones are not slow on request."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.session import Session, open_session
from tests.support.wheels import Project

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

JAX = """\
import os, time, types
rank = int(os.environ.get("TPUCTL_RANK", "0"))
class Matrix:
    shape = ()
    def __init__(self, size=1): self.size = size
    def __matmul__(self, other): return self
    def block_until_ready(self):
        time.sleep({product})
def jit(work): return work
def device_put(matrix, device): return matrix
def local_devices(): return [0]
def default_backend(): return "cpu"
distributed = types.SimpleNamespace(initialize=lambda *_: {join})
"""
NUMPY = (
    "from jax import Matrix\ndef ones(shape): return Matrix()\ndef array(items): return Matrix(len(items))\n"
)
GATHER = "import os\nfrom jax import Matrix\n"
GATHER += "def process_allgather(one): return Matrix(int(os.environ['TPUCTL_WORLD_SIZE']))\n"


def library(*, product: str = "0", join: str = "None", gather: str = GATHER) -> dict[str, str]:
    return {
        "jax/__init__.py": JAX.format(product=product, join=join),
        "jax/numpy.py": NUMPY,
        "jax/experimental/__init__.py": "",
        "jax/experimental/multihost_utils.py": gather,
    }


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as opened:
        project = Project(opened.work)
        project.add("well", {"jax": "1.0"}, "imports: [jax]", library())
        trouble = library(product="1.0 if rank == 2 else 0", join="time.sleep(600 if rank == 1 else 0)")
        project.add("sick", {"jax": "2.0"}, "imports: [jax]", trouble)
        gives_up = (
            "import time\ndef process_allgather(one):\n    time.sleep(4)\n    raise RuntimeError('gloo')\n"
        )
        project.add(
            "late", {"jax": "3.0"}, "imports: [jax]", library(product="0.5 if rank else 0", gather=gives_up)
        )
        project.add("bare", {"other": "1.0"}, "imports: [other]")
        opened.type("up", "v4-16", "big", "--spot", "--pay")
        yield opened


def test_a_slice_that_is_well_is_shown_worker_by_worker(session: Session) -> None:
    rows = session.json("smoke", "big", "--env", "well")
    assert [(row["worker"], row["backend"], row["finding"]) for row in rows] == [
        (worker, "cpu", "ok") for worker in range(2)
    ]
    assert "FINDING" in session.type("smoke", "big", "--env", "well").stdout


def test_a_worker_that_hangs_and_one_that_is_slow_are_named_and_nothing_goes_on(session: Session) -> None:
    session.type("up", "v4-32", "four", "--spot", "--pay")
    failed = session.type("smoke", "four", "--env", "sick", "--limit", "8", "--json", status=3)
    rows = {row["worker"]: row for row in json.loads(failed.stdout)["error"]["details"]["workers"]}
    assert rows[1]["finding"] == "did not finish"
    assert rows[2]["finding"].startswith("is slow: ")
    assert rows[0]["finding"] == rows[3]["finding"] == "ok"
    assert all(run["state"] != "running" for run in session.json("runs"))


def test_a_slow_worker_is_named_where_the_others_give_up_waiting_for_it(session: Session) -> None:
    failed = session.type("smoke", "big", "--env", "late", "--json", status=3)
    first, second = json.loads(failed.stdout)["error"]["details"]["workers"]
    assert first["finding"] == "waits for worker 1"
    assert second["finding"].startswith("is slow: 0.5")


def test_a_run_begins_once_every_chip_works(session: Session) -> None:
    said = session.type("run", "--smoke", "--on", "big", "--env", "well", "--no-checkpoint", "--", "echo", "up")
    assert "every chip of 2 workers works" in said.stderr
    assert said.stdout.count("up") == 1
    assert "tpuctl-smoke" not in said.stdout


def test_a_run_does_not_begin_where_one_fails(session: Session) -> None:
    before = {run["id"] for run in session.json("runs")}
    words = ("run", "--smoke", "--on", "big", "--env", "bare", "--no-checkpoint", "--", "echo", "up")
    told = session.type(*words, status=3)
    assert "2 of 2 workers of big failed" in told.stderr
    assert "up" not in told.stdout
    begun = {run["id"] for run in session.json("runs")} - before
    assert [each.startswith("smoke-") for each in begun] == [True]
    session.type("run", "--smoke", "--up", "v4-8", "--spot", "--pay", "--", "true", status=2)


def test_without_jax_every_worker_says_why(session: Session) -> None:
    told = session.type("smoke", "big", "--env", "bare", status=3).stderr
    assert "2 of 2 workers of big failed: worker 0 did not finish: ModuleNotFoundError" in told
    assert "tpuctl logs smoke-" in told


def test_bad_input_starts_nothing(session: Session) -> None:
    before = len(session.json("runs"))
    session.type("smoke", "nobody", status=5)
    session.type("smoke", "big", "--env", "nothing", status=5)
    session.type("smoke", "big", "--limit", "0", status=2)
    assert "would test 2 workers of big" in session.type("smoke", "big", "--dry-run").stdout
    told = session.json("smoke", "big", "--dry-run")
    assert (told["dry_run"], told["slice"], told["workers"]) == (True, "big", 2)
    assert len(session.json("runs")) == before
