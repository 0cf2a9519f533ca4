"""What stands on standard input goes to the command of one worker, and is never swallowed without a word."""

from __future__ import annotations

import hashlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.session import TPUCTL, Session, open_session

DATA = bytes(range(256)) * 20_000


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as session:
        session.type("grant", "add", "16", "spot", "v4", "us-central2-b")
        session.type("up", "v4-16", "big", "--spot", "--pay")
        session.type("up", "v4-8", "one", "--spot", "--pay")
        yield session


def pipe(session: Session, data: bytes, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [TPUCTL, "exec", *words],
        cwd=session.work,
        env=session.environ,
        input=data,
        capture_output=True,
        timeout=60,
    )


def shell(session: Session, script: str) -> subprocess.CompletedProcess[str]:
    environ = {**session.environ, "PATH": f"{Path(TPUCTL).parent}:{session.environ['PATH']}"}
    return subprocess.run(
        ["bash", "-c", script],
        cwd=session.work,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("words", [("one",), ("--worker", "1", "big")])
def test_a_pipe_goes_to_the_one_worker_whole(session, words):
    done = pipe(session, DATA, "--group", *words, "--", "sha256sum")
    assert (done.returncode, done.stderr) == (0, b"")
    assert hashlib.sha256(DATA).hexdigest().encode() in done.stdout


def test_a_file_is_unpacked_on_the_one_worker(session):
    done = shell(
        session,
        "mkdir -p d && echo hi > d/f && tar c d > t && tpuctl exec --worker 0 big -- tar x < t; rm -r d t",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert session.type("exec", "--worker", "0", "big", "--", "cat", "d/f").stdout == "big-0 │ hi\n"


def test_input_for_several_workers_is_refused_before_anything_runs(session):
    done = pipe(session, b"hi\n", "big", "--", "touch", "ran")
    assert done.returncode == 2
    assert b"standard input is for one worker, and these are 2" in done.stderr
    assert b"--no-stdin" in done.stderr
    session.type("exec", "big", "--", "sh", "-c", "! test -e ran")


@pytest.mark.parametrize("source", ["< /dev/null", "<&-", "< empty", "< <(:)", "< <(sleep 5)", "-n < full"])
def test_what_gives_nothing_keeps_no_command_from_several_workers(session, source):
    done = shell(session, f": > empty; echo hi > full; tpuctl exec big {source} -- echo ok")
    assert (done.returncode, done.stderr) == (0, "")
    assert "ok" in done.stdout


def test_a_loop_over_a_file_keeps_what_commands_do_not_read(session):
    script = "printf 'a\\nb\\nc\\n' > list; while read x; do tpuctl exec one -- echo $x; done < list"
    done = shell(session, script)
    assert (done.stdout.split(), done.stderr) == (["one-0", "│", "a", "one-0", "│", "b", "one-0", "│", "c"], "")


def test_a_command_in_a_loop_takes_the_lines_that_it_reads(session):
    script = (
        "printf 'a\\nb\\nc\\nd\\n' > list; while read x; do tpuctl exec one -- dd bs=1 count=2; done < list"
    )
    done = shell(session, f"{script} 2>/dev/null")
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["b", "d"]


def test_a_loop_over_a_pipe_is_told_what_is_gone_and_how_to_keep_it(session):
    loop = "printf 'a\\nb\\nc\\n' | while read x; do tpuctl exec {} one -- echo $x; done"
    done = shell(session, loop.format(""))
    assert done.stdout.split()[-1] == "a"
    assert "4 bytes of standard input came, which the command did not read" in " ".join(done.stderr.split())
    assert "--no-stdin" in done.stderr
    kept = shell(session, loop.format("-n"))
    assert (kept.stdout.split()[2::3], kept.stderr) == (["a", "b", "c"], "")


def test_a_command_that_leaves_its_input_early_ends_with_its_own_status(session):
    done = pipe(session, DATA * 4, "one", "--", "sh", "-c", "head -c 3; exit 7")
    assert (done.returncode, done.stdout.endswith(b" \0\1\2\n")) == (7, True)
    done = pipe(session, DATA * 4, "one", "--", "sh", "-c", "exec <&-; sleep 1; echo late")
    assert (done.returncode, done.stdout.split()[-1]) == (0, b"late")


def test_a_source_that_is_silent_holds_no_command_that_ends(session):
    words = [TPUCTL, "exec", "one", "--", "echo", "ok"]
    process = subprocess.Popen(
        words, cwd=session.work, env=session.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.wait(60) == 0


def test_pieces_arrive_as_they_are_written(session):
    process = subprocess.Popen(
        [TPUCTL, "exec", "one", "--", "cat"],
        cwd=session.work,
        env=session.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for word in (b"first\n", b"second\n"):
        process.stdin.write(word)
        process.stdin.flush()
        assert word in process.stdout.readline()
    process.stdin.close()
    assert process.wait(60) == 0


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_a_command_that_is_being_fed_ends_with_its_client(session, end):
    """Nothing takes the input, so the way to the host is full when the client goes."""
    script = "echo $$; exec sleep 300"
    process = subprocess.Popen(
        [TPUCTL, "exec", "one", "--", "sh", "-c", script],
        cwd=session.work,
        env=session.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    pid = int(process.stdout.readline().split()[-1])
    os.set_blocking(process.stdin.fileno(), False)
    while select.select([], [process.stdin], [], 1.0)[1]:
        os.write(process.stdin.fileno(), bytes(1 << 16))
    process.send_signal(end)
    assert process.wait(60) in (130, -signal.SIGKILL)
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, "the command outlived its client"
        time.sleep(0.1)
