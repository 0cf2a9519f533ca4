"""When a program wrote what of its logs, and the room that those take on the disk.

The program writes straight into its files: it never waits for the supervisor, and goes on without it. The
supervisor looks at their sizes: beside each log stands an index, `OFFSET MILLISECONDS` a line, which says that
what is before the offset had been written by then. A line of it has a fixed width, so that one that a full disk
cut short is known.

What a machine has fetched is taken out of a log that has become long, as a hole at its beginning: offsets stay
what they are, and so does the file that the program writes to.
"""

import os
import time

from base import file_size, read_json, suppress, write_json

STREAMS = ("stdout", "stderr")
STARTED = "started"  # made once, when an attempt begins; says which processes it has here
LOOK_S = 0.2
RATES = ((1 << 20, LOOK_S), (4 << 20, 1.0), (1 << 62, 10.0))
"""Up to which size of an index how many seconds are between two of its lines: after that 225 KB a day."""
KEPT = 64 << 20  # of a log that was fetched, for a person on the host and for a second machine
KEPT_UNFETCHED = 1 << 30  # of one that nobody fetches: a full disk ends the run
PIECE = 8 << 20  # taken out at once
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2  # linux/falloc.h
FETCHED = "fetched.json"
METRICS = "metrics"  # beside the logs: see `columns.py`
WIDTH = 15  # of the number of bytes that were looked through for secrets: see `secret_masks.py`


def streams(attempt):
    """The names of the logs of an attempt: where it has several processes here, `2.stdout` is of its third."""
    with suppress(ValueError):  # caught between creating and writing it: there are none yet
        return (read_json(attempt.path(STARTED)) or {}).get("streams") or STREAMS
    return STREAMS


def read_done(path):
    """How much of a log was looked through; None where there is nothing to look for."""
    try:
        with open(path, "rb") as file:
            return int(file.read(WIDTH) or 0)
    except FileNotFoundError:
        return None


def log_size(attempt, stream):
    """How much of a log may be told."""
    done = read_done(attempt.path(stream + ".masked"))
    size = file_size(attempt.path(stream + ".log"))
    return size if done is None else min(done, size)


class LogTimes:
    """Of the logs of one attempt; the supervisor has it `look` again and again."""

    def __init__(self, attempt):
        self.attempt = attempt
        self.indexes = [Index(attempt, stream) for stream in streams(attempt)]
        self.looked = 0.0

    def look(self, last=False):
        """`last`: the program has ended."""
        now = time.monotonic()
        if now - self.looked < LOOK_S and not last:
            return
        self.looked = now
        for index in self.indexes:
            with suppress(OSError):  # a full disk: the next look writes it
                if index.look(now, last) >= KEPT:
                    shorten(self.attempt, index.stream)


class Index:
    def __init__(self, attempt, stream):
        self.stream = stream
        self.log, self.path = attempt.path(stream + ".log"), attempt.path(stream + ".times")
        self.known = 0
        self.size = 0
        self.wrote = 0.0

    def look(self, now, last):
        """Notes that the log has grown; its size."""
        size = file_size(self.log)
        gap = next(seconds for limit, seconds in RATES if self.size < limit)
        if size == self.known or (now - self.wrote < gap and not last):
            return size
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self.size += os.write(handle, b"%015d %013d\n" % (size, int(time.time() * 1000)))
        finally:
            os.close(handle)
        self.known, self.wrote = size, now
        return size


def cut_of(attempt, stream):
    """Up to which offset a log has been taken away."""
    return int((read_json(attempt.path(stream + ".cut")) or {}).get("offset", 0))


def note_fetched(attempt, stream, offset):
    """A machine has what is before `offset`. Written down now and then, and only of long logs."""
    if offset < KEPT:
        return
    known = read_json(attempt.path(FETCHED)) or {}
    if offset >= known.get(stream, 0) + PIECE:
        with suppress(OSError):
            write_json(attempt.path(FETCHED), dict(known, **{stream: offset}))


def shorten(attempt, stream):
    path = attempt.path(stream + ".log")
    cut = cut_of(attempt, stream)
    fetched = (read_json(attempt.path(FETCHED)) or {}).get(stream, 0)
    until = next_cut(file_size(path), cut, fetched)
    if until > cut:
        handle = os.open(path, os.O_RDWR)
        try:
            # Behind the end of the file nothing is lost: can this file system do it?
            punch(handle, file_size(path) + KEPT_UNFETCHED, PIECE)
            # Written first, so that nobody takes the hole for what the program wrote.
            write_json(attempt.path(stream + ".cut"), {"offset": until})
            punch(handle, 0, until)
        finally:
            os.close(handle)


def next_cut(size, cut, fetched):
    """Up to where a log of `size` may go, in whole pieces: what was fetched except for the last of it, and what
    nobody fetched only where it is too much."""
    until = max(min(fetched, size) - KEPT, size - KEPT_UNFETCHED)
    return max(cut, until - until % PIECE)


def punch(handle, begin, length):
    """fallocate(2); OSError where the file system cannot do that."""
    import ctypes  # only for logs that are long

    libc = ctypes.CDLL(None, use_errno=True)
    mode = ctypes.c_int(FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE)
    if libc.fallocate(handle, mode, ctypes.c_int64(begin), ctypes.c_int64(length)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
