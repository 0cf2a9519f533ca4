"""`follow` and `news`: the logs of an attempt as raw output to the client."""

import os
import select
import time

import quick_json as json
from base import POLL_S, Attempt, write_all
from client import Lifeline
from log_times import METRICS, cut_of, log_size, note_fetched, streams
from state import look

EXIT_NOTHING_TO_FOLLOW = 98
TIMES_MAX = 1 << 20  # of an index in one answer
PACKED = 1 << 15  # so long answers are compressed: unpacking costs the client less than ssh does


def follow(request, _stdin):
    attempt = Attempt(request)
    held, offsets = request["silence_s"], request["offsets"]
    lifeline = Lifeline(held) if held else None
    logs = [[1, "stdout", offsets.get("stdout", 0)], [2, "stderr", offsets.get("stderr", 0)]]
    while True:
        state = look(attempt)["state"]
        moved = sum(deliver(attempt, log) for log in logs)
        if state in ("absent", "lost") and not moved:
            os._exit(EXIT_NOTHING_TO_FOLLOW)
        if state == "exited" and not moved:
            return
        if lifeline is None:
            time.sleep(0 if moved else POLL_S)
        else:
            if select.select([0], [], [], 0 if moved else POLL_S)[0]:
                lifeline.listen()
            if lifeline.is_cut():
                return


def deliver(attempt, log):
    """Copies what was added to a log; returns the number of bytes. None of one whose next bytes are gone: the
    client, which sees that in the status, asks `news` first."""
    handle, stream, offset = log
    data = read_told(attempt, stream, offset, 1 << 18)
    if not data or cut_of(attempt, stream) > offset:
        return 0
    write_all(handle, data)
    log[2] += len(data)
    note_fetched(attempt, stream, offset)
    return len(data)


def news(request, _stdin):
    """What the logs have behind the offsets, at most `limit` bytes: a line that says how much of each, and
    whether there may be more, then the bytes, all as one raw deflate stream where the line has `packed`.
    `skipped`: so much before them was taken away.

    Whoever gives offsets of their indexes (see `log_times.py`) or of the file of metrics (see `columns.py`) is
    told what is behind those, too, after the logs; with `times_only` only that.
    """
    attempt, offsets, limit = Attempt(request), request["offsets"], request["limit"]
    found, skipped, times, data, known = {}, {}, {}, b"", streams(attempt)
    for stream in known if not request["times_only"] else ():
        skipped[stream], part = read_log(attempt, stream, offsets.get(stream, 0), limit)
        limit -= len(part)
        found[stream] = len(part)
        data += part
    more = limit <= 0
    beside = [(stream, stream + "_times", stream + ".times") for stream in known]
    for name, asked, file in (*beside, (METRICS, METRICS, METRICS)):
        offset = offsets.get(asked)
        if offset is not None:
            part = read_part(attempt.path(file), offset, TIMES_MAX)
            more = more or len(part) == TIMES_MAX
            times[name] = len(part)
            data += part
    told = {"news": {stream: found.get(stream, 0) for stream in known}, "more": more}
    told.update(times=times, skipped={stream: count for stream, count in skipped.items() if count})
    if len(data) >= PACKED:
        import zlib  # only for answers that are long

        # Without zlib's own sum of the content, a tenth of what unpacking costs: ssh has a better one.
        deflate = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
        told["packed"], data = True, deflate.compress(data) + deflate.flush()
    write_all(1, (json.dumps(told) + "\n").encode() + data)


def read_log(attempt, stream, offset, limit):
    """How many bytes behind `offset` are gone, and what comes behind those."""
    note_fetched(attempt, stream, offset)
    while True:
        begin = max(offset, cut_of(attempt, stream))
        part = read_told(attempt, stream, begin, limit)
        if cut_of(attempt, stream) <= begin:  # not taken away while it was read
            return begin - offset, part


def read_told(attempt, stream, offset, limit):
    """Of a log, what may be told."""
    return read_part(
        attempt.path(stream + ".log"), offset, max(0, min(limit, log_size(attempt, stream) - offset))
    )


def read_part(path, offset, limit):
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(limit)
    except FileNotFoundError:
        return b""
