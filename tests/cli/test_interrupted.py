"""Ctrl-C: one line about what goes on in the cloud and how to come back, and exit status 130."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer

from tests.support.hosts import shared_folder
from tests.support.session import Session, open_session
from tpuctl.cli.context import AppContext
from tpuctl.cli.errors import guarded
from tpuctl.cli.invocation import Invocation

CTRL_C_AT = """\
import os, signal, sys

class AtImport:
    def find_spec(self, name, path=None, target=None):
        if name == where:
            os.kill(os.getpid(), signal.SIGINT)

where = sys.argv.pop(1)
sys.meta_path.insert(0, AtImport())
from tpuctl.cli.main import main
main()
"""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A cloud in which things take their time; one slice is ready."""
    with open_session("--speed", "40") as session:
        session.type("up", "v4-8", "there", "--spot", "--pay", "--direct")
        yield session


def interrupt(session: Session, ready: Callable[[], bool], *words: str) -> subprocess.CompletedProcess[str]:
    """Types a command and Ctrl-C as soon as it is at work."""
    process = session.start(*words)
    deadline = time.monotonic() + 60
    while not ready() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    return session.finish(process)


def calls(session: Session, method: str, name: str) -> int:
    return sum(
        entry["method"] == method and entry["resource"].endswith(f"/{name}") for entry in session.sim_journal()
    )


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 130, done.stderr
    assert "error" not in done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "module",
    ["tpuctl.cli.app", "typer", "tpuctl.cli.invocation", "tpuctl.cli.commands.config", "tpuctl.config.load"],
)
def test_a_command_that_python_still_imports_ends_with_one_line(module: str) -> None:
    words = [sys.executable, "-c", CTRL_C_AT, module, "config", "show"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (130, "interrupted\n", "")


def test_a_background_job_of_a_shell_does_not_hear_ctrl_c_while_it_starts() -> None:
    ignoring = f"trap '' INT; exec {sys.executable} -c \"$0\" typer --version"
    done = subprocess.run(
        ["sh", "-c", ignoring, CTRL_C_AT], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("tpuctl ")


@pytest.mark.parametrize("left_behind", [RuntimeError("release unlocked lock"), KeyboardInterrupt()])
def test_what_goes_on_is_said_though_closing_fails_after_ctrl_c(
    left_behind: BaseException,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TPUCTL_STATE_DIR", str(tmp_path))

    def work() -> None:
        try:
            with AppContext(Invocation()).interruptible("run long goes on"):
                raise KeyboardInterrupt
        finally:
            raise left_behind

    with pytest.raises(typer.Exit) as ended:
        guarded(Invocation(), work)
    assert ended.value.exit_code == 130
    assert capsys.readouterr().err == "interrupted; run long goes on\n"


def test_up_says_what_is_still_wanted_and_down_what_goes_on(session: Session) -> None:
    def called(method: str) -> Callable[[], bool]:
        return lambda: calls(session, method, "big-1") > 0

    line = last_line(
        interrupt(session, called("nodes.create"), "up", "v4-8", "big", "--spot", "--pay", "--direct")
    )
    assert line == (
        "interrupted; slice big is still wanted and may cost money: `tpuctl up big` waits on, "
        "`tpuctl down big` gives it up"
    )
    session.type("up", "big", "--pay")
    line = last_line(interrupt(session, called("nodes.delete"), "down", "big", "--yes"))
    assert line == (
        "interrupted; what is being deleted goes on: `tpuctl down big --yes` waits for it and does the rest"
    )
    session.type("down", "big", "--yes")


def test_a_run_goes_on_and_a_command_ends_with_its_client(session: Session) -> None:
    started = shared_folder(session.root / "marks") / "started"
    script = f"echo > {started}; exec sleep 600"
    line = last_line(interrupt(session, started.exists, "exec", "there", "--", "sh", "-c", script))
    assert line == "interrupted; what it started on the workers ends with it; the slice is as it was"
    started.unlink()
    words = ("run", "--on", "there", "--name", "long", "--no-checkpoint", "--", "sh", "-c", script)
    line = last_line(interrupt(session, started.exists, *words))
    assert line == "interrupted; run long goes on: `tpuctl attach long` follows it, `tpuctl stop long` ends it"
    assert session.json("runs")[0]["state"] in ("running", "preparing")
    session.type("stop", "long", "--yes", "--grace", "0")


def test_run_gives_up_following_when_its_time_is_up_and_the_run_goes_on(session: Session) -> None:
    words = (
        "run",
        "--on",
        "there",
        "--no-checkpoint",
        "--name",
        "patient",
        "--timeout",
        "4s",
        "--",
        "sleep",
        "600",
    )
    assert "out of time" in session.type(*words, status=8).stderr
    assert next(run["state"] for run in session.json("runs") if run["id"] == "patient") == "running"
    session.type("stop", "patient", "--yes")
