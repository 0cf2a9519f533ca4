"""`copy`: `serve` or `fetch` under a supervisor, so that contents go from host to host when the client is gone.

Such a copy is an attempt of a run of its own, whose name begins with COPY, and is looked at, stopped and fenced
like all others. Its request may hold a secret, and travels in the environment of its process. What it says goes
to its log, as any output; whoever serves says its secret there, and only the owner may read it.
"""

import os
import sys
import time

import quick_json as json
from base import COPY, ENDED, SCHEMA, Attempt, Refused, make_dir, remove_tree, suppress, write_json
from prepare import SPARE_S, remove_ended
from state import list_attempts, look
from supervisor import launch

VARIABLE = "TPUCTL_COPY"
GRACE_S = 2.0
PORT_WAIT_S = 5.0
TAIL = 4096  # longer than any report but the answer of a fetch that got next to nothing
TOLD = ("bytes", "port", "token", "error", "message")


def copy(request, _stdin):
    """Begins what the request says it `does`, unless that was done; with `anew` also if it has ended since.

    Whoever serves is answered for when it has a port.
    """
    attempt, fence = Attempt(request), request["fence"]
    does, lasts = request["does"], request["deadline_s"]
    if does not in ("serve", "fetch") or not attempt.run.startswith(COPY) or lasts < 1:
        raise Refused("bad-request", "no such copy: %r of %r" % (does, attempt.run))
    attempt.locked()
    attempt.check_fence(fence)
    state = look(attempt)["state"]
    if state in ENDED and request["anew"]:
        remove_tree(attempt.dir)
        state = "absent"
    if state in ("absent", "prepared"):
        remove_old(attempt.run)
        work = make_dir(attempt.path("work"))
        wanted = {"schema": SCHEMA, "bundle": None, "wanted": request["tree"], "fence": fence}
        write_json(attempt.path("prepared.json"), wanted)
        program = os.path.dirname(os.path.abspath(__file__))
        argv = [sys.executable, "-I", "-S", program, "carry", does]
        launch(attempt, fence, [(argv, dict(os.environ, **{VARIABLE: json.dumps(request)}))], work, GRACE_S)
    patience = time.monotonic() + PORT_WAIT_S
    while does == "serve" and look(attempt)["state"] not in ENDED and time.monotonic() < patience:
        if "port" in stands(attempt):
            break
        time.sleep(0.02)
    return stands(attempt)


def remove_old(run):
    """What is left of copies of a run whose lock this process holds: where no runs begin, which remove it, such
    as on hosts that get commands only."""
    for each in list_attempts():
        with suppress(FileNotFoundError):  # a run that begins does the same
            old = each.run == run and time.time() - os.stat(each.dir).st_mtime > SPARE_S
            if old and look(each)["state"] in ENDED:
                remove_ended(each.dir)


def stands(attempt):
    """The state of a copy, and of what it told last what others need."""
    found = {"state": look(attempt)["state"]}
    told = last_report(attempt.path("stdout.log"))
    found.update((key, told[key]) for key in TOLD if key in told)
    return found


def last_report(path):
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            lines = file.read().splitlines(True)
    except FileNotFoundError:
        return {}
    for line in reversed(lines):
        try:
            report = json.loads(line.decode()) if line.endswith(b"\n") else None
        except ValueError:
            continue  # the end of a long line
        if isinstance(report, dict):
            return report
    return {}


def carry(does):
    """What the supervisor runs. A copy that hangs dies of its alarm."""
    import signal

    import relay
    from verbs import answer_request

    request = json.loads(os.environ.pop(VARIABLE))
    signal.alarm(int(request["deadline_s"]))
    return answer_request(lambda: getattr(relay, does)(request, None))
