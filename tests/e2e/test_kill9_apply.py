"""A real kill -9 of `apply` at a change, then the same command again."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.support.hosts import shared_folder
from tests.support.session import Session, open_session
from tests.support.soak import long, soak

PROGRAM = """
import os
with open(os.environ["TALLY"], "a") as tally:
    tally.write(os.environ["TPUCTL_RANK"] + "-" + os.environ["TPUCTL_ATTEMPT"] + "\\n")
"""
FILE = """
settings: {tier: spot, zone: us-central2-b}
fleet:
  name: NAME
  slices:
    NAME-a: {accelerator: v4-16, pay: true}
    NAME-b: {accelerator: v4-8, pay: true}
  runs:
    NAME: {on: NAME-a, script: main.py, no_checkpoint: true, var: {TALLY: FILE}}
"""
EMPTY = "fleet: {name: NAME}"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as session:
        (session.work / "main.py").write_text(PROGRAM)
        yield session


APPLY = ("apply",)
REPLACE = ("apply", "--replace", "--yes")
PRUNE = ("apply", "--prune", "--yes")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("killed", "at", "when"),
    [
        soak(APPLY, 3, "before"),
        (APPLY, 6, "after"),
        soak(APPLY, 9, "before"),
        soak(APPLY, 13, "after"),
        soak(APPLY, 18, "before"),
        soak(APPLY, 30, "after"),
        soak(REPLACE, 2, "after"),
        (REPLACE, 5, "before"),
        soak(REPLACE, 8, "after"),
        soak(PRUNE, 2, "after"),
        long(PRUNE, 4, "before"),
        soak(PRUNE, 7, "after"),
    ],
)
def test_the_same_apply_after_a_kill_converges_and_leaks_nothing(session, tmp_path, killed, at, when):
    verb = killed[1][2:] if len(killed) > 1 else "apply"
    name, tally = f"{verb}-{at}-{when}", shared_folder(tmp_path / "shared") / "tally"
    text = FILE.replace("NAME", name).replace("FILE", str(tally))
    larger = text.replace("v4-8", "v4-16")
    for words, content in ((APPLY, text), (REPLACE, larger), (PRUNE, EMPTY.replace("NAME", name))):
        (session.work / "tpuctl.yaml").write_text(content)
        if words == killed:
            done = session.type_killed(at, when, *words)
            assert done.returncode == -signal.SIGKILL, done.stderr
        session.type(*words)
        if words == APPLY:
            (run,) = [row for row in session.json("runs") if row["slice"] == f"{name}-a"]
            session.type("attach", run["id"])
        before = len(session.sim_journal())
        session.type(*words)
        assert len(session.sim_journal()) == before
    assert [row for row in session.json("ls") if row["name"].startswith(name)] == []
    assert sorted(tally.read_text().split()) == ["0-1", "1-1"]
    creates = [entry for entry in session.sim_journal() if entry["method"].endswith(".create")]
    ours = [e["resource"] for e in creates if f"/{name}-" in e["resource"] and e["status"] == "OK"]
    assert sorted(resource.rsplit("/", 1)[1] for resource in ours) == [
        f"{name}-a-1",
        f"{name}-b-1",
        f"{name}-b-2",
    ]
