"""The section `chips` of `facts`: how many there are and who has them; `free_chips` ends leftover processes."""

import errno
import os
import pwd
import time

import lockfile
from activity import CHIP_DEVICES, age_s, chip_holders
from processes import environment, is_alive, proc_text, signal, signal_all
from survivors import MARK, living

COMMAND_MAX, READ_MAX = 200, 64 << 10
GRACE_S = 2.0  # from TERM to KILL: nobody looks after these any more


def chips_facts(request):
    """With `claim` (chip numbers, or none for all), also which of these chips cannot be opened."""
    holding, unknown = chip_holders()
    lock = lockfile.look()
    if lock is not None:
        lock["holders"] = described(dict.fromkeys(lock["holders"], ()))
    devices, claim = chip_devices(), request.get("claim")
    mine = [device for index, device in enumerate(devices) if claim is not None and index in (claim or [index])]
    return {
        "devices": devices,
        "holders": described(holding),
        "unknown": unknown,
        "lockfile": lock,
        "busy": [device for device in mine if is_busy(device)],
    }


def is_busy(device):
    """Whether the kernel has not released a chip yet, which takes up to half a minute after its process was
    killed. Call it only while nobody else wants the chip, because it opens the chip for a moment."""
    try:
        os.close(os.open(device, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return error.errno == errno.EBUSY  # any other reason is for the program to say
    return False


def number_of(device):
    return int("".join(filter(str.isdigit, os.path.basename(device))))


def chip_devices():
    """The device files, in the order of the chip numbers that programs use."""
    found = []
    for prefix in CHIP_DEVICES:
        folder, start = os.path.split(prefix)
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            if name.startswith(start) and name[len(start) :][:1].isdigit():
                found.append(os.path.join(folder, name))
    return sorted(found, key=number_of)


def described(holding):
    """Describes processes, each with its devices."""
    return [holder for holder in (describe(pid, holding[pid]) for pid in sorted(holding)) if holder]


def describe(pid, devices=()):
    try:
        user = os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return None  # gone while we looked
    command = proc_text(pid, "cmdline")[:READ_MAX].replace("\0", " ").strip()
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        name = str(user)
    from secret_masks import mask_by_hashes
    from state import list_attempts

    return {
        "pid": pid,
        "user": name,
        "command": mask_by_hashes([command], list_attempts())[0][:COMMAND_MAX],
        "since": time.time() - age_s(pid),
        "left_by": left_by(pid),
        "run": run_of(pid)[0],
        "devices": sorted(devices),
    }


def run_of(pid):
    """The run of a process, and the supervisor that started it, as pid and start time."""
    said = dict(line.partition(b"=")[::2] for line in environment(pid))
    who, run = said.get(MARK.encode(), b"").decode(), said.get(b"TPUCTL_RUN_ID", b"").decode(errors="replace")
    number, _, start = who.partition(".")
    return (run, int(number), int(start)) if run and number.isdigit() and start.isdigit() else ("", 0, 0)


def left_by(pid):
    """The run of a process whose supervisor is gone; otherwise nothing."""
    run, number, start = run_of(pid)
    return "" if is_alive(number, start) else run


def free_chips(request, _stdin):
    """Ends those of `pids` whose supervisor is gone; with `lock`, removes the lock file if nobody holds it."""
    left = [pid for pid in request["pids"] if left_by(pid)]
    signal_all(left, signal.SIGTERM)
    until = time.monotonic() + GRACE_S
    while any(map(living, left)) and time.monotonic() < until:
        time.sleep(0.05)
    signal_all([pid for pid in left if living(pid)], signal.SIGKILL)
    why = lockfile.remove() if request["lock"] else "not asked"
    return {"ended": left, "removed": not why, "why": why}
