"""What every store must do, whatever it is kept in."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.stores import KINDS, Place, open_places
from tpuctl.errors import BadConfigError, ConflictError, NotFoundError, TpuctlError
from tpuctl.state import sqlite as sqlite_store
from tpuctl.state.sqlite import LISTED_FROM, SqliteStore

OPEN_SQLITE = """
import sys
from pathlib import Path
from tpuctl.errors import ConflictError
from tpuctl.state.sqlite import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "store.sqlite"


Opener = Callable[[Path], Callable[[], Any]]
"""What opens one store again and again, given a folder of its own."""


@pytest.fixture(scope="module")
def makers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Callable[[Path], Place]]]:
    """What makes a place for a store of each kind; one simulated cloud serves all of this module."""
    with ExitStack() as stack:
        yield {kind: stack.enter_context(open_places(kind, tmp_path_factory.mktemp(kind))) for kind in KINDS}


@pytest.fixture(params=["sqlite"])
def opener(request: pytest.FixtureRequest, makers: dict[str, Callable[[Path], Place]]) -> Opener:
    """Tests of files take this one; those of every store are marked `everywhere`."""
    return lambda path: makers[request.param](path).open


everywhere = pytest.mark.parametrize("opener", KINDS, indirect=True)


@pytest.fixture
def reopen(opener: Opener, path: Path) -> Iterator[Callable[[], Any]]:
    """Opens the same store again, as another process would."""
    opened: list[Any] = []
    open_one = opener(path)

    def open_it() -> Any:
        opened.append(open_one())
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()


@pytest.fixture
def store(reopen: Callable[[], Any]) -> Any:
    return reopen()


