"""Odd input: no end, no text, no name, no depth, and one damaged record among good ones. One clear line,
the right status, nothing changed."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.session import TPUCTL, Session, open_session
from tests.support.soak import soak

NO_TEXT = b"\xff\xfe"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as session:
        (session.work / "ok.py").write_text("print('ok')\n")
        session.type("grant", "add", "64", "spot", "v4", "us-central2-b")
        session.type("up", "v4-8", "a", "--spot")
        session.type("up", "v4-8", "b", "--spot")
        os.mkfifo(session.root / "pipe")
        yield session


def store_of(session: Session) -> Path:
    return session.root / "state" / "sim" / "sim-project" / "store.sqlite"


def everything(session: Session) -> tuple[str, bytes]:
    return json.dumps(session.sim_journal()), store_of(session).read_bytes()


def type_bytes(session: Session, *words: str | bytes) -> subprocess.CompletedProcess[bytes]:
    """A command whose arguments need not be text, with little memory and little time."""
    return subprocess.run(
        ["/bin/sh", "-c", 'ulimit -v 4000000; exec "$@"', "sh", TPUCTL, *words],
        cwd=session.work,
        env=session.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "x" * 300, "--on", "a", "--no-checkpoint"), b"the name of a file is too long"),
        (("run", "ok.py", "--on", NO_TEXT, "--no-checkpoint"), rb"'\xff\xfe'"),
        (("run", b"f\xff.py", "--on", "a", "--no-checkpoint"), rb"'f\xff.py'"),
        (("exec", "a", "--", "echo", NO_TEXT), rb"'\xff\xfe'"),
        (("grant", "import", "/dev/zero"), b"no regular file"),
        (("grant", "import", "../pipe"), b"no regular file"),
        (("up", "v4-8", "c", "--spot", "--startup-script", "/dev/zero"), b"no regular file"),
        (("up", "v4-8", "c", "--spot", "--startup-script", "../pipe", "--dry-run"), b"no regular file"),
        (("run", "ok.py", "--on", "a", "--no-checkpoint", "--secret", "X=file:/dev/zero"), b"no regular file"),
        (("run", "ok.py", "--on", "a", "--no-checkpoint", "--secret", "X=file:../pipe"), b"no regular file"),
        (("config", "show", "--json", NO_TEXT), rb"\\xff"),
        (("grant", "show", "--json", b"\xff"), rb"\\xff"),
        (("store", "machines", "--json", "--remove", b"\xff"), rb"\\xff"),
        (("watch", "once", "--json", b"\xff"), rb"\\xff"),
        (("types", "v" * 10_000), b"vvvvv"),
    ],
)
def test_what_has_no_end_or_is_no_text_is_refused_in_time(session, words, said):
    before = everything(session)
    done = type_bytes(session, *words)
    told = done.stdout + done.stderr
    assert done.returncode == 2, told
    assert said in told
    assert len(told) < 4_000, "an argument of 10 kB is not shown whole"
    if "--json" in words:
        assert json.loads(done.stdout.decode())["error"]["code"] == "usage"
        assert done.stderr == b""
    assert everything(session) == before


NESTED = [("ls",), ("diff",), ("config", "show"), ("doctor",), ("watch", "once")]
DEEPER = [soak(words, depth) for words in NESTED[1:] for depth in (500, 5000)]


@pytest.mark.parametrize(
    ("words", "depth"), [*((words, 60) for words in NESTED), (("ls",), 500), (("ls",), 5000), *DEEPER]
)
def test_a_file_nested_too_deep_is_named_with_its_place(session, words, depth):
    path = session.work / "tpuctl.yaml"
    path.write_text(f"fleet: {'[' * depth}{']' * depth}\n")
    try:
        done = session.type(*words, status=1 if words == ("doctor",) else 2)
    finally:
        path.unlink()
    assert "nested" in done.stdout + done.stderr
    assert "tpuctl.yaml" in done.stdout + done.stderr


def test_a_fleet_file_that_names_a_device_or_is_huge_is_refused(session):
    path = session.work / "tpuctl.yaml"
    try:
        path.write_text(
            "fleet: {name: lab, slices: {c: {accelerator: v4-8, tier: spot, startup_script: /dev/zero}}}\n"
        )
        done = type_bytes(session, "diff")
        assert (done.returncode, b"no regular file" in done.stderr) == (2, True), done.stderr
        path.write_text("# comment\n" * 500_000)
        assert "larger than 256 KiB" in session.type("ls", status=2).stderr
        path.write_bytes(b"settings: {zone: \xfb}\n")
        assert "not UTF-8" in session.type("ls", status=2).stderr
    finally:
        path.unlink()


def test_a_name_that_is_no_text_goes_with_the_code(session):
    odd = session.work / os.fsdecode(b"n\xff")
    odd.write_text("")
    try:
        session.type("run", "--on", "a", "--no-checkpoint", "--name", "odd", "--", "sh", "-c", "ls | cat -v")
    finally:
        odd.unlink()
    assert "nM-^?" in session.type("logs", "odd").stdout
    assert session.json("manifest", "odd")


def test_a_file_that_its_disk_does_not_give_is_named(session):
    """What this file has at its beginning cannot be read: EIO."""
    for words in (("rerun",), ("manifest", "show")):
        done = session.type(*words, "/proc/self/mem", status=1)
        assert done.stderr.startswith("error: /proc/self/mem: input/output error")


def test_json_where_it_means_nothing_is_refused(session):
    before = everything(session)
    for words in (
        ("pause", "--until", "1h"),
        ("resume",),
        ("grant", "add", "1", "spot", "v4", "us-central2-b"),
    ):
        done = session.type("--json", *words, status=2)
        assert "prints no JSON" in json.loads(done.stdout)["error"]["message"]
        assert done.stderr == ""
    assert everything(session) == before


@contextmanager
def damaged(session: Session, key: str, data: str) -> Iterator[None]:
    """The record `key` holds `data` for a while."""
    with sqlite3.connect(store_of(session)) as db:
        (old,) = db.execute("SELECT data FROM documents WHERE key = ?", (key,)).fetchone()
        db.execute("UPDATE documents SET data = ? WHERE key = ?", (data, key))
    try:
        yield
    finally:
        with sqlite3.connect(store_of(session)) as db:
            db.execute("UPDATE documents SET data = ? WHERE key = ?", (old, key))


@pytest.mark.parametrize(
    "data", ["{not json", *map(soak, ('{"name": 5}', "[" * 5000, "{}", "[]", '"' + "[" * 5000))]
)
def test_one_damaged_record_is_shown_and_the_others_go_on(session, data):
    with damaged(session, "slices/a", data):
        rows = {row["name"]: row["state"] for row in session.json("ls")}
        assert rows["a"] == "damaged"
        assert rows["b"] == "ready"
        assert "unwanted" not in rows.values(), "its node may be wanted"
        told = session.type("ls").stderr
        assert "the record slices/a in the store is damaged" in told
        assert session.json("status", "b")["state"] == "ready"
        session.type("up", "b", "--pay")
        session.type("exec", "b", "--", "true")
        uncovered = session.type("up", "v4-8", "c", "--spot", status=2)
        assert "what it uses of grants is not known" in uncovered.stderr
        assert session.type("up", "a", "--pay", status=1).stderr.startswith("error: the record slices/a")
        assert "the record slices/a" in session.type("down", "a", "--yes", status=1).stderr
        assert "the record slices/a" in session.type("reap", "--yes", status=1).stderr
        assert "the record slices/a" in session.type("watch", "once", "--json", status=3).stdout
        found = session.type("doctor", "--json", status=1).stdout
        assert "the record slices/a in the store is damaged" in found
    assert {row["state"] for row in session.json("ls")} == {"ready"}


def test_a_damaged_run_is_shown_beside_the_others_and_holds_back_new_ones(session):
    session.type("run", "ok.py", "--on", "a", "--no-checkpoint", "--name", "one")
    with damaged(session, "runs/one", "{}"):
        assert {row["id"]: row["state"] for row in session.json("runs")}["one"] == "damaged"
        told = session.type("runs")
        assert ["one", "-", "damaged"] in [line.split()[:3] for line in told.stdout.splitlines()]
        assert "the record runs/one in the store is damaged" in told.stderr
        assert session.json("status", "a")["run"] is None
        done = session.type("run", "ok.py", "--on", "a", "--no-checkpoint", status=1)
        assert "the record runs/one" in done.stderr
        assert "tpuctl store forget runs/one" in done.stderr


def test_a_damaged_record_can_be_removed_and_no_other(session):
    session.type("store", "forget", "slices/b", "--yes", status=6)
    session.type("store", "forget", "slices/nobody", "--yes", status=5)
    session.type("up", "v4-8", "gone", "--spot")
    with damaged(session, "slices/gone", "{}"):
        assert "would remove" in session.type("store", "forget", "slices/gone", "--dry-run").stdout
        session.type("store", "forget", "slices/gone", status=2)
        session.type("store", "forget", "slices/gone", "--yes")
        assert {row["name"]: row["state"] for row in session.json("ls")}["gone-1"] == "unwanted"
        session.type("reap", "--yes")


def test_a_slice_that_lives_on_without_its_record_is_not_asked_for_beside_it(session):
    words = ("up", "v4-8", "lost", "--spot")
    session.type(*words)
    session.type("sim", "preempt", "lost-1")
    session.type(*words)
    with sqlite3.connect(store_of(session)) as db:
        db.execute("UPDATE documents SET data = '{}' WHERE key = 'slices/lost'")
    session.type("store", "forget", "slices/lost", "--yes")
    before = session.sim_journal()
    refused = session.type(*words, status=6)
    assert "lost-2 in us-central2-b is READY: slice lost lives on without its record" in refused.stderr
    assert "`tpuctl adopt lost-2` takes it over" in refused.stderr
    assert session.sim_journal() == before
    assert session.json("adopt", "lost-2", "--dry-run")["not_covered"] == ""
    session.type("adopt", "lost-2", "--yes")
    assert "lost-2 is READY" in session.type(*words).stderr
    session.type("down", "lost", "--yes")


def test_a_request_that_the_cloud_refuses_says_how_to_clear_it_away(session):
    words = ("up", "v4-8", "nowhere", "--zone", "us-east1-d", "--spot", "--pay")
    assert "`tpuctl down nowhere` clears the refused request away" in session.type(*words, status=2).stderr
    assert "`tpuctl down nowhere` clears it away" in session.type("status", "nowhere").stderr
    session.type("down", "nowhere", "--yes")
    assert "nowhere" not in session.type("ls").stdout
    before = everything(session)
    session.type("up", "v4-8", "nowhere", "--zone", "us-east9-z", "--spot", "--pay", status=2)
    assert everything(session) == before
