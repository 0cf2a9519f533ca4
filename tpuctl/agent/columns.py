"""The numbers that a program prints, as a small file that is only added to.

A row stands for one match at first, and for more the longer the program goes on: a million matches take 3,055
rows, of which the newer half of them has 128 at least. So the file is fetched like a log, from the offset that
is known. Its first line has the names. A row is `AT STEP COUNT`, then a field for each name: the value,
`MEAN:MIN:MAX:LAST` of several, or `-`. These are of finite values; others stand there where no finite one came.
"""

import os
from math import isfinite

from base import suppress

ROWS_EACH = 256  # until a row stands for twice as many matches


class Columns:
    """The file of one attempt: `names` are those of its columns, besides the step."""

    def __init__(self, path, names):
        self.path, self.names = path, names
        self.unsaved = line(["at", "step", "count", *names])
        self.rows, self.every = 0, 1
        self.strange = False
        self.clear()

    def clear(self):
        self.at, self.count, self.step = 0.0, 0, None
        # Of each: how many, their sum, least, most and last, and the last strange one.
        self.sums = [[0, 0.0, None, None, None, None] for _ in self.names]

    def take(self, now, step, values, strange=False):
        """`values` by name: those of one match. The first one with a `strange` value, which is infinite or no
        number, has a row of its own."""
        alone = strange and not self.strange
        if alone:
            self.strange = True
            self.close()
        self.at, self.step = now, step
        self.count += 1
        for name, found in zip(self.names, self.sums):
            value = values.get(name)
            if value is None:
                continue
            if strange and not isfinite(value):
                found[5] = value
            elif not found[0]:
                found[:5] = 1, value, value, value, value
            else:
                found[0] += 1
                found[1] += value
                found[4] = value
                if value < found[2]:
                    found[2] = value
                elif value > found[3]:
                    found[3] = value
        if alone or self.count >= self.every:
            self.close()

    def close(self):
        """Ends the row that is begun."""
        if self.count:
            fields = [text(self.at, "%.3f"), text(self.step, "%.15g"), str(self.count)]
            self.unsaved += line(fields + [field(*found) for found in self.sums])
            self.rows += 1
            if self.rows % ROWS_EACH == 0:
                self.every *= 2
        self.clear()

    def save(self):
        """Adds what is new to the file; on a full disk as much as goes, and the rest next time."""
        if not self.rows or not self.unsaved:
            return
        with suppress(OSError):
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                self.unsaved = self.unsaved[os.write(handle, self.unsaved) :]
            finally:
                os.close(handle)


def line(words):
    return (" ".join(words) + "\n").encode("utf-8", "replace")


def field(count, total, low, high, last, strange):
    if not count:
        return text(strange, "%r")
    mean = text(total / count)
    return mean if low == high else ":".join((mean, text(low), text(high), text(last)))


def text(value, form="%.7g"):
    return "-" if value is None else form % value
