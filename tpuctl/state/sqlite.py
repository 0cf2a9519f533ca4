"""The store in the state directory: one SQLite file, and blobs as files beside it.

The rollback journal is kept on purpose: home directories are often NFS, where WAL's shared memory does not work
(https://sqlite.org/wal.html, "all processes using a database must be on the same host computer").
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tpuctl.engine.ports import Document, StoredBlob
from tpuctl.errors import BadConfigError, ConflictError, TpuctlError, full_disk_hint
from tpuctl.lib.files import write_private
from tpuctl.model import timeouts
from tpuctl.model.records import MOVED
from tpuctl.state.blobs import BlobFiles
from tpuctl.state.documents import UnreadData, check_entry, parse_document

R = TypeVar("R")

BUSY_TIMEOUT_S = 10.0
"""How long a write waits for another process's: transactions here take milliseconds, NFS may take a second."""
FRESH_S = 60.0
"""How long the time of a `FileTime` is counted on from a read of its file: clocks drift little."""
LISTED_FROM, LISTS_KEPT = 100, 4
"""What was read of so many documents is kept, of so many lists: the next one then reads what has changed. An
open page of the browser lists the runs of years each second."""
READ_AT_ONCE = 500
"""Documents of one query: some MB."""
COARSE_S = 1.0
"""A smaller difference is the grain of the file system's timestamps, not another clock."""
LAST_CHARACTER = "\U0010ffff"
"""Keys that begin with a prefix stand before the prefix with this behind it, so that an index finds them."""
_TICKS = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The clock that goes on while a laptop sleeps (clock_gettime(2))."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
        "CREATE TABLE documents ("
        " key TEXT PRIMARY KEY,"
        " generation INTEGER NOT NULL,"
        " immutable INTEGER NOT NULL DEFAULT 0,"
        " data TEXT NOT NULL) WITHOUT ROWID",
        "INSERT INTO meta VALUES ('sequence', '0')",
    ),
)
"""The schema: numbered, append-only. Never edit one that was released; add the next. `PRAGMA user_version`
holds how many were applied."""

README = """\
tpuctl keeps here what it decided and did: slices, runs, leases, the journal (store.sqlite) and the frozen
code of runs (blobs/). What exists in the cloud is not kept here; the cloud is asked. Do not edit these files
while tpuctl runs. Removing them makes tpuctl forget its slices, but deletes none of them.
"""


