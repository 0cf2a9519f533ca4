"""A look at a store from outside finds its state and changes nothing."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tpuctl.errors import TpuctlError
from tpuctl.state.health import inspect_store
from tpuctl.state.sqlite import MIGRATIONS, SqliteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "store.sqlite"
    SqliteStore(made).close()
    return made


def test_a_sound_store(path: Path) -> None:
    before = path.read_bytes()
    found = inspect_store(path)
    assert (found.exists, found.schema, found.locked, found.damage, found.writable) == (
        True,
        len(MIGRATIONS),
        False,
        "",
        True,
    )
    assert found.usable
    assert path.read_bytes() == before


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    found = inspect_store(tmp_path / "a" / "b" / "store.sqlite")
    assert (found.exists, found.writable) == (False, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lock", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_lock_of_this_very_process_is_seen(path: Path, lock: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(lock)
        found = inspect_store(path)
    assert found.locked
    assert not found.usable
    assert inspect_store(path).usable


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_damaged_store(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    found = inspect_store(path)
    assert found.damage
    assert not found.usable


def test_another_programs_database(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE cats (name TEXT)")
    assert inspect_store(path).damage == "it holds no tpuctl store"


@pytest.mark.parametrize(("version", "usable"), [(0, False), (len(MIGRATIONS) + 1, False)])
def test_other_schemas_are_read_and_left_as_they_are(path: Path, version: int, usable: bool) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {version}")
    found = inspect_store(path)
    assert (found.schema, found.known_schema, found.usable) == (version, len(MIGRATIONS), usable)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] == version


def test_a_store_that_cannot_be_written_says_where_to_look(path: Path) -> None:
    """As on a file system that is mounted read-only, which a test cannot have without root."""
    store = SqliteStore(path)
    store._db.execute("PRAGMA query_only = 1")
    with closing(store), pytest.raises(TpuctlError, match="readonly database") as refused:
        store.put("a/b", {}, if_generation=0)
    assert refused.value.hint == f"it must be writable: findmnt -T {path.parent}"


class AtBegin(sqlite3.Connection):
    """Ctrl-C comes when a transaction has just begun."""

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        found = super().execute(sql, *parameters)
        if sql.startswith("BEGIN"):
            signal.raise_signal(signal.SIGINT)
        return found


def test_ctrl_c_leaves_no_transaction_open(path: Path) -> None:
    store = SqliteStore(path)
    store._db = sqlite3.connect(path, factory=AtBegin, isolation_level=None)
    with pytest.raises(KeyboardInterrupt):
        store.put("slices/big", {}, if_generation=0)
    assert not store._db.in_transaction
    SqliteStore(path).put("slices/big", {}, if_generation=0)
