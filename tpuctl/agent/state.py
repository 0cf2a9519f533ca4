"""`stop`, `attempts`: how attempts stand."""

import os
import time

import quick_json as json
import survivors
from base import SCHEMA, Attempt, is_name, read_end, read_json, root, suppress, write_json
from log_times import STARTED, STREAMS, cut_of, log_size, streams
from processes import boot_id, is_alive, signal, signal_all

MEMBERS = "members"  # the folder of what `member.py` tells
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
        "stop_asked": os.path.exists(attempt.path("stop.json")),
        "rebooted": False,
        "detail": "",
        "survivors": [],
        "oom_kills": 0,
        "processes": [],
        "process": None,
        **sizes(attempt),
        "stdout_cut": cut_of(attempt, "stdout"),
        "stderr_cut": cut_of(attempt, "stderr"),
        "disk_free_bytes": free_bytes(),
        "boot_id": boot_id(),
        "time": time.time(),
    }
    status = read_status(attempt)
    if status is not None:
        take(answer, status)
        answer["rebooted"] = status["boot_id"] != boot_id()
        if answer["state"] != "exited" and not supervisor_alive(status):
            # It may have written its end between the two looks.
            status = read_status(attempt) or status
            take(answer, status)
            if answer["state"] != "exited":
                answer.update(state="lost", detail="the supervisor is gone and left no end")
                # What its program wrote is told as far as its secrets are still known.
                import secret_files
                from secret_masks import finish

                finish(attempt, secret_files.read(survivors.mark_of(status["supervisor"])))
                answer.update(sizes(attempt))
        if not answer["rebooted"]:
            name_survivors(attempt, answer, status)
        answer["processes"] = members(attempt) or answer["processes"]
    elif os.path.exists(attempt.path(STARTED)):
        answer["state"] = "starting" if is_fresh(attempt.path(STARTED)) else "lost"
    elif os.path.exists(attempt.path("prepared.json")):
        answer["state"] = "prepared"
    return answer


def sizes(attempt):
    """How much may be told of what all processes wrote."""
    names = streams(attempt)
    return {
        kind + "_bytes": sum(log_size(attempt, name) for name in names if name.endswith(kind))
        for kind in STREAMS
    }


ENDS = ("state", "exit_status", "signal", "started_at", "ended_at")
TOLD = (*ENDS, "pid", "stopped", "detail", "oom_kills", "processes", "process")


def take(answer, status):
    answer.update({key: status[key] for key in TOLD if key in status})


def members(attempt):
    """How the processes below torchrun stand, as `member.py` wrote it; None where there are none."""
    folder = attempt.path(MEMBERS)
    if not os.path.isdir(folder):
        return None
    numbers = sorted(int(name[:-5]) for name in os.listdir(folder) if name.endswith(".json"))
    return [read_json(os.path.join(folder, "%d.json" % number)) for number in numbers]


def read_status(attempt):
    """What the supervisor wrote down, its end also where that did not fit on the disk any more."""
    status = read_json(attempt.path("status.json"))
    end = read_end(attempt.path("end.json"))
    return end if end is not None else status


def name_survivors(attempt, answer, status):
    """What lives on without a supervisor, or although it was stopped."""
    pids = []
    if answer["state"] == "lost":
        pids = survivors.left_alone(attempt, status)
    elif answer["state"] == "exited":
        pids = survivors.still_alive(status.get("left") or [])
    if pids:
        answer.update(survivors=pids, survivors_said=survivors.describe(pids))


def free_bytes():
    """What a user may still write into the home directory."""
    space = os.statvfs(os.path.expanduser("~"))
    return space.f_bavail * space.f_frsize


def supervisor_alive(status):
    who = status["supervisor"]
    return status["boot_id"] == boot_id() and is_alive(who["pid"], who["start_time"])


def is_fresh(marker):
    try:
        with open(marker) as file:
            same_boot = json.loads(file.read()).get("boot_id") == boot_id()
    except ValueError:
        same_boot = True  # caught between creating and writing it
    return same_boot and abs(time.time() - os.stat(marker).st_mtime) < STARTING_GRACE_S


def stop(request, _stdin):
    attempt, grace = Attempt(request), request["grace_s"]
    found = look(attempt)
    if found["state"] in ("prepared", "starting", "running"):
        # The file is the request, so that a supervisor which has not come up yet finds it too. One that has is
        # told by a signal as well: the disk may be full.
        recorded = read_json(attempt.path("status.json"))
        told = recorded is not None and supervisor_alive(recorded)
        with suppress(OSError) if told else suppress():
            write_json(attempt.path("stop.json"), {"schema": SCHEMA, "grace_s": grace})
        if told:
            signal_all([recorded["supervisor"]["pid"]], signal.SIGTERM)
    elif found["survivors"]:
        survivors.end(attempt, found["survivors"], grace)
    return found


def list_attempts():
    runs = root("runs")
    for run in sorted(os.listdir(runs)) if os.path.isdir(runs) else []:
        for number in sorted(os.listdir(os.path.join(runs, run))):
            if is_name(run) and is_name(number) and os.path.isdir(os.path.join(runs, run, number)):
                yield Attempt({"run": run, "attempt": number})


def attempts(_request, _stdin):
    return {"attempts": [look(attempt) for attempt in list_attempts()]}
