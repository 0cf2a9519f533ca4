"""The state of provisioning jobs (see `provision.py`): a section of `facts` that is requested often and so
imports little."""

import time

from base import PROVISION, read_json
from state import list_attempts, look

LOOK_FIRST_S, LOOK_MAX_S = 0.02, 0.2
PATIENCE_MAX_S = 15.0
"""Because a step takes at most 20 s."""


def jobs():
    return [attempt for attempt in list_attempts() if attempt.run.startswith(PROVISION)]


def jobs_facts(_request):
    """The jobs on this host; a section of `facts`."""
    return [stands(attempt) for attempt in jobs()]


def is_going(attempt):
    return look(attempt)["state"] in ("starting", "running")


def wait_for_jobs(attempts, request):
    """Waits at most `patience_s` seconds for all of them to end; returns whether they did."""
    until = time.monotonic() + min(PATIENCE_MAX_S, float(request["patience_s"]))
    pause = LOOK_FIRST_S
    while True:
        attempts = [attempt for attempt in attempts if is_going(attempt)]
        if not attempts or time.monotonic() >= until:
            return not attempts
        time.sleep(pause)
        pause = min(LOOK_MAX_S, pause * 1.5)


def stands(attempt):
    """The state and progress of a job."""
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
