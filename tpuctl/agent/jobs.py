"""Provisioning jobs (see `provision.py`) as they are told: a section of `facts`, which is asked for often and
so imports little."""

import time

from base import PROVISION, read_json
from state import list_attempts, look

LOOK_FIRST_S, LOOK_MAX_S = 0.02, 0.2
PATIENCE_MAX_S = 15.0
"""A step takes 20 s at most."""


def jobs():
    return [attempt for attempt in list_attempts() if attempt.run.startswith(PROVISION)]


def jobs_facts(_request):
    """The jobs that this host knows; a section of `facts`."""
    return [stands(attempt) for attempt in jobs()]


def is_going(attempt):
    return look(attempt)["state"] in ("starting", "running")


def wait_for_jobs(attempts, request):
    """Waits for the end of all of them, `patience_s` seconds at most; whether it came."""
    until = time.monotonic() + min(PATIENCE_MAX_S, float(request["patience_s"]))
    pause = LOOK_FIRST_S
    while True:
        attempts = [attempt for attempt in attempts if is_going(attempt)]
        if not attempts or time.monotonic() >= until:
            return not attempts
        time.sleep(pause)
        pause = min(LOOK_MAX_S, pause * 1.5)


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
