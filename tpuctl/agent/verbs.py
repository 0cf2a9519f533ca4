"""The verbs that read a JSON request, one or several with one start of this program.

`hello+attempts` reads `{"calls": [...]}` with a request for each, and answers `{"answers": [...]}`. After a
refusal, which is the last answer then, nothing more is done.
"""

import quick_json as json
from base import answer, need
from client import Refused, Stdin

MODULES = {
    "activity": "activity",
    "copy": "copies",
    "warn": "activity",
    "diagnose": "diagnose",
    "facts": "facts",
    "free_chips": "facts_chips",
    "hello": "hello",
    "bucket_access": "bucket_access",
    "prepare": "prepare",
    "reach": "hello",
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
    "trace": "traces",
    "tree": "sending",
    "usage": "usage",
    "vacate": "vacate",
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
    several = answer_several if "+" in name else answer_one
    return answer_request(lambda: several(name, read_request(stdin), stdin))


def answer_request(body):
    try:
        result = body()  # None: it answered with raw bytes
        if result is not None:
            answer(result)
        return 0
    except BrokenPipeError:
        return 1  # the client went away; there is nobody to tell
    except Exception as error:
        answer(refusal(error))
        return 1


def refusal(error):
    """An answer: whatever the operating system does must reach the client as one."""
    if isinstance(error, Refused):
        return {"error": error.code, "message": str(error)}
    return {"error": "host-error", "message": "%s: %s" % (type(error).__name__, error)}


def answer_one(name, request, stdin):
    return find_verb(name)(request, stdin)


def answer_several(names, request, stdin):
    answers = []
    for name, each in zip(names.split("+"), need(request, "calls", list)):
        try:
            answers.append(answer_one(name, each, stdin))
        except BrokenPipeError:
            raise
        except Exception as error:
            answers.append(refusal(error))
            break
    return {"answers": answers}