def start(path: Path, body: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", OPEN_SQLITE + body, str(path), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@everywhere
def test_a_missing_document_is_none(store):
    assert store.get("slices/big") is None


@everywhere
def test_a_document_comes_back_as_written(store, reopen):
    data = {"name": "big", "nested": {"a": [1, 2.5, None, True]}, "text": "ünï\n'\""}
    written = store.put("slices/big", data, if_generation=0)
    assert written.generation > 0
    assert reopen().get("slices/big") == written
    assert written.data == data


@everywhere
def test_writing_needs_the_generation_that_was_read(store):
    first = store.put("a", {"n": 1}, if_generation=0)
    second = store.put("a", {"n": 2}, if_generation=first.generation)
    assert second.generation != first.generation
    for stale in (0, first.generation, second.generation + 1):
        with pytest.raises(ConflictError):
            store.put("a", {"n": 3}, if_generation=stale)
    assert store.get("a") == second


@everywhere
def test_a_missing_document_has_only_generation_zero(store):
    with pytest.raises(ConflictError):
        store.put("a", {}, if_generation=1)
    assert store.get("a") is None


@everywhere
def test_deleting_needs_the_generation_that_was_read(store):
    first = store.put("a", {}, if_generation=0)
    second = store.put("a", {}, if_generation=first.generation)
    with pytest.raises(ConflictError):
        store.delete("a", if_generation=first.generation)
    store.delete("a", if_generation=second.generation)
    assert store.get("a") is None


@everywhere
def test_a_generation_is_not_reused_after_a_delete(store):
    first = store.put("a", {}, if_generation=0)
    store.delete("a", if_generation=first.generation)
    again = store.put("a", {}, if_generation=0)
    assert again.generation != first.generation
    with pytest.raises(ConflictError):
        store.put("a", {}, if_generation=first.generation)


@everywhere
def test_list_returns_exactly_the_prefix_sorted_by_key(store):
    for key in ("slices/b", "slices/a", "slices/%", "slices/_x", "slicesx", "runs/a", "slices/a/é", "SLICES/z"):
        store.put(key, {"key": key}, if_generation=0)
    found = store.list("slices/")
    assert [document.key for document in found] == [
        "slices/%",
        "slices/_x",
        "slices/a",
        "slices/a/é",
        "slices/b",
    ]
    assert all(store.get(document.key) == document for document in found)
    assert store.list("none/") == []


def test_a_long_list_is_as_new_as_the_store_each_time(store, reopen):
    """What did not change is not read again."""
    for number in range(LISTED_FROM + 1):
        store.put(f"runs/{number:03d}", {"n": number}, if_generation=0)
    before, other = store.list("runs/"), reopen()
    other.put("runs/005", {"n": -1}, if_generation=before[5].generation)
    other.delete("runs/007", if_generation=before[7].generation)
    other.put("runs/new", {"n": 0}, if_generation=0)
    after = {document.key: document.data["n"] for document in store.list("runs/")}
    there = {f"runs/{n:03d}": n for n in range(LISTED_FROM + 1) if n != 7}
    assert after == {**there, "runs/005": -1, "runs/new": 0}
    assert store.list("runs/") == other.list("runs/")


@everywhere
def test_what_is_read_of_a_long_list_is_as_new_as_the_store_each_time(store, reopen):
    """What did not change is not read again, and two readers of one list are told apart."""
    for number in range(LISTED_FROM + 1):
        store.put(f"runs/{number:03d}", {"n": number}, if_generation=0)
    assert [*store.read_all("runs/", _number)] == [*range(LISTED_FROM + 1)]
    assert store.read_all("runs/", _key)[:2] == ["runs/000", "runs/001"]
    other = reopen()
    other.put("runs/005", {"n": -1}, if_generation=other.get("runs/005").generation)
    other.delete("runs/007", if_generation=other.get("runs/007").generation)
    expected = [-1 if n == 5 else n for n in range(LISTED_FROM + 1) if n != 7]
    assert [*store.read_all("runs/", _number)] == [*other.read_all("runs/", _number)] == expected


def _number(document):
    return document.data["n"]


def _key(document):
    return document.key


@everywhere
def test_appended_entries_list_in_order_and_cannot_change(store, reopen):
    keys = [(store if n % 2 else reopen()).append("journal/big", {"n": n}) for n in range(12)]
    assert keys == sorted(keys)
    assert len(set(keys)) == 12
    found = store.list("journal/big/")
    assert [document.data["n"] for document in found] == list(range(12))
    with pytest.raises(ConflictError):
        store.put(found[0].key, {"n": -1}, if_generation=found[0].generation)
    with pytest.raises(ConflictError):
        store.delete(found[0].key, if_generation=found[0].generation)


@everywhere
def test_a_blob_is_kept_under_its_digest(store, reopen):
    content = bytes(range(256)) * 1000
    digest = store.put_blob(content)
    assert store.put_blob(content) == digest
    assert store.young_blobs([digest]) == {digest}
    assert reopen().get_blob(digest) == content


@everywhere
def test_many_blobs_are_stored_in_the_order_given(store, reopen):
    contents = [f"content {number}".encode() for number in range(40)]
    digests = store.put_blobs(iter(contents))
    assert [store.get_blob(digest) for digest in digests] == contents
    assert reopen().young_blobs([*digests, "0" * 64]) == set(digests)
    assert len(store.put_blobs([])) == 0
    assert store.young_blobs([]) == frozenset()


@everywhere
@pytest.mark.parametrize("digest", ["0" * 64, "../../etc/passwd", ""])
def test_a_missing_blob_is_not_found(store, digest):
    with pytest.raises(NotFoundError):
        store.get_blob(digest)


@everywhere
def test_the_identity_stays_and_is_a_label_value(store, reopen, opener, tmp_path):
    other = opener(tmp_path / "other" / "store.sqlite")()
    try:
        assert reopen().identity() == store.identity()
        assert other.identity() != store.identity()
        assert store.identity().isalnum()
        assert store.identity() == store.identity().lower()
    finally:
        other.close()


@everywhere
def test_threads_share_one_store(store):
    def work(thread: int) -> None:
        for n in range(10):
            store.put(f"t/{thread}/{n}", {}, if_generation=0)
            store.append("log", {"thread": thread})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert len(store.list("t/")) == len(store.list("log/")) == 40


def test_of_eight_processes_racing_for_a_key_exactly_one_wins(path):
    body = """
print("ready", flush=True)
sys.stdin.readline()
try:
    store.put("leases/big", {"owner": sys.argv[2]}, if_generation=0)
    print("won", flush=True)
except ConflictError:
    print("lost", flush=True)
print(store.append("journal", {"owner": sys.argv[2]}), store.identity(), flush=True)
"""
    racers = [start(path, body, str(n)) for n in range(8)]
    assert [racer.stdout.readline() for racer in racers] == ["ready\n"] * 8
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    results = [racer.communicate()[0].split() for racer in racers]
    assert sorted(result[0] for result in results) == ["lost"] * 7 + ["won"]
    assert len({result[1] for result in results}) == 8
    assert len({result[2] for result in results}) == 1
    winner = next(n for n, result in enumerate(results) if result[0] == "won")
    survivor = SqliteStore(path)
    try:
        assert survivor.get("leases/big").data == {"owner": str(winner)}
    finally:
        survivor.close()


def test_a_store_whose_writer_was_killed_holds_all_that_was_reported(path):
    body = """
n = 0
while True:
    store.append("journal", {"n": n, "padding": "x" * 5000})
    store.put_blob(str(n).encode() * 1000)
    print(n, flush=True)
    n += 1
"""
    writer = start(path, body)
    reported = [int(writer.stdout.readline()) for _ in range(20)][-1]
    writer.send_signal(signal.SIGKILL)
    rest = writer.stdout.read()  # communicate() does not know what readline() has read ahead
    writer.wait()
    reported = max([reported, *(int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n"))])
    store = SqliteStore(path)
    try:
        found = [document.data["n"] for document in store.list("journal/")]
        assert found[: reported + 1] == list(range(reported + 1))
        assert len(found) <= reported + 2
        store.put("a", {}, if_generation=0)
        digest = store.put_blob(str(reported).encode() * 1000)
        assert store.get_blob(digest) == str(reported).encode() * 1000
    finally:
        store.close()


def test_a_damaged_blob_is_noticed_and_can_be_stored_again(store, path):
    digest = store.put_blob(b"code")
    (path.parent / "blobs" / digest[:2] / digest).write_bytes(b"c0de")
    with pytest.raises(TpuctlError, match="damaged"):
        store.get_blob(digest)
    store.put_blob(b"code")
    assert store.get_blob(digest) == b"code"


def test_only_the_owner_may_read_the_files(store, path):
    digest = store.put_blob(b"code")
    modes = {
        name: stat.S_IMODE(os.stat(name).st_mode)
        for name in (path, path.parent, path.parent / "README", path.parent / "blobs" / digest[:2] / digest)
    }
    assert modes[path.parent] == 0o700
    assert {mode for name, mode in modes.items() if name != path.parent} == {0o600}
    assert not list(path.parent.glob(".new-*"))


def test_a_newer_schema_is_refused_with_advice(store, path):
    store.close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 999")
    db.close()
    with pytest.raises(BadConfigError, match=r"newer tpuctl") as caught:
        SqliteStore(path)
    assert "upgrade" in caught.value.hint


def test_a_locked_store_is_named(store, path, monkeypatch):
    monkeypatch.setattr(sqlite_store, "BUSY_TIMEOUT_S", 0.0)
    impatient = SqliteStore(path)
    holder = sqlite3.connect(path, isolation_level=None)
    try:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(TpuctlError, match="locked") as caught:
            impatient.put("a", {}, if_generation=0)
        assert str(path) in caught.value.message
        holder.execute("ROLLBACK")
        impatient.put("a", {}, if_generation=0)
    finally:
        holder.close()
        impatient.close()


def test_a_file_that_is_no_database_is_named(tmp_path):
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(TpuctlError, match=r"store\.sqlite"):
        SqliteStore(path)
