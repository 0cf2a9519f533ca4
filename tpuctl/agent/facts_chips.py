"""The section `chips` of `facts`: how many, and who has them; `free_chips`: what is left there goes."""

import os
import pwd
import time

import lockfile
from activity import CHIP_DEVICES, age_s, chip_holders
from processes import is_alive, signal, signal_all
from secret_masks import mask_by_hashes
from state import list_attempts
from survivors import MARK, environment, living

COMMAND_MAX, READ_MAX = 200, 64 << 10
GRACE_S = 2.0  # from TERM to KILL: nobody looks after these any more


def chips_facts(_request):
    pids, unknown = chip_holders()
    lock = lockfile.look()
    if lock is not None:
        lock["holders"] = described(lock["holders"])
    return {
        "devices": chip_devices(),
        "holders": described(pids),
        "unknown": unknown,
        "lockfile": lock,
    }


def chip_devices():
    found = []
    for prefix in CHIP_DEVICES:
        folder, start = os.path.split(prefix)
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            if name.startswith(start) and name[len(start) :][:1].isdigit():
                found.append(os.path.join(folder, name))
    return sorted(found)


def described(pids):
    return [holder for holder in map(describe, sorted(pids)) if holder]


def describe(pid):
    try:
        user = os.stat("/proc/%d" % pid).st_uid
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            command = file.read(READ_MAX).replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return None  # gone while we looked
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        name = str(user)
    return {
        "pid": pid,
        "user": name,
        "command": mask_by_hashes([command], list_attempts())[0][:COMMAND_MAX],
        "since": time.time() - age_s(pid),
        "left_by": left_by(pid),
    }


def left_by(pid):
    """The run of which a process is, where the supervisor that began it is gone; else nothing."""
    said = dict(line.partition(b"=")[::2] for line in environment(pid))
    who, run = said.get(MARK.encode(), b"").decode(), said.get(b"TPUCTL_RUN_ID", b"").decode(errors="replace")
    number, _, start = who.partition(".")
    if not run or not number.isdigit() or not start.isdigit() or is_alive(int(number), int(start)):
        return ""
    return run


def free_chips(request, _stdin):
    """Ends those of `pids` whose supervisor is gone; with `lock` removes the lock's file if nobody holds it."""
    left = [pid for pid in request.get("pids") or [] if left_by(pid)]
    signal_all(left, signal.SIGTERM)
    until = time.monotonic() + GRACE_S
    while any(map(living, left)) and time.monotonic() < until:
        time.sleep(0.05)
    signal_all([pid for pid in left if living(pid)], signal.SIGKILL)
    why = lockfile.remove() if request.get("lock") else "not asked"
    return {"ended": left, "removed": not why, "why": why}
