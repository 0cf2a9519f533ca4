"""`status`: how one attempt stands, and what its program shows of itself. Other verbs that look at attempts do
without, and a new host starts a run without compiling it."""

import os
import time

import contained
from base import Attempt, read_json, suppress
from join import compiles, reports
from log_times import streams
from processes import descendants, process_stat
from state import look

MOUNTS = "/var/lib/tpuctl-mounts"  # STATE of buckets.py; most hosts have none, and that is asked every second
QUIET_S = 1.0  # who writes is not held
RECENT_S = 300.0  # a rate over less would fall with each checkpoint
USUAL_LEAST = 10  # minutes before that, without which nothing is usual


def status(request, _stdin):
    """How an attempt stands; with `host`, also what the cloud is about to do with this host."""
    attempt = Attempt(request)
    found = look(attempt)
    said = {"join": reports(attempt), "compiles": compiles(attempt)}
    answer = dict(found, **said, **signs_of_life(attempt, found))
    if os.path.isdir(MOUNTS):
        from buckets import mount_reports

        answer["mounts"] = mount_reports(answer["started_at"])
    if request["host"]:
        from metadata import notices

        answer.update(notices())
    return answer


def rates(marks, now, step):
    """Steps per second in the last minutes, and the median of the minutes before; None where not known."""
    before = [mark for mark in marks if mark[0] <= now - RECENT_S]
    pairs = zip(before, before[1:])
    usual = sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs if b[0] > a[0])
    if len(usual) < USUAL_LEAST:
        return None, None
    at, begin = before[-1]
    return (step - begin) / (now - at), usual[len(usual) // 2]


def signs_of_life(attempt, status):
    """When the program wrote last, whether it is held by a signal, and its step."""
    progress = read_json(attempt.path("progress.json"))
    marks = progress.pop("marks", []) if progress is not None else []
    if progress is not None and "step" in progress:
        recent, usual = rates(marks, time.time(), progress["step"])
        progress.update(recent_rate=recent, usual_rate=usual)
    found = {"progress": progress, "load": os.getloadavg()[0]}
    moments = []
    for name in streams(attempt):
        with suppress(OSError):
            log = os.stat(attempt.path(name + ".log"))
            moments += [log.st_mtime] if log.st_size else []
    found["output_at"] = max(moments) if moments else None
    silent = not moments or time.time() - max(moments) > QUIET_S
    mains = [*([row["pid"] for row in status["processes"]] or [status["pid"]]), *contained.processes(attempt)]
    found["held"] = bool(silent and status["state"] == "running" and any(is_held(pid) for pid in mains if pid))
    return found


def is_held(main):
    """Whether a process of a tree is stopped by a signal, or by a debugger."""
    stats = [process_stat(pid) for pid in (main, *descendants(main))]
    return any(stat is not None and stat[0] in (b"T", b"t") for stat in stats)
