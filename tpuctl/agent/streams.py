"""`follow` and `news`: the logs of an attempt as raw output to the client."""

import json
import os
import select
import time

from base import POLL_S, Attempt, write_all
from client import Lifeline
from state import look

EXIT_NOTHING_TO_FOLLOW = 98


def follow(request, _stdin):
    attempt = Attempt(request)
    held = request.get("silence_s")
    lifeline = Lifeline(float(held)) if held else None
    logs = [
        [1, attempt.path("stdout.log"), int(request.get("stdout_offset", 0))],
        [2, attempt.path("stderr.log"), int(request.get("stderr_offset", 0))],
    ]
    while True:
        state = look(attempt)["state"]
        moved = sum(deliver(log) for log in logs)
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


def deliver(log):
    """Copies what was added to a log; returns the number of bytes."""
    handle, path, offset = log
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.read(1 << 18)
    except FileNotFoundError:
        return 0
    write_all(handle, data)
    log[2] += len(data)
    return len(data)


def news(request, _stdin):
    """What both logs have behind the offsets, at most `limit` bytes: a line that says how much of each, and
    whether there may be more, then the bytes."""
    attempt, limit = Attempt(request), int(request.get("limit", 1 << 20))
    found, data = {}, b""
    for stream in ("stdout", "stderr"):
        part = read_part(attempt.path(stream + ".log"), int(request.get(stream + "_offset", 0)), limit)
        limit -= len(part)
        found[stream] = len(part)
        data += part
    write_all(1, (json.dumps({"news": found, "more": limit <= 0}) + "\n").encode() + data)


def read_part(path, offset, limit):
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(limit)
    except FileNotFoundError:
        return b""
