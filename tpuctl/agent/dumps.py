"""Dumps of `--debug`: a folder for each process of an attempt, and how much of the disk they may take.

Compilers number what they dump from 0 in each process, so two in one folder would write over each other. What
they write is not theirs to bound: the supervisor removes the oldest files where it becomes too much.
"""

import os
import time

from base import DUMPS, Refused, make_dir, read_json, suppress, write_json

PLACE = "{dumps}"
VARIABLE = "TPUCTL_DUMPS"  # as in `member.py`
LAUNCHER = "launcher"  # torchrun, which starts the processes of a host; `member.py` gives each its own folder
REMOVED = "removed.json"
MOST = 4 << 30
SHARE = 4  # of what is free, dumps take one part in so many
LEFT_OF_LIMIT = 0.8  # so that not each look removes files
LOOK_S = 10.0
BLOCK = 512  # of st_blocks, whatever the disk has (stat(2))


def given(attempt, asked, begun, joined):
    """The (arguments, variables) of each process, with what `--debug` adds; `joined`: it is one, torchrun,
    which starts the others. Refused for a flag that the login of this host sets otherwise."""
    rows = []
    for number, (argv, environment) in enumerate(begun):
        folder = make_dir(os.path.join(attempt.path(DUMPS), LAUNCHER if joined else str(number)))
        more = {name: text.replace(PLACE, folder) for name, text in (asked.get("set") or {}).items()}
        for name, flags in (asked.get("append") or {}).items():
            more[name] = appended(name, environment.get(name, ""), [f.replace(PLACE, folder) for f in flags])
        rows.append((argv, dict(environment, **dict(more, **{VARIABLE: folder}))))
    return rows


def appended(name, own, flags):
    """The value of a variable with more flags behind those that it has."""
    words = {word.partition("=")[0]: word for word in own.split()}
    for flag in flags:
        there = words.get(flag.partition("=")[0], flag)
        if there != flag:
            said = "%s of this host's login has %s, and --debug %s" % (name, there, flag)
            raise Refused("contradiction", said + ": take it out there, or leave out --debug")
    more = [flag for flag in flags if flag.partition("=")[0] not in words]
    return " ".join([own, *more]).strip()


class Bound:
    """Keeps the dumps of an attempt within their limit; `look` is called again and again."""

    def __init__(self, attempt):
        self.folder = attempt.path(DUMPS)
        self.next = 0.0

    def look(self, last=False):
        now = time.monotonic()
        if now < self.next and not last:
            return
        self.next = now + LOOK_S
        with suppress(OSError):  # the next look tries again
            self.remove_oldest()

    def remove_oldest(self):
        note = os.path.join(self.folder, REMOVED)
        found = [row for row in files_below(self.folder) if row[2] != note]
        used, space = sum(size for _, size, _ in found), os.statvfs(self.folder)
        limit = min(MOST, (used + space.f_bavail * space.f_frsize) // SHARE)
        if used <= limit:
            return
        said = read_json(note) or {"files": 0, "bytes": 0}
        for _, size, path in sorted(found):
            if used <= limit * LEFT_OF_LIMIT:
                break
            with suppress(OSError):  # another may be removed
                os.unlink(path)
                used -= size
                said = {"files": said["files"] + 1, "bytes": said["bytes"] + size}
        write_json(note, said)


def files_below(folder):
    """(time of change, bytes on the disk, path) of each file; what goes away meanwhile is not there."""
    found = []
    for top, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                row = os.lstat(os.path.join(top, name))
                found.append((row.st_mtime, row.st_blocks * BLOCK, os.path.join(top, name)))
    return found
