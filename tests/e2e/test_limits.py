"""`--ttl` and `--stop-when-idle` by every road: flags of `up` and `run --up`, keys of a fleet file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.session import REAL_PACE, Session, open_session

FILE = """
settings: {tier: spot, zone: us-central2-b}
fleet:
  name: limited
  slices:
    short: {accelerator: v4-8, pay: true, LIMITS}
"""
HOW = ("--spot", "--pay", "--zone", "us-central2-b")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session(*REAL_PACE) as session:
        (session.work / "main.py").write_text("print('hello')\n")
        yield session


def limits(session: Session, name: str) -> tuple[bool, float | None]:
    """Whether the slice has an end, and after how many idle seconds it goes."""
    status = session.json("status", name)
    return status["ends"] is not None, status["stop_when_idle_s"]


def apply_limits(session: Session, text: str, *words: str, status: int = 0) -> Any:
    file = FILE.replace(", LIMITS", f", {text}" if text else "")
    (session.work / "tpuctl.yaml").write_text(file)
    return session.type(*(words or ("apply",)), status=status)


def test_a_fleet_file_sets_changes_and_takes_back_limits_in_place(session):
    apply_limits(session, "ttl: 8h")
    assert limits(session, "short") == (True, None)
    ends = session.json("status", "short")["ends"]
    apply_limits(session, "ttl: 8h, stop_when_idle: 30m")
    assert limits(session, "short") == (True, 1800.0)
    assert session.json("status", "short")["ends"] == ends
    before = len(session.sim_journal())
    told = apply_limits(session, "ttl: 9h", "diff", status=10).stdout
    assert "update" in told
    apply_limits(session, "ttl: 9h")
    assert limits(session, "short") == (True, None)
    assert session.json("status", "short")["ends"] > ends
    assert session.type("diff").stdout == ""
    apply_limits(session, "")
    assert limits(session, "short") == (False, None)
    assert session.type("diff").stdout == ""
    assert len(session.sim_journal()) == before
    told = apply_limits(session, "ttl: 5m", "apply", status=2).stderr
    assert "tpuctl.yaml:6:43: fleet.slices.short: ttl: 5m is too short" in told


def test_a_run_with_a_slice_of_its_own_can_limit_it(session):
    words = ("--up", "v4-8", "--on", "own", *HOW, "--keep", "--no-checkpoint")
    assert "--ttl 1m" in session.type("run", "main.py", *words, "--ttl", "1m", status=2).stderr
    assert [row for row in session.json("ls") if row["name"] == "own"] == []
    session.type("run", "main.py", *words, "--ttl", "2h", "--stop-when-idle", "20m")
    assert limits(session, "own") == (True, 1200.0)
    told = session.type("run", "main.py", "--on", "own", "--no-checkpoint", "--ttl", "2h", status=2).stderr
    assert "go with --up" in told


def test_up_by_name_alone_still_takes_limits_and_a_dry_run_tells_them(session):
    session.type("up", "v4-8", "plain", *HOW)
    assert limits(session, "plain") == (False, None)
    session.type("up", "plain", "--ttl", "3h")
    assert limits(session, "plain") == (True, None)
    shown = session.type("up", "v4-8", "never", *HOW, "--ttl", "3h", "--dry-run").stdout
    assert "taken down     after 3h" in shown
