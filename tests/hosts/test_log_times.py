"""The index of a log on a host and the room that a long log takes: the agent's modules on real files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tpuctl.hosts.log_news import LogNews, parse_log_news
from tpuctl.runs.log_lines import parse_times

AGENT = Path(__file__).resolve().parents[2] / "tpuctl" / "agent"
MIB = 1 << 20
GIB = 1 << 30
SMALL = "log_times.KEPT, log_times.PIECE, log_times.KEPT_UNFETCHED = 1 << 20, 1 << 16, 4 << 20"


def in_agent(home: Path, code: str) -> Any:
    """What `code`, with the modules of the agent and attempt 1 of run r1, leaves in `found`."""
    words = [
        "import json, os, time, base, log_times, streams",
        'attempt = base.Attempt({"run": "r1", "attempt": "1"})',
        "base.make_dir(attempt.dir)",
        code,
        "print(json.dumps(found))",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(words)],
        env={**os.environ, "HOME": str(home), "PYTHONPATH": str(AGENT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def ask_news(home: Path, **request: Any) -> LogNews:
    done = subprocess.run(
        [sys.executable, str(AGENT), "news"],
        input=json.dumps({"run": "r1", "attempt": "1", "limit": 64 * MIB, **request}).encode(),
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        check=True,
    )
    return parse_log_news(done.stdout)


CUTS = [
    (0, 0, 0, 0),
    (200 * MIB, 0, 0, 0),
    (200 * MIB, 0, 60 * MIB, 0),
    (200 * MIB, 0, 200 * MIB, 136 * MIB),
    (200 * MIB, 136 * MIB, 100 * MIB, 136 * MIB),
    (GIB + 7 * MIB, 0, 0, 0),
    (GIB + 9 * MIB, 0, 0, 8 * MIB),
    (100 * MIB, 0, 900 * MIB, 32 * MIB),
]


def test_a_log_goes_as_far_as_it_was_fetched_and_unfetched_only_where_it_is_too_much(tmp_path: Path) -> None:
    asked = [list(each[:3]) for each in CUTS]
    assert in_agent(tmp_path, f"found = [log_times.next_cut(*each) for each in {asked}]") == [
        each[3] for each in CUTS
    ]


def test_what_was_fetched_of_a_long_log_gives_its_room_back_and_the_rest_is_read_on(tmp_path: Path) -> None:
    code = f"""
{SMALL}
log = open(attempt.path("stdout.log"), "ab")
log.write(b"".join(b"line %07d\\n" % n for n in range(300_000)))
log.flush()
before = os.stat(log.name).st_blocks
log_times.shorten(attempt, "stdout")
unfetched = log_times.cut_of(attempt, "stdout")
log_times.note_fetched(attempt, "stdout", 3_000_000)
log_times.shorten(attempt, "stdout")
log.write(b"goes on\\n")
log.flush()
room = (before - os.stat(log.name).st_blocks) * 512
found = [unfetched, log_times.cut_of(attempt, "stdout"), room, os.stat(log.name).st_size]
"""
    unfetched, cut, room, size = in_agent(tmp_path, code)
    assert (unfetched, size) == (0, 300_000 * 13 + 8)
    assert cut == 3_000_000 - MIB - (3_000_000 - MIB) % (1 << 16)
    assert cut - (1 << 16) <= room <= cut
    whole = b"".join(b"line %07d\n" % number for number in range(300_000)) + b"goes on\n"
    assert ask_news(tmp_path) == LogNews(whole[cut:], skipped={"stdout": cut})
    assert ask_news(tmp_path, offsets={"stdout": cut + 5}) == LogNews(whole[cut + 5 :])


def test_the_index_says_when_the_log_grew_and_is_fetched_with_it(tmp_path: Path) -> None:
    code = """
log = open(attempt.path("stdout.log"), "ab", buffering=0)
times = log_times.LogTimes(attempt)
times.look(last=True)
for line in (b"one\\n", b"two\\n"):
    log.write(line)
    times.look(last=True)
    times.look(last=True)
found = time.time()
"""
    now = in_agent(tmp_path, code)
    news = ask_news(tmp_path, offsets={"stdout_times": 0, "stderr_times": 0})
    index = parse_times(news.times["stdout"])
    assert (news.stdout, list(index.offsets), news.times["stderr"]) == (b"one\ntwo\n", [4, 8], b"")
    assert index.times == sorted(index.times)
    assert index.times[-1] == pytest.approx(now, abs=5.0)
    behind = {"stdout": 8, "stdout_times": 30, "stderr_times": 0}
    some = ask_news(tmp_path, offsets=behind, times_only=True)
    assert (some.stdout, len(some.times["stdout"]), some.more) == (b"", 30, False)


def test_an_index_grows_more_slowly_the_longer_it_is(tmp_path: Path) -> None:
    code = """
log = open(attempt.path("stdout.log"), "ab", buffering=0)
found = []
for size in (0, 1 << 20, 4 << 20):
    index = log_times.Index(attempt, "stdout")
    index.size = size
    wrote = []
    for eighth in range(300):
        log.write(b"x")
        before = index.size
        index.look(1000.0 + eighth / 8, False)
        wrote.append(index.size > before)
    found.append(sum(wrote))
"""
    assert in_agent(tmp_path, code) == [150, 38, 4]
