"""`session`: a command that dies with its client.

Its request is not JSON, whose import takes as long as the start of Python. It is a line with the number of
bytes that follow, and these are words, each ended by a NUL, which no argument or variable can hold: grace and
silence in seconds, working directory (may be empty), name of the pipe that brings standard input (may be empty:
see `feed.py`), text for the login shell (if there are no arguments), number of arguments, the arguments, and
NAME=VALUE for each variable.
"""

import os

from client import Lifeline, Refused, Stdin, write_all
from processes import Tree, not_started, signal, split_status


def session():
    try:
        grace, lifeline, cwd, pipe, argv, env = read_request(Stdin())
    except (Refused, ValueError) as error:
        write_all(2, os.fsencode("tpuctl: the request arrived damaged: %s\n" % error))
        return 1
    tree = Tree()

    def wait(handle=None):
        """Until the command or its client is gone, or `handle` has something to read; whether that is so."""
        handles = [0] if handle is None else [0, handle]
        while not tree.ends and not tree.asked_to_stop and not lifeline.is_cut():
            ready = tree.wait(min(1.0, lifeline.silence), handles)
            if 0 in ready:
                lifeline.listen()
            if handle in ready:
                return True
        return False

    try:
        stdin = None
        if pipe:
            from feed import open_pipe

            stdin = open_pipe(pipe, wait)
            if stdin is None:
                os._exit(128 + signal.SIGKILL)
        tree.spawn(argv, env, cwd, None, None, stdin)
        if stdin is not None:
            os.close(stdin)  # with the command's, the last: who feeds it learns that nobody reads any more
    except OSError as error:
        write_all(2, b"tpuctl: cannot run %s: %s\n" % (argv[0], os.fsencode(str(error.strerror))))
        os._exit(not_started(error))
    wait()
    tree.end_all(lambda: grace)
    tree.reap()
    code, number = split_status(tree.ends[0][0]) if tree.ends else (None, signal.SIGKILL)
    os._exit(128 + number if code is None else code)


def read_request(stdin):
    """Grace, lifeline, working directory, pipe, arguments, variables. Refused or ValueError if it is none."""
    body = b"".join(stdin.exactly(int(stdin.line())))
    grace, silence, cwd, pipe, text, count, *words = body.split(b"\0")[:-1]
    number = int(count)
    argv = words[:number] or [os.fsencode(os.environ.get("SHELL") or "/bin/sh"), b"-c", text]
    env = dict(os.environb)
    env.update((name, value) for name, value in (word.split(b"=", 1) for word in words[number:]))
    return float(grace), Lifeline(float(silence)), cwd, pipe.decode(), argv, env