class SqliteStore:
    """Implements `ports.Store` in the file `path`; makes it, its directory and a README if needed.

    `now` is the store's time, by itself that of whoever keeps the file. Usable from several threads and
    processes. Raises BadConfigError for a schema that is newer than this tpuctl, and TpuctlError naming the
    file when it is locked, unreadable or damaged.
    """

    def __init__(self, path: Path, *, now: Callable[[], float] | None = None) -> None:
        self._path = path
        self._now = now or FileTime(path.parent / ".clock").now
        self._mutex = threading.RLock()
        self._listed: dict[tuple[str, Callable[[Document], Any]], dict[str, tuple[int, Any]]] = {}
        self._known: Mapping[str, tuple[int, Any]] = {}
        self._blobs = BlobFiles(path.parent / "blobs", self._transaction)
        with self._translated():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not path.exists():
                _create(path)
            self._db = _connect(path)
            self._db.create_function("is_news", 2, self._is_news)
            self._migrate()
        self._identity = self._meta("identity")

    def close(self) -> None:
        with self._mutex:
            self._db.close()

    def get(self, key: str) -> Document | None:
        with self._translated():
            row = self._db.execute("SELECT generation, data FROM documents WHERE key = ?", (key,)).fetchone()
        return None if row is None else parse_document(key, row[0], row[1])

    def put(self, key: str, data: Mapping[str, Any], *, if_generation: int) -> Document:
        text = json.dumps(data, ensure_ascii=False, sort_keys=True)
        with self._transaction():
            self._check_here(key)
            self._expect(key, if_generation)
            generation = self._next()
            self._db.execute(
                "INSERT INTO documents (key, generation, data) VALUES (?, ?, ?)"
                " ON CONFLICT (key) DO UPDATE SET generation = excluded.generation, data = excluded.data",
                (key, generation, text),
            )
        return Document(key, generation, json.loads(text))

    def delete(self, key: str, *, if_generation: int) -> None:
        with self._transaction():
            self._check_here(key)
            self._expect(key, if_generation)
            self._db.execute("DELETE FROM documents WHERE key = ?", (key,))

    def list(self, prefix: str) -> list[Document]:
        return [*self.read_all(prefix, _as_it_is)]

    def read_all(self, prefix: str, read: Callable[[Document], R]) -> Sequence[R]:
        with self._translated():
            known: dict[str, tuple[int, R]] = self._listed.pop((prefix, read), {})
            found = {
                key: known[key]
                if text is None
                else (generation, read(Document(key, generation, UnreadData(key, text))))
                for key, generation, text in self._rows(prefix, known)
            }
            if len(found) >= LISTED_FROM:
                self._listed[prefix, read] = found
                while len(self._listed) > LISTS_KEPT:
                    self._listed.pop(next(iter(self._listed)))
        return [made for _, made in found.values()]

    def _rows(self, prefix: str, known: Mapping[str, tuple[int, Any]]) -> Iterator[tuple[str, int, str | None]]:
        """Key, generation and, unless that is known, the text of each, some at a time: while a query goes on no
        other process can write, and records are made of thousands in seconds."""
        start, more = prefix, True
        while more:
            self._known = known
            rows = self._db.execute(
                "SELECT key, generation, CASE WHEN ? OR is_news(key, generation) THEN data END FROM documents"
                " WHERE key >= ? AND key < ? ORDER BY key LIMIT ?",
                (not known, start, prefix + LAST_CHARACTER, READ_AT_ONCE),
            ).fetchall()
            self._known = {}
            yield from rows
            more = len(rows) == READ_AT_ONCE
            start = f"{rows[-1][0]}\0" if more else start

    def _is_news(self, key: str, generation: int) -> bool:
        return key not in self._known or self._known[key][0] != generation

    def list_keys(self) -> Sequence[str]:
        with self._translated():
            return [row[0] for row in self._db.execute("SELECT key FROM documents ORDER BY key").fetchall()]

    def remove_entries(self, keys: Sequence[str]) -> None:
        with self._transaction():
            for key in keys:
                self._check_here(key)
                check_entry(key)
                self._db.execute("DELETE FROM documents WHERE key = ? AND immutable = 1", (key,))

    def append(self, prefix: str, data: Mapping[str, Any]) -> str:
        text = json.dumps(data, ensure_ascii=False, sort_keys=True)
        with self._transaction():
            generation = self._next()
            key = f"{prefix.rstrip('/')}/{generation:016d}"
            self._check_here(key)
            self._db.execute("INSERT INTO documents VALUES (?, ?, 1, ?)", (key, generation, text))
        return key

    def put_blob(self, content: bytes) -> str:
        with self._translated():
            return self._blobs.put(content)

    def get_blob(self, sha256: str) -> bytes:
        with self._translated():
            return self._blobs.get(sha256)

    def put_blobs(self, contents: Iterable[bytes]) -> Sequence[str]:
        return [self.put_blob(content) for content in contents]

    def young_blobs(self, digests: Sequence[str]) -> frozenset[str]:
        since = self.now() - timeouts.BLOB_FRESH_S
        with self._translated():
            ages = {digest: self._blobs.written_at(digest) for digest in digests}
        return frozenset(digest for digest, at in ages.items() if at is not None and at > since)

    def list_blobs(self) -> Sequence[StoredBlob]:
        with self._translated():
            return self._blobs.list()

    def remove_blob(self, blob: StoredBlob) -> bool:
        with self._translated():
            self._check_here("blobs/")
            return self._blobs.remove(blob)

    def clear_leftovers(self, before: float) -> int:
        with self._translated():
            return self._blobs.clear_leftovers(before)

    def now(self) -> float:
        """One time for all machines that share the directory, whatever their own clocks say."""
        return self._now()

    @property
    def shared(self) -> bool:
        return False

    def identity(self) -> str:
        return self._identity

    def _check_here(self, key: str) -> None:
        """Raises BadConfigError once the store is on its way elsewhere: what came after the copy would be lost.
        A command that opened the store before learns it here."""
        if key == MOVED:
            return
        row = self._db.execute("SELECT data FROM documents WHERE key = ?", (MOVED,)).fetchone()
        if row is not None:
            to = parse_document(MOVED, 1, row[0]).data["to"]
            raise BadConfigError(
                f"this fleet's store moves to {to}",
                hint=f"tpuctl config init --store {to}, or another place if {to} is lost; then try again",
            )

    def _expect(self, key: str, generation: int) -> None:
        row = self._db.execute("SELECT generation, immutable FROM documents WHERE key = ?", (key,)).fetchone()
        found = 0 if row is None else row[0]
        if row is not None and row[1]:
            raise ConflictError(f"{key} in the store was appended and cannot change")
        if found != generation:
            raise ConflictError(
                f"{key} in the store was changed by another tpuctl",
                details={"key": key, "expected": generation, "found": found},
            )

    def _next(self) -> int:
        """One sequence for generations and appended keys: a key that is deleted and made again never gets an
        old generation back."""
        self._db.execute("UPDATE meta SET value = CAST(value AS INTEGER) + 1 WHERE key = 'sequence'")
        return int(self._db.execute("SELECT value FROM meta WHERE key = 'sequence'").fetchone()[0])

    def _meta(self, key: str) -> str:
        with self._translated():
            row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        if row is None:
            raise TpuctlError(f"{self._path} is not a tpuctl store", hint=f"move {self._path} away")
        return str(row[0])

    def _migrate(self) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version > len(MIGRATIONS):
            raise BadConfigError(
                f"{self._path} was written by a newer tpuctl (schema {version}, known: {len(MIGRATIONS)})",
                hint="pip install --upgrade tpuctl",
            )
        if version == len(MIGRATIONS):
            return
        with self._transaction():
            _apply_migrations(self._db)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._translated():
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk ends it by itself, and it may not have begun
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """One thread at a time, and SQLite's and the file system's errors as ours."""
        with self._mutex:
            try:
                yield
            except sqlite3.OperationalError as error:
                if "locked" in str(error):
                    raise TpuctlError(
                        f"the store {self._path} was locked by another process for {BUSY_TIMEOUT_S:.0f} s",
                        hint=f"see who holds it with `fuser -v {self._path}`",
                    ) from error
                hint = full_disk_hint(str(self._path)) if "full" in str(error) else self._writable_hint(error)
                raise TpuctlError(f"cannot use the store {self._path}: {error}", hint=hint) from error
            except sqlite3.DatabaseError as error:
                raise TpuctlError(
                    f"the store {self._path} is damaged: {error}", hint=f"move {self._path} away"
                ) from error
            except OSError as error:
                hint = self._writable_hint(error)
                raise TpuctlError(f"cannot use the store {self._path}: {error}", hint=hint) from error

    def _writable_hint(self, error: Exception) -> str | None:
        said = str(error).lower().replace("-", "")
        return f"it must be writable: findmnt -T {self._path.parent}" if "readonly" in said else None


