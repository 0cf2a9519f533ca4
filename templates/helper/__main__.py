"""The host side of tpuctl, run as `python3 -I -S FILE VERB`; Python 3.8 standard library.

Reads one JSON line (the request) and, for `lacks` and `receive`, raw content from stdin. Answers one JSON line
on stdout and exits 0, or `{"error": code, "message": text}` and exits 1; lines with `progress` may come before.
`follow`, `read` and `leash` answer with raw bytes.

It writes below ~/.tpuctl only (directories 0700, files 0600, temp file + fsync + rename). It never writes the
environment of a run, which may hold secrets, to disk or into an argument list, and never signals a process
that does not descend from the supervisor or leash that started it.

A verb's module is imported when it is asked for: this program starts hundreds of times, from source.
"""

import importlib
import json
import sys

from base import Refused, Stdin, answer

MODULES = {
    "activity": "activity",
    "warn": "activity",
    "hello": "hello",
    "prepare": "prepare",
    "lacks": "placing",
    "place": "placing",
    "receive": "contents",
    "serve": "relay",
    "fetch": "relay",
    "start": "supervisor",
    "status": "state",
    "stop": "state",
    "attempts": "state",
    "prune": "cleaning",
    "follow": "streams",
    "read": "streams",
    "leash": "streams",
}


def find_verb(name):
    if name not in MODULES:
        raise Refused("bad-request", "no such verb: %r" % (name,))
    return getattr(importlib.import_module(MODULES[name]), name)


def read_request(stdin):
    try:
        request = json.loads(stdin.line().decode() or "{}")
    except ValueError as error:
        raise Refused("bad-request", "the request is not JSON: %s" % error) from error
    if not isinstance(request, dict):
        raise Refused("bad-request", "the request is not an object")
    return request


def main(arguments):
    stdin = Stdin()
    try:
        verb = find_verb(arguments[0] if arguments else "")
        result = verb(read_request(stdin), stdin)  # None: it answered with raw bytes
        if result is not None:
            answer(result)
        return 0
    except Refused as error:
        answer({"error": error.code, "message": str(error)})
    except BrokenPipeError:
        pass  # the client went away; there is nobody to tell
    except Exception as error:
        # Whatever the operating system does must reach the client as an answer.
        answer({"error": "host-error", "message": "%s: %s" % (type(error).__name__, error)})
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
