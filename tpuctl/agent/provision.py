"""`provision`: operations that bring this host to what is asked of it, worked off in order by one job.

A job is an attempt of a run whose name begins with PROVISION: it has a supervisor, a fence and logs like all
others, and lives on when the client is gone. Each operation may be killed at any point and repeated; a job that
ended is begun again with `anew`. There is never a second one beside it.

An operation is {"kind", "title", "parameters"}. Its kind names a function of the module in OPERATIONS, which is
called with the parameters and the `Job`, and raises Failed.
"""

import os
import sys
import time

from base import ENDED, PROVISION, SCHEMA, Attempt, Refused, read_json, remove_tree, write_json
from jobs import is_going, jobs, stands, wait_for_jobs
from operations import Failed, Job
from prepare import make_prepared, read_bundle
from processes import signal
from state import look
from supervisor import launch

OPERATIONS = {
    "run": "operations",
    "install_packages": "packages",
    "set_hugepages": "packages",
    "mount_disk": "disks",
    "unmount_disk": "disks",
    "hold_disk": "holds",
    "renew_hold": "holds",
    "release_disk": "holds",
    "repair_disk": "disks",
    "grow_disk": "disks",
    "mount_bucket": "buckets",
    "unmount_bucket": "buckets",
    "pull_image": "images",
}
GRACE_S = 5.0
FORGET_S = 3600.0  # tries of a job that ended longer ago are not counted with those of today


def provision(request, _stdin):
    """Begins the job, unless that was done; with `anew` also if it has ended since. Answers how it stands,
    `absent` where not all of its `bundle` is here. With `patience_s` it waits so long for its end, and
    tells then those `sections` of the facts, too: whoever asked has to ask nothing more."""
    attempt, fence = Attempt(request), request["fence"]
    operations, lasts = request["operations"], request["deadline_s"]
    if not attempt.run.startswith(PROVISION) or not operations or lasts < 1:
        raise Refused("bad-request", "no such job: %r" % attempt.run)
    for operation in operations:
        if operation.get("kind") not in OPERATIONS:
            raise Refused("bad-request", "no such operation: %r" % (operation,))
    bundle = request["bundle"]
    entries = read_bundle(bundle)
    if entries is None:
        return {"run": attempt.run, "attempt": attempt.number, "state": "absent"}
    lock = attempt.locked()
    attempt.check_fence(fence)
    state, tries = look(attempt)["state"], 1
    if state in ENDED and request["anew"]:
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
        launch(attempt, fence, [(lambda: work(attempt), dict(os.environ))], attempt.path("work"), GRACE_S)
    os.close(lock)
    if request["patience_s"] and wait_for_jobs([attempt], request):
        from facts import facts

        return dict(stands(attempt), facts=facts(dict(request, patience_s=0), None))
    return stands(attempt)


def tries_of(attempt):
    """How often in a row it was tried until now, as far as that counts yet."""
    found = look(attempt)
    if found["rebooted"] and found["exit_status"] == 0:
        return 0  # it was as asked until this host booted, which undoes every mount
    ended = found["ended_at"]
    recent = ended is None or time.time() - ended < FORGET_S
    return (read_json(attempt.path("operations.json")) or {}).get("tries", 0) if recent else 0


def refuse_second(attempt):
    for other in jobs():
        if other.dir != attempt.dir and is_going(other):
            raise Refused("busy", "%s is at work: %s" % (other.run, stands(other)["doing"]))


def work(attempt):
    """What the supervisor runs: the operations, one after the other. One that hangs dies of the job's alarm."""
    asked = read_json(attempt.path("operations.json"))
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
            perform = getattr(__import__(OPERATIONS[operation["kind"]]), operation["kind"])
            job = Job(attempt.path("work"), attempt.path("stderr.log"), teller(note, title))
            result = perform(operation.get("parameters") or {}, job)
        except Failed as error:
            note(failed=dict(error.told(), title=title))
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


def teller(note, title):
    """Says what an operation is at, to whoever looks at the job and to its log."""

    def say(text):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
        note(doing="%s, %s" % (title, text))

    return say
