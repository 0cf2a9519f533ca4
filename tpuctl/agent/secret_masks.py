"""The values of a run's secrets are masked before anything that may have them leaves this host.

A program writes straight into its log files. Its supervisor alone knows the values, which no disk has: it looks
for them behind the program and writes a mask of the same length over each, so that offsets stay what they are.
Beside each log stands how much of it was looked through, and nobody is told what is behind that. What a later
command says of processes is compared with hashes, whose key stays on this host.
"""

import os

from base import Refused, file_size, read_json, root, suppress, write_json
from log_times import WIDTH, read_done, streams
from secret_forms import LEAST, all_forms, settled, spans

PIECE = 8 << 20  # read at once
LEAST_WITH_HEAD = 32  # by the hash of its first characters a shorter value could be guessed in two parts
HASHES = "masks.json"
KEY = "mask.key"
KEY_BYTES = 32


def known_patterns(attempt, values, environment):
    """Of all secrets of an attempt: by name in `values`, else in the `environment` of its program. Refused
    where a value is not known any more: what may have it cannot be told then."""
    known = dict(environment, **values)
    names = {*((read_json(attempt.path(HASHES)) or {}).get("names") or ()), *values}
    lost = sorted(name for name in names if name not in known)
    if lost:
        said = "nobody here knows the value of %s any more, so nothing can mask it" % ", ".join(lost)
        raise Refused("secret-unknown", said)
    return all_forms(known[name] for name in names)


class LogMasks:
    """Of the logs of one attempt; the supervisor has it `look` again and again."""

    def __init__(self, attempt, values):
        self.patterns = all_forms(values)
        self.logs = [MaskedLog(attempt, stream) for stream in streams(attempt)] if self.patterns else []

    def look(self, last=False):
        """`last`: the program has ended, so nothing that began goes on."""
        for log in self.logs:
            with suppress(OSError):  # not looked through, not told: the next look tries again
                log.look(self.patterns, last)


class MaskedLog:
    def __init__(self, attempt, stream):
        self.path, self.note = attempt.path(stream + ".log"), attempt.path(stream + ".masked")
        self.done = self.seen = read_done(self.note) or 0
        if not self.done:
            self.write_done()

    def look(self, patterns, last):
        size = file_size(self.path)
        if size < self.done:  # somebody emptied it, as `> /dev/stdout` does: what is there now is new
            self.done = self.seen = 0
            self.write_done()
        if size <= self.seen and not (last and self.done < size):
            return
        with open(self.path, "r+b", buffering=0) as file:
            while self.done < size:
                data = os.pread(file.fileno(), PIECE, self.done)
                found = list(spans(data, patterns))
                until = len(data) if last and self.done + len(data) >= size else settled(data, found, patterns)
                for begin, end in found:
                    if end <= until:
                        os.pwrite(file.fileno(), b"*" * (end - begin), self.done + begin)
                self.seen = self.done + len(data)
                if not until:
                    return
                self.done += until
                self.write_done()
                if len(data) < PIECE:
                    return

    def write_done(self):
        handle = os.open(self.note, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(handle, b"%0*d" % (WIDTH, self.done), 0)
        finally:
            os.close(handle)


def finish(attempt, values):
    """After the supervisor was killed: what it left, by the `values` that are still in memory."""
    if values:
        LogMasks(attempt, values).look(last=True)


# ---------------------------------------------------------------- by hashes


def note_hashes(attempt, values, names):
    """Writes down by what the values are known later, when nothing here has them any more: the hash of each, by
    its length, and of the long ones the hashes of their first characters, too."""
    key, rows, heads = host_key(), {}, set()  # type: bytes, dict[str, list[str]], set[str]
    for pattern in all_forms(values):
        rows.setdefault(str(len(pattern)), []).append(hash_of(key, pattern).hex())
        if len(pattern) >= LEAST_WITH_HEAD:
            heads.add(hash_of(key, pattern[:LEAST]).hex())
    write_json(attempt.path(HASHES), {"names": sorted(names), "hashes": rows, "heads": sorted(heads)})


def host_key():
    """The key of this host. It appears with all its bytes: another process reads it at any moment."""
    path = root(KEY)
    if file_size(path) < KEY_BYTES:
        temp = "%s.%d" % (path, os.getpid())
        handle = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(os.urandom(KEY_BYTES))
        if os.path.exists(path):  # its writer was killed
            os.replace(temp, path)
        else:
            with suppress(FileExistsError):
                os.link(temp, path)
            os.unlink(temp)
    with open(path, "rb") as file:
        return file.read()


def hash_of(key, data):
    import hashlib

    return hashlib.blake2b(data, digest_size=16, key=key).digest()


def mask_by_hashes(texts, attempts):
    """The texts with a mask over each value of a secret of these attempts. Slow: for what is short."""
    known, heads = {}, set()  # type: dict[int, set[bytes]], set[bytes]
    everywhere = set()  # type: set[int]
    for attempt in attempts:
        note = read_json(attempt.path(HASHES)) or {}
        for length, rows in (note.get("hashes") or {}).items():
            known.setdefault(int(length), set()).update(bytes.fromhex(row) for row in rows)
            if int(length) < LEAST_WITH_HEAD or "heads" not in note:  # an earlier version wrote none
                everywhere.add(int(length))
        heads.update(bytes.fromhex(row) for row in note.get("heads") or ())
    if not known:
        return texts
    key = host_key()
    return [mask_hashed(text, known, heads, everywhere, key) for text in texts]


def mask_hashed(text, known, heads, everywhere, key):
    """Values of a length in `everywhere` may begin at any place, the others where one of the `heads` is."""
    data = text.encode("utf-8", "surrogateescape")
    out = bytearray(data)
    places = range(len(data) - LEAST + 1)
    begins = [at for at in places if hash_of(key, data[at : at + LEAST]) in heads] if heads else []
    for length, hashes in known.items():
        for at in range(len(data) - length + 1) if length in everywhere else begins:
            if hash_of(key, data[at : at + length]) in hashes:
                out[at : at + length] = b"*" * length
    return out.decode("utf-8", "surrogateescape")


def patterns_of(attempt, environment):
    """Those of an attempt whose program has this environment."""
    names = (read_json(attempt.path(HASHES)) or {}).get("names") or ()
    return all_forms(environment[name] for name in names if name in environment)
