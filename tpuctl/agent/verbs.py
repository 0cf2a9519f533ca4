"""The verbs that read a JSON request."""

import quick_json as json
from base import answer
from client import Refused, Stdin

MODULES = {
    "activity": "activity",
    "copy": "copies",
    "warn": "activity",
    "diagnose": "diagnose",
    "facts": "facts",
    "free_chips": "facts_chips",
    "hello": "hello",
    "prepare": "prepare",
    "lacks": "placing",
    "place": "placing",
    "provision": "provision",
    "receive": "contents",
    "survey": "sending",
    "send": "sending",
    "serve": "relay",
    "fetch": "relay",
    "start": "supervisor",
    "stacks": "stacks",
    "status": "state",
    "stop": "state",
    "tree": "tree",
    "attempts": "state",
    "follow": "streams",
    "news": "streams",
}


def find_verb(name):
    if name not in MODULES:
        raise Refused("bad-request", "no such verb: %r" % (name,))
    return getattr(__import__(MODULES[name]), name)


def read_request(stdin):
    try:
        request = json.loads(stdin.line().decode() or "{}")
    except ValueError as error:
        raise Refused("bad-request", "the request is not JSON: %s" % error) from error
    if not isinstance(request, dict):
        raise Refused("bad-request", "the request is not an object")
    return request


def answer_verb(name):
    stdin = Stdin()
    return answer_request(name, lambda: read_request(stdin), stdin)


def answer_request(name, ask, stdin):
    try:
        verb = find_verb(name)
        result = verb(ask(), stdin)  # None: it answered with raw bytes
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
