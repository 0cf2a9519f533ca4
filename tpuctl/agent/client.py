"""The client at the other end of stdin and stdout. Imports nothing slow: see `entry`."""

import os
import time

CHUNK = 1 << 20


class Refused(Exception):
    """A request that gets an error code as its answer and is not carried out."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class Stdin:
    """File descriptor 0, read by line and then raw, without losing data from the same packet."""

    def __init__(self):
        self.rest = b""

    def line(self):
        while b"\n" not in self.rest:
            chunk = os.read(0, 65536)
            if not chunk:
                break
            self.rest += chunk
        line, _, self.rest = self.rest.partition(b"\n")
        return line

    def exactly(self, size, patience=None):
        """The next `size` bytes in pieces; Refused when the stream ends before, or pauses for `patience`
        seconds."""
        while size:
            if patience is not None and not self.rest:
                import select

                if not select.select([0], [], [], patience)[0]:
                    raise Refused("bad-payload", "the stream stopped %d bytes before the end of a file" % size)
            chunk = self.rest[:size] or os.read(0, min(size, CHUNK))
            self.rest = self.rest[len(chunk) :]
            if not chunk:
                raise Refused("bad-payload", "the stream broke off %d bytes before the end of a file" % size)
            size -= len(chunk)
            yield chunk


class Lifeline:
    """The client's heartbeat on stdin: dead after end of file or `silence` seconds without a byte."""

    def __init__(self, silence):
        self.silence = silence
        self.heard = time.monotonic()
        self.ended = False

    def listen(self):
        if not os.read(0, 65536):
            self.ended = True
        self.heard = time.monotonic()

    def is_cut(self):
        return self.ended or time.monotonic() - self.heard > self.silence


def write_all(handle, data):
    while data:
        data = data[os.write(handle, data) :]
