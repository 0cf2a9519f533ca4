"""The frames in which contents travel: from the client, back to it, and from host to host.

Each begins with a number of 8 bytes: how many bytes of a content follow, or, below zero, of a note, which is a
JSON object. `file` begins a content `from` a byte of its `size`, whose pieces follow until it is whole.
`failed` gives one up, with a code and a message, and `done` comes last on the way to a host.
"""

import quick_json as json
from base import need
from client import Refused

HEAD = 8
PIECE = 1 << 18
NOTE_MAX = 1 << 16


def head(count):
    return count.to_bytes(HEAD, "big", signed=True)


def render_note(**fields):
    data = json.dumps(fields).encode()
    return head(-len(data)) + data


def render_begin(what, size, start, **more):
    return render_note(file=what, size=size, **more, **{"from": start})


def render_failure(what, error):
    """Of an OSError, or what was refused."""
    code = error.code if isinstance(error, Refused) else "unreadable"
    return render_note(failed=what, code=code, message=getattr(error, "strerror", None) or str(error))


def write_pieces(write, file, left, check):
    """The next `left` bytes of a file. Refused where it has no more of them."""
    while left:
        data = file.read(min(left, PIECE))
        if not data:
            raise Refused("changed", "it became shorter while it was copied")
        check.update(data)
        left -= len(data)
        write(head(len(data)))
        write(data)


def read_head(read):
    """`read` gives so many bytes as are asked for, in pieces."""
    return int.from_bytes(b"".join(bytes(part) for part in read(HEAD)), "big", signed=True)


def read_note(read, count):
    """A note of so many bytes. Refused for what is none, and where the other side gives up."""
    if not 0 < count <= NOTE_MAX:
        raise Refused("bad-payload", "no note between files, but %d bytes" % count)
    try:
        found = json.loads(b"".join(bytes(part) for part in read(count)).decode())
    except ValueError as error:
        raise Refused("bad-payload", "a note between files is not JSON: %s" % error) from error
    if not isinstance(found, dict):
        raise Refused("bad-payload", "a note between files is not an object")
    if "failed" in found:
        raise Refused(need(found, "code", str), need(found, "message", str))
    return found


def read_begin(read):
    """The name of the content that comes, its size, and the byte from which it comes; None behind the last."""
    found = read_note(read, -read_head(read))
    if "done" in found:
        return None
    size, start = need(found, "size", int), need(found, "from", int)
    if not 0 <= start <= size:
        raise Refused("bad-payload", "a file of %d bytes from byte %d" % (size, start))
    return need(found, "file", str), size, start


def read_pieces(read, left):
    """The bytes of the content that was begun, as they come."""
    while left:
        count = read_head(read)
        if count < 0:
            read_note(read, -count)
        if not 0 < count <= left:
            raise Refused("bad-payload", "a piece of %d bytes where %d are to come" % (count, left))
        left -= count
        for part in read(count):
            yield part
