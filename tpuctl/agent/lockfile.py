"""The lock file with which libtpu keeps a second process off a host's chips (if it is in the way, JAX advises:
"Run $ sudo rm /tmp/libtpu_lockfile"). Its creator owns it, and another user's libtpu cannot open it."""

import os

from rooted import as_root, how_root, output_of
from survivors import describe, living

PATH = os.environ.get("TPUCTL_CHIP_LOCK") or "/tmp/libtpu_lockfile"  # hosts that share a machine name their own


def look(path=PATH):
    """Its owner and its holders; None if there is no file."""
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
    """Removes it, as root and under its own lock; returns why it stays, or nothing."""
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
    """Processes with a lock on it (proc(5), /proc/locks). Compares only the inode: on stacked file systems the
    device there is not that of stat."""
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
