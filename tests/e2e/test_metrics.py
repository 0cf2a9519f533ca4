"""Numbers of programs on two hosts, by the commands that people type."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

import pytest

from tests.support.session import Session, open_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TRAIN = """\
import os, time
for step in range(1, 2000):
    loss = 9 / step if step < 12 or os.environ["TPUCTL_RANK"] == "0" else float("nan")
    print(f"step {step}/2000 loss {loss}", flush=True)
    time.sleep(0.1)
"""
STEP = r"step (?P<step>\d+)/(?P<steps>\d+) loss (?P<loss>\S+)"
RUN = ("run", "--on", "big", "--no-checkpoint", "--grace", "1", "--progress", STEP, "--on-nan", "stop")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as opened:
        opened.type("up", "v4-16", "big", "--spot", "--pay")
        yield opened


def test_a_run_whose_loss_is_none_ends_with_its_step_named_and_its_numbers_are_kept(session: Session) -> None:
    (session.work / "train.py").write_text(TRAIN)
    done = session.type(*RUN, "--name", "bad", "train.py", status=1)
    said = "loss is nan at step 12 (worker 1)"
    assert said in " ".join(done.stderr.split())
    (row,) = [row for row in session.json("why", "bad") if row["action"] == "not-finite"]
    assert row["reason"] == said
    status = session.json("status", "bad")
    assert (status["state"], status["attempt"]["number"], status["failure"]["signature"]) == (
        "failed",
        1,
        "not-finite",
    )
    assert [each["name"] for each in status["metrics"]] == ["loss", "steps/s"]


def test_a_run_without_numbers_says_how_to_have_some(session: Session) -> None:
    session.type("run", "--on", "big", "--no-checkpoint", "--name", "none", "--", "true")
    assert "has no --progress" in session.type("metrics", "none", status=5).stderr
    assert "exclude each other" in session.type("metrics", "bad", "--csv", "--json", status=2).stdout
    refused = session.type("run", "--on", "big", "--no-checkpoint", "--on-nan", "stop", "--", "true", status=2)
    assert "--progress names none" in refused.stderr


def test_numbers_are_there_when_the_slice_is_gone(session: Session) -> None:
    session.type("down", "big", "--yes")
    shown = session.type("metrics", "bad").stdout
    assert "loss" in shown
    head, *rows = csv.reader(io.StringIO(session.type("metrics", "bad", "--csv").stdout))
    assert head == ["attempt", "worker", "time", "step", "count", "loss", "loss_min", "loss_max"]
    assert [each[3:6] for each in rows[:2]] == [["1", "1", "9.0"], ["2", "1", "4.5"]]
    assert len(rows) >= 12
    assert session.json("metrics", "bad")[0]["values"] == {"loss": {"mean": 9.0, "min": 9.0, "max": 9.0}}
