"""A program that writes to a disk and says over the network what it wrote, for `disk_judge`.

It runs alone, on hosts that have nothing of this project. Each item has a number, and its content follows from
its tag and number. It sends a line for each: `TAG NUMBER r` once its write returned, `TAG NUMBER f` once it was
brought to the disk, and `TAG 0 ERRNO` when a write was refused, which it then tries again.
"""

import argparse
import hashlib
import mmap
import os
import socket
import sqlite3
import struct
import time

RETURNED, SYNCED = "r", "f"
FILES = 5000
"""How many small files are written; then the writer rests."""
SYNC_EVERY = 10
"""Of the kinds that write in both classes, every tenth item is brought to the disk."""
RECORD = 64
MAP_BYTES = 4 << 20
RETRY_S = 0.05


def digest_of(tag, number):
    return hashlib.sha256(f"{tag} {number}".encode()).hexdigest()


def line_of(tag, number):
    return f"{tag} {number} {digest_of(tag, number)}\n".encode()


def content_of(tag, number):
    """Of a small file: from a hundred bytes to some thousands."""
    line = line_of(tag, number)
    return line * (1 + number * 7 % 50)


def record_of(tag, number):
    return digest_of(tag, number).encode()[:RECORD]


def sync_folder(path):
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Writer:
    """Writes items one after the other; keeps its file open in between where it is `holding`."""

    def __init__(self, tag, folder, holding):
        self.tag = tag
        self.folder = folder
        self.holding = holding
        self._open = None

    def path(self, ending):
        return os.path.join(self.folder, f"{self.tag}.{ending}")

    def item(self, number):
        """Writes one; yields the class that it is in after each step."""
        if self._open is None:
            self._open = self.open()
        yield from self.write(self._open, number)
        if not self.holding:
            self.close()

    def close(self):
        opened, self._open = self._open, None
        if opened is not None:
            self.shut(opened)

    def open(self):
        return os.open(self.path("lines"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def shut(self, opened):
        os.close(opened)

    def write(self, opened, number):
        os.write(opened, line_of(self.tag, number))
        yield RETURNED


class Append(Writer):
    """Lines, each brought to the disk."""

    def write(self, opened, number):
        os.write(opened, line_of(self.tag, number))
        os.fsync(opened)
        if number == 1:
            sync_folder(self.folder)
        yield SYNCED


class User(Writer):
    """What a person without rights does: now and then an editor saves."""

    def write(self, opened, number):
        os.write(opened, line_of(self.tag, number))
        yield RETURNED
        if number % SYNC_EVERY == 0:
            os.fsync(opened)
            sync_folder(self.folder)
            yield SYNCED


class Sqlite(Writer):
    """Rows, each a transaction of its own."""

    def open(self):
        database = sqlite3.connect(self.path("db"), timeout=30, isolation_level=None)
        try:
            database.execute("pragma journal_mode=wal")
            database.execute("pragma synchronous=full")
            database.execute("create table if not exists items (number integer primary key, digest text)")
        except sqlite3.Error:
            database.close()
            raise
        return database

    def shut(self, opened):
        opened.close()

    def write(self, opened, number):
        row = number, digest_of(self.tag, number)
        opened.execute("insert or replace into items values (?, ?)", row)
        if number == 1:
            sync_folder(self.folder)
        yield SYNCED


class Rename(Writer):
    """One file that is replaced by its successor, as checkpoints are."""

    def open(self):
        return None

    def shut(self, opened):
        pass

    def write(self, opened, number):
        new = self.path("new")
        with open(new, "wb") as file:
            file.write(line_of(self.tag, number) * 500)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.path("current"))
        yield RETURNED
        sync_folder(self.folder)
        yield SYNCED


class Files(Writer):
    """Many small files."""

    def open(self):
        os.makedirs(self.path("files"), exist_ok=True)

    def shut(self, opened):
        pass

    def write(self, opened, number):
        with open(os.path.join(self.path("files"), f"{number:05d}"), "wb") as file:
            file.write(content_of(self.tag, number))
            file.flush()
            if number % SYNC_EVERY == 0:
                os.fsync(file.fileno())
        if number % SYNC_EVERY == 0:
            sync_folder(self.path("files"))
            sync_folder(self.folder)
            yield SYNCED
        else:
            yield RETURNED


class Mapped(Writer):
    """Records in a file that is mapped into memory."""

    def open(self):
        handle = os.open(self.path("map"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if os.fstat(handle).st_size < MAP_BYTES:
                os.truncate(handle, MAP_BYTES)
                os.posix_fallocate(handle, 0, MAP_BYTES)
                os.fsync(handle)
                sync_folder(self.folder)
            return mmap.mmap(handle, MAP_BYTES)
        finally:
            os.close(handle)

    def shut(self, opened):
        opened.close()

    def write(self, opened, number):
        opened[number * RECORD : (number + 1) * RECORD] = record_of(self.tag, number)
        yield RETURNED
        if number % SYNC_EVERY == 0:
            opened.flush()
            yield SYNCED


KINDS = {
    "append": Append,
    "plain": Writer,
    "sqlite": Sqlite,
    "rename": Rename,
    "files": Files,
    "mmap": Mapped,
    "user": User,
}
LIMITS = {"files": FILES, "mmap": MAP_BYTES // RECORD - 1}


def gateway():
    """Where a host's machine is: its default route, see proc(5)."""
    with open("/proc/net/route") as file:
        for line in file:
            fields = line.split()
            if fields[1] == "00000000":
                return socket.inet_ntoa(struct.pack("<I", int(fields[2], 16)))
    raise SystemExit("this host has no way to its machine")


class Acknowledging:
    """Says what was written; it waits while nobody can be reached, as programs do that wait for an answer."""

    def __init__(self, tag, host, port):
        self._tag = tag
        self._socket = socket.create_connection((host, port), timeout=60)
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def say(self, number, said):
        self._socket.sendall(f"{self._tag} {number} {said}\n".encode())

    def close(self):
        self._socket.close()


def write_all(writer, say, count, pause_s):
    """Items 1 to `count`; what is refused is tried again until it is not."""
    number = 1
    while number <= count:
        try:
            for said in writer.item(number):
                say(number, said)
        except (OSError, sqlite3.Error) as error:
            say(0, str(getattr(error, "errno", None) or type(error).__name__))
            try:
                writer.close()
            except (OSError, sqlite3.Error) as again:
                say(0, type(again).__name__)
            time.sleep(RETRY_S)
            continue
        number += 1
        time.sleep(pause_s)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("folder")
    parser.add_argument("port", type=int)
    parser.add_argument(
        "--to", default="", help="where the judge listens; else the machine that the host is on"
    )
    parser.add_argument("--tag", default="", help="of its files; begins with the kind")
    parser.add_argument("--count", type=int, default=1 << 40)
    parser.add_argument("--pause", type=float, default=0.005)
    parser.add_argument("--hold", action="store_true", help="keep the file open between items")
    parser.add_argument("--stay", action="store_true", help="keep it open after the last one, too, until ended")
    options = parser.parse_args()
    tag = options.tag or options.kind + "-1"
    acknowledging = Acknowledging(tag, options.to or gateway(), options.port)
    writer = KINDS[options.kind](tag, options.folder, options.hold or options.stay)
    count = min(options.count, LIMITS.get(options.kind, options.count))
    acknowledging.say(0, "begun")
    write_all(writer, acknowledging.say, count, options.pause)
    if not options.stay:
        writer.close()
    acknowledging.say(0, "ended")
    while options.stay:
        time.sleep(60)
    acknowledging.close()


if __name__ == "__main__":
    main()
