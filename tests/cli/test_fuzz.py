"""Command lines made at random end as the table says: no traceback, no crash report, one JSON document where
one was asked for, and what was refused changed nothing. `make soak` tries many more."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.fuzz import Call, calls, make_files
from tests.support.fuzz_records import craft_fleet, craft_settings, craft_store
from tests.support.session import TPUCTL, Session, another_machine, open_session
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
        session.type("up", "v4-8", "big", "--spot", "--pay")
        session.type("disk", "create", "data", "--size", "10", "--zone", "us-central2-b")
        session.type("run", "--on", "big", "--no-checkpoint", "--name", "r1", "--", "true")
        make_files(session.work)
        another_machine(session)
        yield session


def store_of(session: Session) -> Path:
    return session.root / "state" / "sim" / "sim-project" / "store.sqlite"


def everything(session: Session) -> tuple[str, list[tuple[object, ...]]]:
    """What was asked of the cloud, and the records, but for leases: one that was given back is what it was to
    whoever comes next, and where a refusal depends on the state of a disk, it is looked at under one."""
    with closing(sqlite3.connect(store_of(session))) as db:
        rows = db.execute("SELECT * FROM documents WHERE key NOT LIKE 'leases/%' ORDER BY key").fetchall()
    return json.dumps(session.sim_journal()), rows


SHELL = {
    "as usual": 'exec "$@"',
    "full stdout": 'exec "$@" >/dev/full',
    "closed stdin": 'exec "$@" <&-',
    "closed stdout": 'exec "$@" >&-',
    "closed stderr": 'exec "$@" 2>&-',
    "home is a file": 'HOME=$PWD/a exec "$@"',
    "odd variables": 'COLUMNS=٣ TPUCTL_SSH_PORT=22 LANG=xx TZ=Nowhere/None exec "$@"',
    "crafted store": 'TPUCTL_STATE_DIR=../other/state exec "$@"',
    "crafted fleet": 'cd crafted; exec "$@"',
    "crafted settings": 'XDG_CONFIG_HOME=$PWD/crafted exec "$@"',
}
CPU_S = 30
"""A command line may not work for longer, whatever it is given."""


def craft(session: Session, call: Call) -> None:
    """Puts in place what the streams of a call are called after."""
    if call.streams == "crafted store":
        there = session.root / "other" / "state" / "sim" / "sim-project"
        shutil.rmtree(there, ignore_errors=True)
        there.mkdir()
        with (
            closing(sqlite3.connect(store_of(session))) as db,
            closing(sqlite3.connect(there / "store.sqlite")) as to,
        ):
            db.backup(to)
        craft_store(there / "store.sqlite", call.craft)
    elif call.streams == "crafted fleet":
        craft_fleet(session.work / "crafted" / "tpuctl.yaml", call.craft)
    elif call.streams == "crafted settings":
        craft_settings(session.work / "crafted" / "tpuctl" / "config.yaml", call.craft)


def run(session: Session, call: Call) -> subprocess.CompletedProcess[bytes]:
    craft(session, call)
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
        ("sim", "up", "--speed", "nan"),
        ("sim", "up", "--speed", "1e999"),
        ("sim", "up", "--catalog", "/dev/zero"),
        ("sim", "up", "--project", "/etc"),
        ("sim", "down", "now"),
        ("demo", "--hosts", "\x1b[31m"),
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


@pytest.mark.timeout(7200)
def test_random_command_lines_end_as_the_table_says_and_refusals_change_nothing(session: Session) -> None:
    """All of them are typed, whatever one of them does, so that a long search finds all that there is."""
    found: list[str] = []
    before = everything(session)
    for call in calls(SEED, COUNT):
        try:
            done = run(session, call)
            judge(call, done)
            if done.returncode == REFUSED:
                assert everything(session) == before, f"{call} was refused and changed something"
        except (AssertionError, ValueError, subprocess.TimeoutExpired) as error:
            found.append(f"{call}: {error}")
            print(found[-1], flush=True)
        before = everything(session)
    for device in ("/dev/full", "/dev/null", "/dev/zero"):
        assert stat.S_ISCHR(Path(device).stat().st_mode), f"{device} of the machine is no device any more"
    assert not found, f"{len(found)} of {COUNT} with seed {SEED}:\n" + "\n\n".join(found)
