"""Which programs have a file of some file systems open for writing, of all users and in every mount namespace.

Root runs it (rooted.run_root). Only what the kernel notes of open files is read: a look at the files themselves
may hang, as on a bucket that does not answer.
"""

import os

from base import suppress
from disk_users import text_of
from mount_spaces import processes, table

OURS = ("gcsfuse",)  # its cache may lie on a disk


def main(request):
    """`devices`: `MAJOR:MINOR` of the file systems."""
    wanted = set(request["devices"])
    mounts = {each["id"] for space in table() for each in space["mounts"] or () if each["device"] in wanted}
    return {"writers": sum(writes(pid, mounts) for pid in processes())}


def writes(pid, mounts):
    if text_of(pid, "comm").strip() in OURS:
        return False
    names = []
    with suppress(OSError):  # it has ended meanwhile
        names = os.listdir("/proc/%d/fdinfo" % pid)
    return any(mount_of(text_of(pid, "fdinfo/" + each)) in mounts for each in names)


def mount_of(text):
    """The number of the mount of a file that is open for writing; -1 for another (proc(5), fdinfo)."""
    rows = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    written = int(rows.get("flags", "0"), 8) & os.O_ACCMODE
    return int(rows.get("mnt_id", "-1")) if written else -1
