"""Answers of hosts: unknown fields are ignored, nonsense is named."""

from __future__ import annotations

import random
import subprocess
import zlib
from pathlib import Path

import pytest

from tpuctl.hosts import log_news, protocol, worker_status
from tpuctl.hosts.commands import EXIT_NOT_INSTALLED, render_agent_command

STATUS = {
    "run": "r",
    "attempt": "1",
    "state": "running",
    "exit_status": None,
    "signal": None,
    "pid": 5,
    "started_at": 1.5,
    "ended_at": None,
    "stopped": False,
    "stdout_bytes": 0,
    "stderr_bytes": 0,
    "boot_id": "b",
    "time": 2,
}


def test_unknown_fields_are_ignored_and_unknown_states_do_not_raise() -> None:
    status = worker_status.WorkerStatus.parse({**STATUS, "state": "hibernating", "colour": "red"}, worker=3)
    assert status.state is protocol.WorkerState.UNKNOWN
    assert (status.worker, status.pid, status.started_at, status.survivors) == (3, 5, 1.5, ())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run", None),
        ("stdout_bytes", "many"),
        ("stdout_bytes", float("inf")),
        ("pid", True),
        ("pid", float("nan")),
        ("time", None),
        ("time", 10**400),
        ("boot_id", 7),
    ],
)
def test_a_field_of_another_kind_is_named(field: str, value: object) -> None:
    with pytest.raises(protocol.MalformedReplyError, match=field):
        worker_status.WorkerStatus.parse({**STATUS, field: value}, worker=0)


@pytest.mark.parametrize(
    "said", [b"", b"\n", b"bash: python3: oops", b"[1, 2]", b'{"half": ', b"[" * 100_000, b'{"a":' * 100_000]
)
def test_what_is_no_answer_is_told_as_such(said: bytes) -> None:
    with pytest.raises(protocol.MalformedReplyError, match="the host answered"):
        protocol.parse_reply(said)


def test_noise_of_a_login_script_does_not_hide_the_answer() -> None:
    assert protocol.parse_reply(b'Welcome to host!\n{"time": 1, "new": "field"}\n')["time"] == 1


def test_a_host_without_the_agent_says_so_by_its_exit_status(tmp_path: Path) -> None:
    command = render_agent_command("hello", "0" * 64)
    done = subprocess.run(["sh", "-c", command], env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
    assert done.returncode == EXIT_NOT_INSTALLED


NEWS = b'{"news": {"stdout": 4, "stderr": 3}, "more": false}\n'


@pytest.mark.parametrize(
    ("answer", "news"),
    [
        (NEWS + b"out\nerr", log_news.LogNews(b"out\n", b"err")),
        (b"welcome to this host! " + NEWS + b"out\nerr", log_news.LogNews(b"out\n", b"err")),
        (NEWS + b"out\ne", log_news.LogNews(b"out\n", b"e", more=True)),
        (NEWS + b"o", log_news.LogNews(b"o", b"", more=True)),
        (NEWS, log_news.LogNews(more=True)),
        (NEWS.replace(b"false", b"true") + b"out\nerr", log_news.LogNews(b"out\n", b"err", more=True)),
    ],
)
def test_news_of_logs_count_as_far_as_they_came(answer: bytes, news: log_news.LogNews) -> None:
    assert log_news.parse_log_news(answer) == news


PACKED = NEWS.replace(b"}, ", b'}, "packed": true, ')
LONG = random.Random(1).randbytes(100_000)


def deflate(content: bytes) -> bytes:
    stream = zlib.compressobj(1, wbits=-zlib.MAX_WBITS)
    return stream.compress(content) + stream.flush()


def test_packed_news_of_logs_count_as_far_as_they_came() -> None:
    assert log_news.parse_log_news(PACKED + deflate(b"out\nerr")) == log_news.LogNews(b"out\n", b"err")
    answer = PACKED.replace(b"4", b"99999").replace(b"3", b"1") + deflate(LONG)
    assert log_news.parse_log_news(answer) == log_news.LogNews(LONG[:-1], LONG[-1:])
    cut = log_news.parse_log_news(answer[:60_000])
    assert (cut.more, cut.stderr, LONG.startswith(cut.stdout)) == (True, b"", True)
    assert 50_000 < len(cut.stdout) < 60_000
    bomb = log_news.parse_log_news(PACKED + deflate(bytes(10_000_000)))
    assert (bomb.stdout, bomb.stderr) == (bytes(4), bytes(3))


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        PACKED + b"out\nerr",
        b'{"error": "host-error"}\n',
        NEWS[:20],
        b'{"news": 5}\n',
        b'{"news": ...}\n',
        NEWS.replace(b"4", b"1e999") + b"out\nerr",
        NEWS.replace(b"4", b"-4") + b"out\nerr",
        b'{"news": ' + b"[" * 100_000 + b"\n",
    ],
)
def test_an_answer_without_news_of_logs_is_no_news(answer: bytes) -> None:
    with pytest.raises(protocol.MalformedReplyError, match="logs"):
        log_news.parse_log_news(answer)


@pytest.mark.parametrize("said", ["unreachable", "closed", "asleep", None, 5])
def test_a_host_cannot_say_what_is_only_said_of_one(said):
    assert protocol.WorkerState.parse(said) is protocol.WorkerState.UNKNOWN
