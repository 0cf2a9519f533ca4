"""How far a program has come, by a regular expression over its logs that its user gave.

The supervisor keeps it, so that whoever looks, from whatever machine, knows since when the step is the same.
"""

import os
import time

from base import file_size, read_json, suppress, write_json
from log_times import streams
from processes import descendants, process_stat

READ_MAX = 1 << 20  # a program that writes more between two looks is not read in full
LINE_MAX = 4096
LOOK_S = 1.0
QUIET_S = 1.0  # who writes is not held
WRITE_S = 5.0  # a step that is quicker is not written down each time
MARK_S = 60.0  # between two notes of how far it was
MARKS_MAX = 120
RECENT_S = 300.0  # a rate over less would fall with each checkpoint
USUAL_LEAST = 10  # minutes before that, without which nothing is usual


class Progress:
    """`pattern` has the step as its first group, and all steps as its second, if it has one."""

    def __init__(self, attempt, pattern):
        import re

        self.path = attempt.path("progress.json")
        self.pattern = re.compile(pattern)
        self.logs = [[attempt.path(name + ".log"), 0, ""] for name in streams(attempt)]
        self.known = {}
        self.looked = self.written = 0.0
        self.fresh = False

    def look(self, last=False):
        """Reads what is new, at most once a second, and at the `last` look whatever is left."""
        now = time.monotonic()
        if now - self.looked < LOOK_S and not last:
            return
        self.looked = now
        moment = time.time()
        for log in self.logs:
            self.read(log, moment)
        self.mark(moment)
        if self.fresh and (last or now - self.written >= WRITE_S or "written" not in self.known):
            self.known["written"] = time.time()
            with suppress(OSError):  # a full disk: the next look writes it
                write_json(self.path, self.known)
                self.written, self.fresh = now, False

    def mark(self, now):
        """Notes the step each minute, also when it is the same."""
        marks = self.known.setdefault("marks", []) if "step" in self.known else None
        if marks is not None and (not marks or now - marks[-1][0] >= MARK_S):
            marks.append([now, self.known["step"]])
            del marks[:-MARKS_MAX]
            self.fresh = True

    def read(self, log, now):
        path, offset, rest = log
        with suppress(FileNotFoundError), open(path, "rb") as file:
            begin = max(offset, file_size(path) - READ_MAX)
            file.seek(begin)
            data = file.read(READ_MAX)
            lines = ((rest if begin == offset else "") + data.decode("utf-8", "replace")).split("\n")
            log[1], log[2] = begin + len(data), lines.pop()[-LINE_MAX:]
            for line in lines:
                self.take(self.pattern.search(line[:LINE_MAX]), now)

    def take(self, match, now):
        """Lines that are read together have one time, so that the first steps are all one beginning."""
        if match is None:
            return
        found = [number(each) for each in match.groups()[:2]]
        if not found or found[0] is None or found[0] == self.known.get("step"):
            return
        if self.known.get("first_at", now) == now:
            self.known.update(first_step=found[0], first_at=now)
        self.known.update(step=found[0], at=now, total=found[1] if len(found) > 1 else None)
        self.fresh = True


def rates(marks, now, step):
    """Steps per second in the last minutes, and the median of the minutes before; None where not known."""
    before = [mark for mark in marks if mark[0] <= now - RECENT_S]
    pairs = zip(before, before[1:])
    usual = sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs if b[0] > a[0])
    if len(usual) < USUAL_LEAST:
        return None, None
    at, begin = before[-1]
    return (step - begin) / (now - at), usual[len(usual) // 2]


def number(text):
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def signs_of_life(attempt, status):
    """When the program wrote last, whether it is held by a signal, and its step."""
    progress = read_json(attempt.path("progress.json"))
    if progress is not None and "step" in progress:
        recent, usual = rates(progress.pop("marks", []), time.time(), progress["step"])
        progress.update(recent_rate=recent, usual_rate=usual)
    found = {"progress": progress, "load": os.getloadavg()[0]}
    moments = []
    for name in streams(attempt):
        with suppress(OSError):
            log = os.stat(attempt.path(name + ".log"))
            moments += [log.st_mtime] if log.st_size else []
    found["output_at"] = max(moments) if moments else None
    silent = not moments or time.time() - max(moments) > QUIET_S
    mains = [row["pid"] for row in status["processes"]] or [status["pid"]]
    found["held"] = bool(silent and status["state"] == "running" and any(is_held(pid) for pid in mains if pid))
    return found


def is_held(main):
    """Whether a process of a tree is stopped by a signal, or by a debugger."""
    stats = [process_stat(pid) for pid in (main, *descendants(main))]
    return any(stat is not None and stat[0] in (b"T", b"t") for stat in stats)
