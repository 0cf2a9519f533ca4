"""Command lines made at random end as the table says: no traceback, no crash report, one JSON document where
one was asked for, and what was refused changed nothing. `make soak` tries many more."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fuzz import Call, calls, make_files
from tests.support.session import TPUCTL, Session, open_session
from tpuctl.errors import EXIT_MEANINGS, BugError

COUNT = int(os.environ.get("TPUCTL_FUZZ_CALLS", "25"))
SEED = int(os.environ.get("TPUCTL_FUZZ_SEED", "7"))
LIMIT_S = 60
PASSED_THROUGH = {b"exec", b"ssh"}
"""Their exit status may be the remote command's."""
REFUSED = 2


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as session:
        (session.work / "a").write_text("print('ok')\n")
        os.mkfifo(session.root / "pipe")
        make_files(session.work)
        session.type("up", "v4-8", "big", "--spot", "--pay")
        yield session


def everything(session: Session) -> tuple[str, bytes]:
    store = session.root / "state" / "sim" / "sim-project" / "store.sqlite"
    return json.dumps(session.sim_journal()), store.read_bytes()


SHELL = {
    "as usual": 'exec "$@"',
    "full stdout": 'exec "$@" >/dev/full',
    "closed stdin": 'exec "$@" <&-',
    "closed stdout": 'exec "$@" >&-',
    "closed stderr": 'exec "$@" 2>&-',
    "home is a file": 'HOME=$PWD/a exec "$@"',
    "odd variables": 'COLUMNS=٣ TPUCTL_SSH_PORT=22 LANG=xx TZ=Nowhere/None exec "$@"',
}
CPU_S = 30
"""A command line may not work for longer, whatever it is given."""


def run(session: Session, call: Call) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [
            "/bin/sh",
            "-c",
            f"ulimit -v 4000000; ulimit -t {CPU_S}; {SHELL[call.streams]}",
            "sh",
            TPUCTL,
            *call.words,
        ],
        cwd=session.work,
        env=session.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=LIMIT_S,
    )


def judge(call: Call, done: subprocess.CompletedProcess[bytes]) -> None:
    """Raises AssertionError for what no command line may do."""
    said = f"{call}\n{done.returncode}\n{done.stdout[-2000:]!r}\n{done.stderr[-2000:]!r}"
    assert b"Traceback" not in done.stdout + done.stderr, said
    assert done.returncode != BugError.exit_code, said
    if call.words[0] not in PASSED_THROUGH:
        assert done.returncode in EXIT_MEANINGS, said
    assert len(done.stderr) < 40_000, said
    own = call.words[: call.words.index(b"--")] if b"--" in call.words else call.words
    if b"--json" in own and call.streams == "as usual" and done.stdout and b"--help" not in own:
        json.loads(done.stdout.decode())


@pytest.mark.parametrize(
    "words",
    [
        ("run", "x" * 300, "--on", "big", "--no-checkpoint"),
        ("run", "a", "--on", b"\xff\xfe", "--no-checkpoint"),
        ("grant", "import", "/dev/zero"),
        ("run", "a", "--on", "big", "--no-checkpoint", "--secret", "X=file:/dev/zero"),
        ("grant", "show", "--json", b"\xff"),
        ("up", "v4-8", "c", "--spot", "--startup-script", "/dev/zero", "--dry-run"),
        ("run", "a", "--on", "big", "--no-checkpoint", "--progress", r"(\d{1,99999999999})"),
        ("run", "a", "--on", "big", "--no-checkpoint", "--data", "./deep.json"),
        ("forward", "big", "9" * 5000),
        ("forward", "big", "٣:٣"),
        ("sim", "quota", f"us-central2-b/v4={'9' * 5000}"),
        ("pause", "--until", "9999999d"),
        ("disk", "attach", "gs://"),
        ("manifest", "show", "run.tar"),
        ("manifest", "show", "./deep.json"),
    ],
    ids=str,
)
def test_what_once_ended_badly_is_refused(session: Session, words: tuple[str | bytes, ...]) -> None:
    call = Call(tuple(os.fsencode(word) for word in words), "as usual")
    before = everything(session)
    done = run(session, call)
    judge(call, done)
    assert done.returncode == REFUSED
    assert everything(session) == before


@pytest.mark.timeout(3600)
def test_random_command_lines_end_as_the_table_says_and_refusals_change_nothing(session: Session) -> None:
    before = everything(session)
    for call in calls(SEED, COUNT):
        done = run(session, call)
        judge(call, done)
        after = everything(session)
        if done.returncode == REFUSED:
            assert after == before, f"{call} was refused and changed something"
        before = after
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode), "a device of the machine is one no more"
