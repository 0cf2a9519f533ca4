"""Traces of runs on two hosts whose programs do nothing for it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.frameworks import write_jax
from tests.support.session import Session, open_training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TRAIN = """\
import os, time, jax
jax.device_count()
for n in range(6000):
    if os.path.exists(os.environ.get("END", "/nowhere")): break
    time.sleep(0.1)
"""
RUN = ("run", "--on", "big", "--no-checkpoint", "--max-failures", "0", "--grace", "1", "--detach")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_training(TRAIN) as opened:
        write_jax(opened.work)
        yield opened


def start(session: Session, name: str, *words: str, processes: int = 2) -> None:
    """Until all processes have taken their devices."""
    session.type(*RUN, "--name", name, *words)
    said = (session.root / "state").rglob
    until(
        lambda: sum('"backend"' in path.read_text() for path in said(f"runs/{name}/1/join/*.json")) == processes
    )


def on_hosts(session: Session, name: str) -> list[Path]:
    """What hosts have of traces of a run."""
    return [path for path in (session.root / "state").rglob(f"runs/{name}/1/traces/*") if any(path.iterdir())]


def until(found: Callable[[], Any]) -> Any:
    end = time.monotonic() + 60
    while not (seen := found()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return seen


def test_traces_of_all_hosts_become_one_session_and_nothing_stays_there(session: Session) -> None:
    start(session, "well", "train.py")
    said = session.json("trace", "well", "--seconds", "0.5")
    folder = session.work / "traces" / "well" / "plugins" / "profile" / said["session"]
    assert sorted(path.name for path in folder.iterdir()) == ["big-0.xplane.pb", "big-1.xplane.pb"]
    assert {path.read_text() for path in folder.iterdir()} == {"traced 0.5 s, python 0"}
    assert [row["trouble"] for row in said["workers"]] == ["", ""]
    assert said["spread_seconds"] < 1
    assert on_hosts(session, "well") == []
    told = session.type("trace", "well", "--seconds", "0.2", "--worker", "1", "--to", "one", "--python").stderr
    assert "1 of 1 worker traced" in told
    assert "xprof --logdir one" in told
    [only] = (session.work / "one").rglob("*.xplane.pb")
    assert (only.name, only.read_text()) == ("big-1.xplane.pb", "traced 0.2 s, python 1")
    session.type("stop", "well", "--yes")


def test_one_trace_at_a_time_and_who_is_interrupted_leaves_nothing(session: Session) -> None:
    start(session, "twice", "train.py")
    first = session.start("trace", "twice", "--seconds", "300")
    until(lambda: on_hosts(session, "twice"))
    refused = session.type("trace", "twice", status=6).stderr
    assert "worker 0-1: a trace of it is under way" in refused
    os.kill(first.pid, signal.SIGINT)
    done = session.finish(first)
    assert done.returncode == 130, done.stderr
    assert "hosts stop by themselves" in done.stderr
    until(lambda: not on_hosts(session, "twice"))
    [join, _] = (session.root / "state").rglob("runs/twice/1/join")
    os.mkfifo(join / "9999999.trace")
    theirs = join.parent / "traces" / "theirs"
    theirs.mkdir()
    theirs.chmod(0o777)
    # By a profiler server that nobody looks at, and one that is being fetched since long ago.
    for at, processes, looked in ((time.time(), [], 0.0), (0.0, [1], time.time())):
        (theirs / "1.json").write_text('{"pid": 1, "state": "done"}')
        (theirs / "request.json").write_text(json.dumps({"at": at, "seconds": 60.0, "processes": processes}))
        os.utime(theirs, (looked, looked))
        assert ": a trace of it is under way" in session.type("trace", "twice", status=6).stderr
    long_ago = time.time() - 91
    os.utime(theirs, (long_ago, long_ago))
    session.type("trace", "twice", "--seconds", "0.2")
    assert not theirs.exists()
    assert not (join / "9999999.trace").exists()
    session.type("stop", "twice", "--yes")


def test_what_a_killed_command_left_under_way_is_ended_by_the_next(session: Session) -> None:
    start(session, "killed", "train.py")
    first = session.start("trace", "killed", "--seconds", "300")
    said = (session.root / "state").rglob
    pattern = "runs/killed/1/traces/*/[0-9]*.json"
    until(lambda: [json.loads(path.read_text())["state"] for path in said(pattern)] == ["tracing"] * 2)
    first.kill()
    session.finish(first)
    assert ": a trace of it is under way" in session.type("trace", "killed", status=6).stderr
    left = on_hosts(session, "killed")
    for folder in left:
        os.utime(folder, (0, time.time() - 91))
    told = session.type("trace", "killed", "--seconds", "0.2").stderr
    assert "2 of 2 workers traced" in told
    until(lambda: not any(folder.exists() for folder in left))
    session.type("stop", "killed", "--yes")


def test_what_a_run_that_ends_meanwhile_did_until_then_is_there(session: Session) -> None:
    end = session.root / "end"
    start(session, "ends", "--var", f"END={end}", "train.py")
    tracing = session.start("trace", "ends", "--seconds", "300")
    said = (session.root / "state").rglob
    pattern = "runs/ends/1/traces/*/[0-9]*.json"
    until(lambda: [json.loads(path.read_text())["state"] for path in said(pattern)] == ["tracing"] * 2)
    end.touch()
    done = session.finish(tracing)
    assert done.returncode == 0
    assert ": cut off after " in " ".join(done.stderr.split())
    assert "the program ended" in done.stderr
    assert len(list((session.work / "traces" / "ends").rglob("*.xplane.pb"))) == 2
    # Nobody has followed it.
    ended = "its program has ended (exit 0) on worker 0-1: `tpuctl attach ends` takes note"
    assert ended in " ".join(session.type("stacks", "ends").stderr.split())
    refused = " ".join(session.type("trace", "ends", status=5).stderr.split())
    assert "run ends: its program has ended on worker 0-1" in refused
    assert "tpuctl attach ends" in refused
    session.watch_until(lambda: session.json("runs")[0]["state"] == "succeeded")
    assert "run ends runs nowhere: it is succeeded" in session.type("trace", "ends", status=5).stderr


def test_what_cannot_be_traced_is_said(session: Session) -> None:
    session.type(*RUN, "--name", "other", "--", "sleep", "600")
    told = " ".join(session.type("trace", "other", "--seconds", "0.2", status=1).stderr.split())
    assert "big[0-1]: none of its processes can be traced" in told
    assert "--port names one" in told
    assert "tpuctl status other" in told
    session.type("stop", "other", "--yes")


def test_each_process_of_a_host_has_a_trace(session: Session) -> None:
    start(session, "chips", "--per", "chip", "train.py", processes=8)
    said = session.json("trace", "chips", "--seconds", "0.2", "--worker", "1")
    names = [Path(path).name for path in said["files"]]
    assert names == [f"big-1.{process}.xplane.pb" for process in range(4)]
    assert [row["processes"] for row in said["workers"]] == [4]
    session.type("stop", "chips", "--yes")


def test_the_viewer_is_started_where_there_is_one(session: Session) -> None:
    start(session, "shown", "train.py")
    refused = session.type("trace", "shown", "--open", status=5).stderr
    assert "pip install xprof, or leave --open out" in " ".join(refused.split())
    programs = session.root / "bin"
    programs.mkdir()
    (programs / "xprof").write_text('#!/bin/sh\necho "xprof $*"\n')
    (programs / "xprof").chmod(0o755)
    session.environ["PATH"] = f"{programs}{os.pathsep}{session.environ['PATH']}"
    assert session.type("trace", "shown", "--seconds", "2", "--open").stdout == "xprof --logdir traces/shown\n"
    session.type("stop", "shown", "--yes")


def test_more_than_a_host_may_send_stays_there(session: Session) -> None:
    start(session, "large", "--var", f"FAKE_TRACE={3 << 20}", "train.py")
    told = session.type("trace", "large", "--seconds", "0.2", "--max-size", "2", status=1).stderr
    assert "a trace of 3 MiB is not fetched (limit 2 MiB: --max-size 4" in " ".join(told.split())
    assert on_hosts(session, "large") == []
    session.type("stop", "large", "--yes")


def test_a_program_goes_on_where_there_is_no_room_for_its_trace(session: Session) -> None:
    """Before it is taken, and while it is written: then the kernel lets the program write one MiB at most."""
    limited = ("sh", "-c", "ulimit -f 2048; exec python3 train.py")
    start(session, "full", "--var", f"FAKE_TRACE={3 << 20}", "--", *limited)
    told = session.type("trace", "full", "--seconds", "0.2", "--max-size", str(1 << 40), status=1).stderr
    assert "MiB of its disk are free, a trace may need 1099511627776" in " ".join(told.split())
    told = session.type("trace", "full", "--seconds", "0.2", status=1).stderr
    assert "big[0-1]: [Errno 27] File too large" in " ".join(told.split())
    assert on_hosts(session, "full") == []
    assert session.json("status", "full")["state"] == "running"
    session.type("stop", "full", "--yes")
