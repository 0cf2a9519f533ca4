"""Which programs have a file of some file systems open for writing, of all users and in every mount namespace.

Root runs it (rooted.run_root). Only what the kernel notes of open files is read: a look at the files themselves
may hang, as on a bucket that does not answer.
"""

import os

from base import suppress

OURS = ("gcsfuse",)  # its cache may lie on a disk


def main(request):
    """`devices`: `MAJOR:MINOR` of the file systems."""
    wanted, found = set(request["devices"]), []
    spaces: dict = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended meanwhile
            if writes(pid, wanted, spaces):
                found.append(int(pid))
    return {"writers": len(found)}


def writes(pid, wanted, spaces):
    folder = "/proc/%s/" % pid
    if read(folder + "comm").strip() in OURS:
        return False
    mounts = {mount_of(read(folder + "fdinfo/" + each)) for each in os.listdir(folder + "fdinfo")}
    mounts.discard("")
    if not mounts:
        return False
    space = os.readlink(folder + "ns/mnt")
    if space not in spaces:
        rows = [line.split(" ", 3) for line in read(folder + "mountinfo").splitlines()]
        spaces[space] = {words[0]: words[2] for words in rows}
    return any(spaces[space].get(each) in wanted for each in mounts)


def mount_of(text):
    """The number of the mount of a file that is open for writing; empty for another (proc(5), fdinfo)."""
    rows = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    written = int(rows.get("flags", "0"), 8) & os.O_ACCMODE
    return rows.get("mnt_id", "") if written else ""


def read(path):
    with open(path) as file:
        return file.read()
