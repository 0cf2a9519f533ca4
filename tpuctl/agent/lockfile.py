"""The file through which libtpu keeps two processes from one host's chips (JAX's advice when it is in the way:
"Run $ sudo rm /tmp/libtpu_lockfile"). Who made it owns it, and libtpu of any other user cannot open it."""

import os

from rooted import as_root, how_root, output_of
from survivors import describe, living

PATH = os.environ.get("TPUCTL_CHIP_LOCK") or "/tmp/libtpu_lockfile"  # hosts that share a machine name their own


def look(path=PATH):
    """Whose it is and who holds it; None where there is none."""
    import pwd

    try:
        found = os.stat(path)
    except OSError:
        return None
    try:
        owner = pwd.getpwuid(found.st_uid).pw_name
    except KeyError:
        owner = "user %d" % found.st_uid
    held = holders(found.st_ino)
    return {
        "path": path,
        "owner": owner,
        "foreign": found.st_uid != os.getuid(),
        "holders": held,
    }


def remove(path=PATH):
    """Removes it, as root and under its own lock; why it stays, or nothing."""
    try:
        held = holders(os.stat(path).st_ino)
    except OSError:
        return ""  # gone meanwhile
    if held:
        return "%s holds it" % describe(held)
    if not how_root():
        return "that needs root"
    if output_of(as_root(["flock", "-n", path, "rm", "-f", path])) is None:
        return "somebody holds it whom this user cannot see"
    return ""


def holders(inode):
    """Processes with a lock on it (proc(5), /proc/locks). By the inode alone: the device there is not that of
    stat where file systems are stacked."""
    found = set()
    try:
        with open("/proc/locks") as file:
            lines = [line.split() for line in file]
    except OSError:
        return []
    for words in lines:
        # NUMBER: FLOCK|POSIX ADVISORY WRITE PID MAJOR:MINOR:INODE START END; waiting ones have "->" after
        # NUMBER.
        if len(words) >= 8 and words[1] != "->" and words[5].rpartition(":")[2] == str(inode):
            found.add(int(words[4]))
    return sorted(pid for pid in found if pid > 0 and living(pid))
