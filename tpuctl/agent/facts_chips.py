"""The section `chips` of `facts`: how many there are, and who has them."""

import glob
import os
import pwd
import time

import lockfile
from activity import CHIP_DEVICES, age_s, chip_holders

COMMAND_MAX = 200


def chips_facts(_request):
    pids, unknown = chip_holders()
    return {
        "devices": sorted(path for prefix in CHIP_DEVICES for path in glob.glob(prefix + "[0-9]*")),
        "holders": [holder for holder in map(describe, sorted(pids)) if holder],
        "unknown": unknown,
        "lockfile": lockfile.look(),
    }


def describe(pid):
    try:
        user = os.stat("/proc/%d" % pid).st_uid
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            command = file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return None  # gone while we looked
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        name = str(user)
    return {"pid": pid, "user": name, "command": command[:COMMAND_MAX], "since": time.time() - age_s(pid)}
