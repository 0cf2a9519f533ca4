"""The forms in which programs write a value, and masks over them, as long as what they cover.

Pods of a cluster have this module without the agent (`templates/pod.py`): it needs no neighbour.
"""

import os

LEAST = 8  # characters; a shorter value is a word that programs write anyway
LEAST_OF_LINE = 16
LONGEST = 1 << 20


def forms(value):
    """The bytes as which programs write a value: as it is, as JSON, Python, HTML and shells quote it, in URLs,
    as hexadecimal digits, and as base64 within a longer text, where it may begin at each of three places. Of
    several lines each long one also by itself, for whoever puts something before each line."""
    found = set()
    for text in {value, value.strip()} if len(value.strip()) >= LEAST else ():
        raw = os.fsencode(text)
        found.update([raw, raw.hex().encode(), raw.hex().upper().encode()])
        found.update(os.fsencode(each) for each in quoted_forms(text, raw))
        found.update(base64_forms(raw))
        lines = [line.strip() for line in text.splitlines()]
        found.update(os.fsencode(line) for line in lines if len(line) >= LEAST_OF_LINE)
    return {each for each in found if LEAST <= len(each) <= LONGEST}


def quoted_forms(text, raw):
    import html
    import json
    import re
    import urllib.parse

    for ascii_only in (True, False):
        once = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        yield once
        yield once.replace("/", "\\/")
        yield once.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")  # as Go does
        yield json.dumps(once)[1:-1]  # JSON that is a text of JSON, as in structured logs
    yield repr(text)[1:-1]
    yield repr(text)[1:-1].replace("'", "\\'")
    yield repr(raw)[2:-1]
    yield html.escape(text)
    yield html.escape(text, quote=False)
    yield text.replace("'", "'\"'\"'")
    yield text.replace("'", "'\\''")
    for url in (urllib.parse.quote(raw, safe=""), urllib.parse.quote(raw), urllib.parse.quote_plus(raw)):
        yield url
        yield re.sub("%..", lambda found: found.group().lower(), url)


def base64_forms(raw):
    """The characters that the value alone decides, whatever stands before and behind it."""
    import base64

    for before, skipped in ((0, 0), (1, 2), (2, 3)):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            text = encode(bytes(before) + raw).rstrip(b"=")
            shared = 1 if (before + len(raw)) % 3 else 0
            yield text[skipped : len(text) - shared]


def all_forms(values):
    return sorted({each for value in values for each in forms(value)})


def spans(data, patterns):
    """(begin, end) of all that is to be masked."""
    for pattern in patterns:
        at = data.find(pattern)
        while at >= 0:
            yield at, at + len(pattern)
            at = data.find(pattern, at + 1)


def settled(data, found, patterns):
    """Up to where `data` is decided: what follows may be the beginning of a value, or lie in a longer one."""
    until = len(data)
    for pattern in patterns:
        at = data.find(pattern[:1], max(0, len(data) - len(pattern) + 1), until)
        while at >= 0 and not pattern.startswith(data[at:]):
            at = data.find(pattern[:1], at + 1, until)
        until = at if at >= 0 else until
    for begin, end in sorted(found, reverse=True):
        if begin < until < end:
            until = begin
    return until


def masked(data, patterns):
    """`data` with its mask."""
    out = bytearray(data)
    for begin, end in spans(data, patterns):
        out[begin:end] = b"*" * (end - begin)
    return bytes(out)


def masked_text(text, patterns):
    return masked(text.encode("utf-8", "surrogateescape"), patterns).decode("utf-8", "surrogateescape")


class MaskedStream:
    """What is written piece by piece, as it may be told."""

    def __init__(self, patterns):
        self.patterns, self.rest = patterns, b""

    def feed(self, data, last=False):
        """What is decided with `data`; all of the rest with the `last`."""
        self.rest += data
        found = list(spans(self.rest, self.patterns))
        until = len(self.rest) if last else settled(self.rest, found, self.patterns)
        ready, self.rest = masked(self.rest, self.patterns)[:until], self.rest[until:]
        return ready


class MaskedFile:
    """A file as it may be told, as long as it is, with a mask over each value. Read from its beginning."""

    def __init__(self, file, patterns):
        self.file, self.patterns = file, patterns
        self.fileno = file.fileno
        self.seek(0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def seek(self, at):
        self.file.seek(at)
        self.masks, self.ready, self.ended = MaskedStream(self.patterns), b"", False

    def read(self, count):
        while len(self.ready) < count and not self.ended:
            data = self.file.read(count)
            self.ended = not data
            self.ready += self.masks.feed(data, last=self.ended)
        out, self.ready = self.ready[:count], self.ready[count:]
        return out