def _as_it_is(document: Document) -> Document:
    return document


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA synchronous = FULL")
    return db


def _create(path: Path) -> None:
    """Makes the whole database under a temporary name, then gives it its name if nobody else was faster."""
    import secrets
    import tempfile

    handle, name = tempfile.mkstemp(prefix=".new-", suffix=".sqlite", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        db = _connect(temporary)
        db.execute("BEGIN IMMEDIATE")
        _apply_migrations(db)
        db.execute("INSERT INTO meta VALUES ('identity', ?)", (f"s{secrets.token_hex(5)}",))
        db.execute("COMMIT")
        db.close()
        _name_it(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    write_private(path.parent / "README", README.encode())


def _apply_migrations(db: sqlite3.Connection) -> None:
    """Applies what is missing, inside the caller's transaction."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    for statements in MIGRATIONS[version:]:
        for statement in statements:
            db.execute(statement)
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def _name_it(temporary: Path, path: Path) -> None:
    """A hard link, because unlike rename it does not replace the store that another process just made."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        return


class FileTime:
    """Seconds since the epoch by the clock of the machine that keeps the file `path`, which is made if needed.

    Touching a file over NFS sets the server's time (RFC 1813, `SET_TO_SERVER_TIME`), on a local disk this
    machine's own. Where nothing can be written this machine's clock has to do; nothing is decided there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[float, float] | None = None

    def now(self) -> float:
        """Counted on by a clock that nobody sets: this machine's may be put right at any moment, and a lease
        would look expired."""
        ticks = time.clock_gettime(_TICKS)
        if self._read is None or ticks - self._read[1] > FRESH_S:
            ahead_s = self._measure()
            ticks = time.clock_gettime(_TICKS)
            self._read = (time.time() + ahead_s, ticks)
        at, then = self._read
        return at + ticks - then

    def _measure(self) -> float:
        """How far the clock of the files is ahead of this machine's."""
        try:
            self._path.touch(mode=0o600)
            ahead_s = self._path.stat().st_mtime - time.time()
        except OSError:
            return 0.0
        return ahead_s if abs(ahead_s) > COARSE_S else 0.0
