"""`watch install --systemd` really fires: the timer of a real user instance finds a preempted slice."""

from __future__ import annotations

import re
import subprocess
import time

import pytest

from tests.support.session import Session, open_session
from tests.support.user_systemd import user_systemd

TIMEOUT_S = 240.0
"""The first pass comes after 30 s, then one a minute: the test sees one, and when the next is due."""


def next_fire(session: Session) -> str:
    """When the timer is due, as systemd says. Shortly before, there may be two reasons for its first time."""
    command = ["systemctl", "--user", "list-timers", "tpuctl*"]
    return subprocess.run(command, env=session.environ, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 180)
def test_a_timer_finds_a_preempted_slice_with_no_terminal_and_is_due_again() -> None:
    with open_session() as session, user_systemd(session.environ) as found:
        session.environ |= found
        session.type("up", "v4-8", "big", "--spot", "--pay", "--zone", "us-central2-b")
        session.type("watch", "install", "--systemd", "--yes")
        again = session.type("watch", "install", "--systemd", "--yes")
        assert "nothing to change" in again.stderr
        session.type("sim", "preempt", "big-1")
        deadline = time.monotonic() + TIMEOUT_S
        while session.json("ls")[0]["state"] == "ready" or session.json("watch", "status")["health"] != "good":
            assert time.monotonic() < deadline, session.type("why", "big").stdout
            time.sleep(2)
        while re.search(r"\b[1-9]\ds left", next_fire(session)) is None:
            assert time.monotonic() < deadline, next_fire(session)
            time.sleep(2)
        status = session.json("watch", "status")
        assert status["watchdogs"][0]["interval_s"] == 60.0
        session.type("watch", "uninstall")
        assert list((session.root / ".config" / "systemd" / "user").rglob("*tpuctl*")) == []
        # The timer may have started a pass just before: let it end, so that it does not outlive the simulator.
        while session.finish(session.start("watch", "once")).stderr.count("another pass"):
            assert time.monotonic() < deadline
            time.sleep(0.2)
