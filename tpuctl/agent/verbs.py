"""The verbs that read a JSON request, one or several with one start of this program.

`hello+attempts` reads `{"calls": [...]}` with a request for each, and answers `{"answers": [...]}`. After a
refusal, which is the last answer then, nothing more is done.
"""

import quick_json as json
from base import answer, need
from client import Refused, Stdin
from schema import REQUESTS

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
    "lacks": "lacking",
    "place": "placing",
    "provision": "provision",
    "receive": "contents",
    "survey": "sending",
    "send": "sending",
    "start": "supervisor",
    "stacks": "stacks",
    "status": "status",
    "stop": "state",
    "trace": "traces",
    "tree": "sending",
    "usage": "usage",
    "vacate": "vacate",
    "attempts": "state",
    "follow": "streams",
    "news": "streams",
}


TYPES: dict = {"str": str, "int": int, "float": (int, float), "bool": bool}
"""Of JSON, as the schema names them."""


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
    return find_verb(name)(check_request(name, request), stdin)


def check_request(name, request):
    """What the verb reads: every field of its schema, of its kind. Refused for another request."""
    fields = REQUESTS[name]
    odd = sorted(key for key in request if key not in fields)
    if odd:
        raise Refused("bad-request", "%s is asked %s, which it does not know" % (name, ", ".join(odd)))
    checked = {}
    for key, kind in fields.items():
        if key not in request and len(kind) == 1:
            raise Refused("bad-request", "%r is missing" % key)
        checked[key] = request.get(key, kind[-1])
        if key in request and not fits(request[key], kind[0]):
            raise Refused("bad-request", "%r is not of type %s" % (key, kind[0]))
    return checked


def fits(value, kind):
    """Whether a value is of a kind of the schema."""
    if isinstance(kind, str):
        # A bool is an int for Python alone.
        return kind == "any" or (isinstance(value, TYPES[kind]) and isinstance(value, bool) is (kind == "bool"))
    form, inner = kind
    if form == "maybe":
        return value is None or fits(value, inner)
    if form == "list":
        return isinstance(value, list) and all(fits(each, inner) for each in value)
    if not isinstance(value, dict):
        return False
    if form == "map":
        return all(fits(each, inner) for each in value.values())
    return set(value) == set(inner) and all(fits(value[key], inner[key][0]) for key in inner)


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
