"""`watch install` really fires: a preempted slice and its run come back with no terminal attached."""

from __future__ import annotations

import subprocess
import time

import pytest

from tests.support.cron import real_cron
from tests.support.hosts import shared_folder
from tests.support.session import Session, open_session

PROGRAM = """
import os, sys, time
rank, attempt = os.environ["TPUCTL_RANK"], os.environ["TPUCTL_ATTEMPT"]
with open(os.environ["TALLY"], "a") as tally:
    tally.write(rank + "-" + attempt + "\\n")
while attempt == "1":
    time.sleep(0.5)
"""
CRON_MINUTES = 5
"""Cron looks once a minute; on a busy machine recovery may take a few looks."""


def run_row(session: Session) -> dict[str, object]:
    return next(row for row in session.json("runs") if row["id"] == "night")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(60 * (CRON_MINUTES + 2))
def test_cron_brings_a_preempted_slice_and_its_run_back_with_no_terminal() -> None:
    with open_session() as session, real_cron():
        tally = shared_folder(session.root / "shared") / "tally"
        (session.work / "train.py").write_text(PROGRAM)
        session.type("up", "v4-16", "big", "--spot", "--pay", "--zone", "us-central2-b")
        words = ("--on", "big", "--detach", "--no-checkpoint", "--name", "night", "--var", f"TALLY={tally}")
        session.type("run", "train.py", *words)
        session.type("watch", "install", "--yes")
        session.type("sim", "preempt", "big-1")
        deadline = time.monotonic() + 60 * CRON_MINUTES
        while run_row(session)["state"] != "succeeded":
            assert time.monotonic() < deadline, session.type("why", "night").stdout
            time.sleep(2)
        assert sorted(tally.read_text().split()) == ["0-1", "0-2", "1-1", "1-2"]
        assert run_row(session)["preemptions"] == 1
        assert session.json("status", "big")["node"] == "big-2"
        status = session.json("watch", "status")
        assert status["health"] == "good"
        assert status["watchdogs"][0]["interval_s"] == 60.0
        session.type("watch", "uninstall")
        left = subprocess.run(["crontab", "-l"], capture_output=True, text=True).stdout
        assert str(session.root) not in left
        # Cron may have started a pass just before: let it end, so that it does not outlive the simulator.
        while session.finish(session.start("watch", "once")).stderr.count("another pass"):
            assert time.monotonic() < deadline
            time.sleep(0.2)
