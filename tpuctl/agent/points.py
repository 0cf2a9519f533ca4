"""Folders on which something is mounted: checked before, and closed to writers while nothing is mounted there.

A program that writes to such a folder after a reboot would fill the boot disk, and what it wrote would hinder
the next mount. So the folder itself is immutable (chattr(1)), which a mount covers.
"""

import os

from facts_storage import mounts
from operations import Failed

LOOK = "another path, or move what is there"
CLOSE = """close_point() {
    mkdir -p "$1" || return
    chattr +i "$1" 2>/dev/null || echo "open $1"
}
"""
"""Defines a function of sh(1): makes a folder that root alone opens again, and says so where that cannot be."""


def points_facts(request):
    """What stands in the way of something that is to be mounted at each of the `points`. What is mounted there
    already is for others to judge."""
    return [{"path": path, "trouble": trouble(path)[0]} for path in request.get("points") or []]


def check_point(path):
    """Raises Failed where nothing can be mounted at `path`."""
    if os.path.ismount(path):
        mounted = "something else is mounted on %s" % path
        raise Failed(mounted, permanent=True, hint=LOOK, on_host=typed("findmnt", path))
    why, look = trouble(path)
    if why:
        raise Failed(why, permanent=True, hint=LOOK, on_host=typed(look, path))


def trouble(path):
    """(what is wrong, the command that shows it), both empty for nothing."""
    real = os.path.realpath(path)
    if real != path:
        return "%s is %s by a symbolic link" % (path, real), "readlink -f"
    paths = [each["path"] for each in mounts()]
    below = [each for each in paths if each.startswith(path.rstrip("/") + "/") and each != path]
    if below:
        return "%s is mounted below %s" % (below[0], path), "findmnt -R"
    if os.path.ismount(path):
        return "", ""
    if os.path.isdir(path):
        try:
            full = os.listdir(path)
        except OSError:
            full = []  # root's alone: its mount shows
        return ("%s is not empty" % path, "ls -lA") if full else ("", "")
    return ("%s is not a directory" % path, "ls -ld") if os.path.lexists(path) else ("", "")


def left_open(said):
    """Whether a program that used `CLOSE` said that it could not."""
    return any(line.startswith("open ") for line in said.splitlines())


def typed(command, path):
    import shlex

    return "%s %s" % (command, shlex.quote(path))
