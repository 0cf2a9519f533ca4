"""How far a program has come, and its numbers, by a regular expression over its logs that its user gave.

The supervisor keeps it, so that whoever looks, from whatever machine, knows since when the step is the same.
"""

import time
from math import inf, isfinite

from base import file_size, suppress, write_json
from columns import Columns
from log_times import METRICS, streams
from processes import signal

READ_MAX = 1 << 20  # a program that writes more between two looks is not read in full
LINE_MAX = 4096
LOOK_S = 1.0
SEARCH_CPU_S = 0.25  # for what one log has new; there are expressions that need years for a line
LATE_MAX = 3  # so often in a row, and the expression is given up
STEP_MAX = 2.0**63  # no program has more steps
WRITE_S = 5.0  # a step that is quicker is not written down each time
MARK_S = 60.0  # between two notes of how far it was
MARKS_MAX = 120
STEP, TOTAL = "step", "steps"


class TooSlow(Exception):
    """The time for a search is over."""


class Progress:
    """`pattern` has named groups, of which `step` and `steps` say how far it is; without names its first group
    is the step, and its second, if it has one, all steps."""

    def __init__(self, attempt, pattern):
        import re

        self.path = attempt.path("progress.json")
        self.pattern = re.compile(pattern)
        self.groups = dict(self.pattern.groupindex) or dict(
            zip((STEP, TOTAL), range(1, self.pattern.groups + 1))
        )
        self.names = [name for name in self.groups if name not in (STEP, TOTAL)]
        self.columns = Columns(attempt.path(METRICS), self.names)
        self.logs = [[name, attempt.path(name + ".log"), 0, ""] for name in streams(attempt)]
        self.known = {}
        self.looked = self.written = 0.0
        self.fresh = self.urgent = False
        self.ahead = None
        self.late = 0
        signal.signal(signal.SIGVTALRM, self.interrupt)

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
        if last and self.known:
            self.columns.close()
            self.fresh = True
        due = last or self.urgent or now - self.written >= WRITE_S or "written" not in self.known
        if self.fresh and due:
            self.columns.save()
            self.known["written"] = time.time()
            with suppress(OSError):  # a full disk: the next look writes it
                write_json(self.path, self.known)
                self.written, self.fresh, self.urgent = now, False, False

    def mark(self, now):
        """Notes the step each minute, also when it is the same."""
        marks = self.known.setdefault("marks", []) if "step" in self.known else None
        if marks is not None and (not marks or now - marks[-1][0] >= MARK_S):
            marks.append([now, self.known["step"]])
            del marks[:-MARKS_MAX]
            self.fresh = True

    def read(self, log, now):
        name, path, offset, rest = log
        with suppress(FileNotFoundError), open(path, "rb") as file:
            begin = max(offset, file_size(path) - READ_MAX)
            file.seek(begin)
            data = file.read(READ_MAX)
            fresh = data.decode("utf-8", "replace").replace("\r", "\n")  # progress bars write over one line
            lines = ((rest if begin == offset else "") + fresh).split("\n")
            log[2], log[3] = begin + len(data), lines.pop()[-LINE_MAX:]
            writer = name.rpartition(".")[0]
            for match in self.search(lines):
                self.take(match, writer, now)

    def search(self, lines):
        """The matches that are found in time. Python's search looks for signals while it is at work."""
        found: list = []
        if not lines or "error" in self.known:
            return found
        search = self.pattern.search
        try:
            try:
                signal.setitimer(signal.ITIMER_VIRTUAL, SEARCH_CPU_S)
                for line in lines:
                    match = search(line[:LINE_MAX])
                    if match is not None:
                        found.append(match)
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            self.late = 0
        except TooSlow:
            self.late += 1
            if self.late >= LATE_MAX:
                self.known["error"] = "took more than %g s of a processor for a second of output" % SEARCH_CPU_S
                self.fresh = self.urgent = True
        return found

    def interrupt(self, _number, _frame):
        raise TooSlow

    def take(self, match, writer, now):
        """Lines that are read together have one time, so that the first steps are all one beginning. `writer`
        is the process, where the worker has several."""
        values, strange = {}, None
        for name, group in self.groups.items():
            value = number(match.group(group))
            if value is not None:
                values[name] = value
                if not isfinite(value) and name not in (STEP, TOTAL):
                    strange = strange or name
        step, total = values.pop(STEP, None), values.pop(TOTAL, None)
        step = step if step is not None and abs(step) < STEP_MAX else None
        if strange is not None and "not_finite" not in self.known:
            self.alarm(strange, values[strange], step, now)
        if not self.leads(writer, step):
            return
        new = step is not None and step != self.known.get("step")
        if new:
            if self.known.get("first_at", now) == now:
                self.known.update(first_step=step, first_at=now)
            total = total if total is not None and abs(total) < STEP_MAX else None
            self.known.update(step=step, at=now, total=total)
        if not new and not values:
            return
        finite = {name: value for name, value in values.items() if isfinite(value)} if strange else values
        self.known.setdefault("values", {}).update(finite)
        self.columns.take(now, self.known.get("step"), values, strange is not None)
        self.fresh = True

    def alarm(self, name, value, step, now):
        """The first value that is infinite or not a number is written down at once."""
        at = step if step is not None else self.known.get("step")
        self.known["not_finite"] = {"name": name, "value": "%r" % value, "step": at, "at": now}
        self.fresh = self.urgent = True

    def leads(self, writer, step):
        """Of several processes one speaks for all: that which is ahead, until another one overtakes it."""
        if self.ahead is None or (step is not None and step > self.known.get("step", -inf)):
            self.ahead = writer
        return writer == self.ahead


def number(text):
    try:
        return float(text.replace(",", "")) if text else None
    except ValueError:
        return None
