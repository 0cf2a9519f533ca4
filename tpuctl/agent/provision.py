"""`provision`: operations that bring this host to what is asked of it, worked off in order by one job.

A job is an attempt of a run whose name begins with PROVISION: it has a supervisor, a fence and logs like all
others, and lives on when the client is gone. Each operation may be killed at any point and repeated; a job that
ended is begun again with `anew`. There is never a second one beside it.

An operation is {"kind", "title", "parameters"}. Its kind names a function of the module in OPERATIONS, which is
called with the parameters and the `Job`, and raises Failed.
"""

import functools
import importlib
import json
import os
import sys
import time

from base import ENDED, PROVISION, SCHEMA, Attempt, Refused, need, read_json, remove_tree, write_json
from operations import Failed, Job
from prepare import make_prepared, read_bundle
from state import list_attempts, look
from supervisor import launch

OPERATIONS = {
    "run": "operations",
    "install_packages": "packages",
    "mount_disk": "disks",
    "unmount_disk": "disks",
    "hold_disk": "disks",
    "release_disk": "disks",
    "repair_disk": "disks",
    "mount_bucket": "buckets",
    "unmount_bucket": "buckets",
}
GRACE_S = 5.0
FORGET_S = 3600.0  # tries of a job that ended longer ago are not counted with those of today


def provision(request, _stdin):
    """Begins the job, unless that was done; with `anew` also if it has ended since. Answers how it stands,
    or the contents of its `bundle` that are `missing` here."""
    attempt, fence = Attempt(request), need(request, "fence", int)
    operations, lasts = need(request, "operations", list), need(request, "deadline_s", int)
    if not attempt.run.startswith(PROVISION) or not operations or lasts < 1:
        raise Refused("bad-request", "no such job: %r" % attempt.run)
    for operation in operations:
        if not isinstance(operation, dict) or operation.get("kind") not in OPERATIONS:
            raise Refused("bad-request", "no such operation: %r" % (operation,))
    bundle = request.get("bundle")
    entries, missing = read_bundle(bundle)
    if missing:
        return {"missing": missing}
    attempt.locked()
    attempt.check_fence(fence)
    state, tries = look(attempt)["state"], 1
    if state in ENDED and request.get("anew"):
        tries += tries_of(attempt)
        remove_tree(attempt.dir)
        state = "absent"
    if state in ("absent", "prepared"):
        refuse_second(attempt)
        make_prepared(attempt, fence, bundle, entries)
        write_json(
            attempt.path("operations.json"),
            {"schema": SCHEMA, "operations": operations, "deadline_s": lasts, "tries": tries},
        )
        program = os.path.dirname(os.path.abspath(__file__))
        argv = [sys.executable, "-I", "-S", program, "work", attempt.run, attempt.number]
        launch(attempt, fence, argv, dict(os.environ), attempt.path("work"), GRACE_S)
    return stands(attempt)


def tries_of(attempt):
    """How often in a row it was tried until now, as far as that counts yet."""
    ended = look(attempt)["ended_at"]
    recent = ended is None or time.time() - ended < FORGET_S
    return (read_json(attempt.path("operations.json")) or {}).get("tries", 0) if recent else 0


def refuse_second(attempt):
    for other in jobs():
        if other.dir != attempt.dir and look(other)["state"] in ("starting", "running"):
            raise Refused("busy", "%s is at work: %s" % (other.run, stands(other)["doing"]))


def jobs():
    return [attempt for attempt in list_attempts() if attempt.run.startswith(PROVISION)]


def jobs_facts(_request):
    """The jobs that this host knows; a section of `facts`."""
    return [stands(attempt) for attempt in jobs()]


def stands(attempt):
    """The state of a job and how far it has got."""
    found = look(attempt)
    asked = read_json(attempt.path("operations.json")) or {}
    progress = read_json(attempt.path("progress.json")) or {}
    return {
        "run": attempt.run,
        "attempt": attempt.number,
        "state": found["state"],
        "exit_status": found["exit_status"],
        "detail": found["detail"],
        "started_at": found["started_at"],
        "ended_at": found["ended_at"],
        "tries": asked.get("tries", 1),
        "of": len(asked.get("operations") or []),
        "done": progress.get("done", 0),
        "doing": progress.get("doing", ""),
        "failed": progress.get("failed"),
        "results": progress.get("results") or [],
    }


def work(run, number):
    """What the supervisor runs: the operations, one after the other. One that hangs dies of the job's alarm."""
    import signal

    attempt = Attempt({"run": run, "attempt": number})
    with open(attempt.path("operations.json")) as file:
        asked = json.load(file)
    signal.alarm(asked["deadline_s"])
    results: list = []
    progress = {"schema": SCHEMA, "done": 0, "doing": "", "failed": None, "results": results}

    def note(**more):
        progress.update(more)
        write_json(attempt.path("progress.json"), progress)

    for operation in asked["operations"]:
        title = operation.get("title") or operation["kind"]
        note(doing=title)
        sys.stderr.write("%s %s\n" % (time.strftime("%H:%M:%S"), title))
        sys.stderr.flush()
        try:
            perform = getattr(importlib.import_module(OPERATIONS[operation["kind"]]), operation["kind"])
            say = functools.partial(tell, note, title)
            job = Job(attempt.path("work"), attempt.path("stderr.log"), say)
            result = perform(operation.get("parameters") or {}, job)
        except Failed as error:
            note(failed={"title": title, "message": str(error), "permanent": error.permanent})
            return 1
        except Exception as error:
            # Whatever the operating system does must reach whoever looks at the job.
            message = "%s: %s" % (type(error).__name__, error)
            note(failed={"title": title, "message": message, "permanent": False})
            return 1
        results.append(result)
        note(done=len(results))
    note(doing="")
    return 0


def tell(note, title, text):
    """What an operation is at, to whoever looks at the job and to its log."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
    note(doing="%s, %s" % (title, text))
