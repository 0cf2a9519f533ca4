"""Inspects a store without changing it: does it exist, is it sound, known, ours, free and writable."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from msgspec.structs import replace

from tpuctl.engine.cloud_ports import Objects
from tpuctl.errors import BadConfigError, NotFoundError
from tpuctl.model.facts import StoreFacts
from tpuctl.state.sqlite import MIGRATIONS

LOCK_PATIENCE_S = 1.0
"""Transactions of other commands take milliseconds; who holds on for longer holds up everybody."""


def inspect_store(path: Path) -> StoreFacts:
    """The facts about the store in `path`. Never raises for the state in which it is."""
    disk = os.statvfs(_nearest(path.parent))
    facts = StoreFacts(
        str(path),
        known_schema=len(MIGRATIONS),
        free_bytes=disk.f_bavail * disk.f_frsize,
        read_only=bool(disk.f_flag & os.ST_RDONLY),
    )
    if not path.exists():
        return replace(facts, exists=False, writable=_can_write(_nearest(path.parent)))
    try:
        with closing(_open(path)) as db:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            facts = replace(facts, schema=int(version), damage=_damage(db))
            return facts if facts.damage else _try_to_write(db, facts)
    except sqlite3.DatabaseError as error:
        return _judge(path, facts, error)


def _open(path: Path) -> sqlite3.Connection:
    """Without making it; `rw`, because only a writer can roll back the journal that a crash left behind."""
    uri = f"file:{quote(str(path))}?mode=rw"
    return sqlite3.connect(uri, uri=True, timeout=LOCK_PATIENCE_S, isolation_level=None)


def _damage(db: sqlite3.Connection) -> str:
    found = str(db.execute("PRAGMA quick_check(1)").fetchone()[0])
    if found != "ok":
        return found
    tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not {"meta", "documents"} <= tables:
        return "it holds no tpuctl store"
    named = db.execute("SELECT 1 FROM meta WHERE key = 'identity'").fetchone()
    return "" if named else "it holds the beginning of a store, and no more"


def _try_to_write(db: sqlite3.Connection, facts: StoreFacts) -> StoreFacts:
    """Takes the lock of a writer and gives it back."""
    db.execute("BEGIN IMMEDIATE")
    db.execute("ROLLBACK")
    return replace(facts, writable=_can_write(Path(facts.where)) and _can_write(Path(facts.where).parent))


def _judge(path: Path, facts: StoreFacts, error: sqlite3.DatabaseError) -> StoreFacts:
    text = str(error)
    if "locked" in text:
        return replace(facts, locked=True, holder=find_holder(path))
    if "readonly" in text or "unable to open" in text:
        return replace(facts, writable=False)
    return replace(facts, damage=text)


def _can_write(path: Path) -> bool:
    return os.access(path, os.W_OK)


def _nearest(path: Path) -> Path:
    """The directory itself or the nearest one above that exists."""
    return next(each for each in (path, *path.parents) if each.exists())


def find_holder(path: Path, proc: Path = Path("/proc")) -> str:
    """`COMMAND (pid N)` of a process with a lock on the file, by proc(5)'s locks; empty where that is not told
    (another machine over NFS, another user's namespace)."""
    inode = str(path.stat().st_ino)
    try:
        lines = (proc / "locks").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        words = line.replace("-> ", "").split()
        if len(words) > 5 and words[5].rpartition(":")[2] == inode and words[4] != str(os.getpid()):
            return f"{_command(proc, words[4])} (pid {words[4]})"
    return ""


def _command(proc: Path, pid: str) -> str:
    try:
        words = (proc / pid / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return "a process"
    return " ".join(word.decode(errors="replace") for word in words[:3] if word) or "a process"


def inspect_bucket_store(objects: Objects, uri: str, project: str) -> StoreFacts:
    """The facts about the store at `uri`. Raises for what keeps it from being looked at."""
    from tpuctl.state.bucket import SCHEMA, parse_identity  # who has no bucket does not load it

    place = uri.rstrip("/")
    facts = StoreFacts(place, known_schema=SCHEMA, clock_ahead=_clock_ahead(objects, place))
    try:
        content, _ = objects.read(f"{place}/identity")
        schema, _, theirs = parse_identity(place, content)
    except NotFoundError:
        return replace(facts, exists=False)
    except BadConfigError as error:
        return replace(facts, damage=error.message)
    foreign = "" if theirs in (None, project) else theirs
    return replace(facts, schema=schema, foreign_project=foreign or "")


def _clock_ahead(objects: Objects, uri: str) -> float:
    """The server tells whole seconds, cut off; half of the way there and back is taken off."""
    before = time.time()
    served = objects.server_time(uri.split("/")[2])
    return served + 0.5 - (before + time.time()) / 2
