"""`follow`, `read`, `leash`: raw output to the client, and commands that die with it."""

import os
import select
import signal
import time

from base import POLL_S, Attempt, Refused, need, write_all
from processes import Tree, not_started, split_status
from state import look

EXIT_NOTHING_TO_FOLLOW = 98


class Lifeline:
    """The client's heartbeat on stdin: dead after end of file or `silence` seconds without a byte."""

    def __init__(self, silence):
        self.silence = silence
        self.heard = time.monotonic()
        self.ended = False

    def listen(self):
        if not os.read(0, 65536):
            self.ended = True
        self.heard = time.monotonic()

    def is_cut(self):
        return self.ended or time.monotonic() - self.heard > self.silence


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


def read(request, _stdin):
    attempt, stream = Attempt(request), request.get("stream")
    if stream not in ("stdout", "stderr"):
        raise Refused("bad-request", "stream must be stdout or stderr, not %r" % (stream,))
    limit = int(request.get("limit", 1 << 20))
    try:
        with open(attempt.path(stream + ".log"), "rb") as file:
            file.seek(int(request.get("offset", 0)))
            while limit > 0:
                data = file.read(min(limit, 1 << 20))
                if not data:
                    break
                limit -= len(data)
                write_all(1, data)
    except FileNotFoundError:
        raise Refused("absent", "no such log on this host") from None


def leash(request, _stdin):
    argv = request.get("argv")
    if not argv:
        argv = [os.environ.get("SHELL") or "/bin/sh", "-c", need(request, "shell", str)]
    env = dict(os.environ)
    env.update({str(key): str(value) for key, value in (request.get("env") or {}).items()})
    grace, lifeline = float(request.get("grace_s", 2.0)), Lifeline(float(request.get("silence_s", 15.0)))
    tree = Tree()
    try:
        tree.spawn(argv, env, request.get("cwd") or None, None, None)
    except OSError as error:
        write_all(2, os.fsencode("tpuctl: cannot run %s: %s\n" % (argv[0], error.strerror)))
        os._exit(not_started(error))
    while tree.main_status is None and not tree.asked_to_stop and not lifeline.is_cut():
        if 0 in tree.wait(min(1.0, lifeline.silence), [0]):
            lifeline.listen()
    tree.end_all(lambda: grace)
    tree.reap()
    code, number = split_status(tree.main_status) if tree.main_status is not None else (None, signal.SIGKILL)
    os._exit(code if number is None else 128 + number)
