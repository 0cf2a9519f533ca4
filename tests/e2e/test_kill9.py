"""A real kill -9 of the real command line at a change, then the same command again, or a pass."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.support.hosts import shared_folder
from tests.support.session import REAL_PACE, Session, open_session
from tests.support.soak import soak

PROGRAM = """
import os
with open(os.environ["TALLY"], "a") as tally:
    tally.write(os.environ["TPUCTL_RANK"] + "-" + os.environ["TPUCTL_ATTEMPT"] + "\\n")
"""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session(*REAL_PACE) as session:
        (session.work / "main.py").write_text(PROGRAM)
        yield session


UP = ("up", "v4-16", "NAME", "--spot", "--pay", "--zone", "us-central2-b")
RUN = ("run", "main.py", "--on", "NAME", "--no-checkpoint", "--var", "TALLY=FILE")
DOWN = ("down", "NAME", "--yes")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "at", "when"),
    [
        ("up", 3, "before"),
        soak("up", 5, "after"),
        soak("up", 6, "before"),
        soak("up", 9, "after"),
        soak("run", 4, "after"),
        ("run", 9, "before"),
        soak("run", 14, "after"),
        soak("run", 18, "before"),
        ("down", 2, "after"),
        soak("down", 5, "before"),
        soak("down", 6, "after"),
    ],
)
def test_the_same_command_after_a_kill_converges_and_leaves_nothing(session, tmp_path, command, at, when):
    name, tally = f"{command}-{at}-{when}", shared_folder(tmp_path / "shared") / "tally"
    for words in (UP, RUN, DOWN):
        typed = [word.replace("NAME", name).replace("FILE", str(tally)) for word in words]
        if typed[0] == command:
            killed = session.type_killed(at, when, *typed)
            assert killed.returncode == -signal.SIGKILL, killed.stderr
        session.type(*typed)
    rows = session.json("ls")
    assert [row for row in rows if row["name"].startswith(name)] == []
    assert sorted(tally.read_text().split()) == ["0-1", "1-1"]
    creates = [entry for entry in session.sim_journal() if entry["method"].endswith(".create")]
    ours = [e for e in creates if f"/{name}-" in e["resource"] and e["status"] == "OK"]
    assert len(ours) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "when"), [soak(1, "after"), (3, "after"), *(soak(at, "after") for at in (6, 8, 10))]
)
def test_the_pass_after_a_killed_one_goes_on_and_creates_nothing_twice(
    session: Session, at: int, when: str
) -> None:
    name = f"k-{at}-{when}"
    session.type("up", "v4-8", name, "--spot", "--pay", "--zone", "us-central2-b")
    session.type("sim", "preempt", f"{name}-1")
    killed = 0
    for _ in range(20):
        done = session.type_killed(at, when, "watch", "once", "--every", "1")
        killed += done.returncode == -signal.SIGKILL
        if killed:
            break
    assert killed

    def back() -> bool:
        facts = session.json("status", name)
        return (facts["node"], facts["state"]) == (f"{name}-2", "ready")

    session.watch_until(back, "--every", "1")
    creates = [entry for entry in session.sim_journal() if entry["method"].endswith(".create")]
    assert len([e for e in creates if f"/{name}-2" in e["resource"] and e["status"] == "OK"]) == 1
    assert session.json("watch", "status")["health"] == "good"
    session.type("down", name, "--yes")
