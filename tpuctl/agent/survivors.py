"""Processes of an attempt that nobody watches any more: of a supervisor that died alone, or out of its reach.

They are found by the number and start time of the main process and of its descendants, and by a mark that the
supervisor put into the environment of its program, which also those keep whose parents have gone.
"""

import os
import time

import contained
from base import SCHEMA, read_json, write_json
from processes import (
    descendants,
    environment,
    is_alive,
    pids,
    proc_text,
    process_stat,
    read_proc,
    signal,
    signal_all,
)

MARK = "TPUCTL_SUPERVISOR"
HOST_MARK = "TPUCTL_HOST_MARK"
HOLDER = "tpuctl-hold"  # an argument of what holds a file system (see `freeze.py`)
NAMED = 8


def mark_of(supervisor):
    """The value of MARK: there is no second process with this number and start time."""
    return "%d.%d" % (supervisor["pid"], supervisor["start_time"])


def left_alone(attempt, status):
    """What lives of an attempt whose supervisor is gone."""
    found, main = set(contained.processes(attempt)), status.get("pid")
    if main and is_alive(main, status.get("start_time")):
        found.add(main)
    wanted = ("%s=%s" % (MARK, mark_of(status["supervisor"]))).encode()
    found.update(pid for pid in pids() if wanted in environment(pid))
    for pid in list(found):
        found |= descendants(pid)
    return sorted(pid for pid in found if pid != os.getpid() and living(pid) and not is_holder(pid))


def is_ours(pid):
    """Whether a process is of this host: hosts that share a machine tell theirs apart by a mark, which all have
    that a login began."""
    mark = os.environ.get(HOST_MARK)
    return not mark or ("%s=%s" % (HOST_MARK, mark)).encode() in environment(pid)


def living(pid):
    found = process_stat(pid)
    return found is not None and found[0] not in (b"Z", b"X")


def is_holder(pid):
    """Whether a process is one that holds a file system. Nobody but root can make one look so."""
    try:
        words = read_proc(pid, "cmdline").split(b"\0")
        return words[7:8] == [HOLDER.encode()] and os.stat("/proc/%d" % pid).st_uid == 0
    except OSError:
        return False  # gone meanwhile


def still_alive(left):
    """Those of the [number, start time] that a supervisor could not end and that live yet."""
    return sorted(pid for pid, start in left if is_alive(pid, start))


def describe(found):
    """Number, name and user of some of them, for a person."""
    return ", ".join("%d %s" % (pid, name_of(pid)) for pid in found[:NAMED])


def name_of(pid):
    import pwd

    try:
        user = os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return "(gone)"
    name = proc_text(pid, "comm").strip()
    try:
        return "%s of %s" % (name, pwd.getpwuid(user).pw_name)
    except KeyError:
        return "%s of user %d" % (name, user)


def end(attempt, left, grace):
    """TERM at the first call, KILL at calls after the grace period: whoever wants them gone asks again."""
    path = attempt.path("stop.json")
    since = (read_json(path) or {}).get("since")
    if since is None:
        try:
            write_json(path, {"schema": SCHEMA, "grace_s": grace, "since": time.monotonic()})
        except OSError:
            grace = 0.0  # a full disk: nobody could tell later when it began
        since = time.monotonic()
        if contained.is_contained(attempt):
            contained.terminate(attempt, contained.processes(attempt))
        else:
            signal_all(left, signal.SIGTERM)
    if time.monotonic() - since >= grace:
        if contained.is_contained(attempt):
            import containers

            containers.remove(attempt)
        signal_all(left, signal.SIGKILL)
