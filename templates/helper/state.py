"""`status`, `stop`, `attempts`: how attempts stand."""

import json
import os
import signal
import time

from base import NAME, SCHEMA, Attempt, file_size, read_json, root, write_json
from processes import boot_id, is_alive, signal_all

STARTING_GRACE_S = 15.0  # marker written, supervisor not heard of: still starting for this long


def look(attempt):
    """The state of an attempt from its files and the process table."""
    answer = {
        "run": attempt.run,
        "attempt": attempt.number,
        "state": "absent",
        "exit_status": None,
        "signal": None,
        "started_at": None,
        "ended_at": None,
        "pid": None,
        "stopped": False,
        "detail": "",
        "survivors": [],
        "stdout_bytes": file_size(attempt.path("stdout.log")),
        "stderr_bytes": file_size(attempt.path("stderr.log")),
        "boot_id": boot_id(),
        "time": time.time(),
    }
    status = read_json(attempt.path("status.json"))
    if status is not None:
        answer.update({key: status[key] for key in answer if key in status and key not in ("boot_id", "time")})
        if answer["state"] != "exited" and not supervisor_alive(status):
            # It may have written its end between the two looks.
            status = read_json(attempt.path("status.json")) or status
            answer.update(
                {key: status[key] for key in ("state", "exit_status", "signal", "ended_at") if key in status}
            )
            if answer["state"] != "exited":
                answer.update(state="lost", detail="the supervisor is gone and left no end")
    elif os.path.exists(attempt.path("started")):
        answer["state"] = "starting" if is_fresh(attempt.path("started")) else "lost"
    elif os.path.exists(attempt.path("prepared.json")):
        answer["state"] = "prepared"
    return answer


def supervisor_alive(status):
    who = status["supervisor"]
    return status["boot_id"] == boot_id() and is_alive(who["pid"], who["start_time"])


def is_fresh(marker):
    try:
        with open(marker) as file:
            same_boot = json.load(file).get("boot_id") == boot_id()
    except ValueError:
        same_boot = True  # caught between creating and writing it
    return same_boot and abs(time.time() - os.stat(marker).st_mtime) < STARTING_GRACE_S


def status(request, _stdin):
    return look(Attempt(request))


def stop(request, _stdin):
    attempt = Attempt(request)
    found = look(attempt)
    if found["state"] in ("prepared", "starting", "running"):
        # The file is the request, so that a supervisor which has not come up yet finds it too.
        write_json(
            attempt.path("stop.json"), {"schema": SCHEMA, "grace_s": float(request.get("grace_s", 30.0))}
        )
        recorded = read_json(attempt.path("status.json"))
        if recorded is not None and supervisor_alive(recorded):
            signal_all([recorded["supervisor"]["pid"]], signal.SIGTERM)
    return found


def list_attempts():
    runs = root("runs")
    for run in sorted(os.listdir(runs)) if os.path.isdir(runs) else []:
        for number in sorted(os.listdir(os.path.join(runs, run))):
            if NAME.match(run) and NAME.match(number) and os.path.isdir(os.path.join(runs, run, number)):
                yield Attempt({"run": run, "attempt": number})


def attempts(_request, _stdin):
    return {"attempts": [look(attempt) for attempt in list_attempts()]}
