"""`survey` and `send`: what lies at a path of the user, and those parts of it that the client lacks.
`tree`: the files there as one digest, and the beginning of one of them."""

import os
import select
import stat

import quick_json as json
from client import CHUNK, Lifeline, Refused
from frames import render_begin, render_failure, render_note, write_pieces

NOTE_WEIGHT = 1 << 16
ROW_WEIGHT = 60
MAX_UNREAD = 100


def top_of(request):
    """The path that was asked for, relative to the home directory; what a link there means, if it is one."""
    text = request["path"].encode("utf-8", "surrogateescape")
    path = os.path.join(os.fsencode(os.path.expanduser("~")), text)
    return os.path.realpath(path) if os.path.islink(path) else path


class Outflow:
    """Standard output that gives up when the client is gone: a plain write would wait for it for ever."""

    def __init__(self, silence):
        self.lifeline = Lifeline(silence)
        os.set_blocking(1, False)
        self.write(b'{"frames": 1}\n')  # behind what a login script printed

    def write(self, data):
        view = memoryview(data)
        while view:
            readable, writable, _ = select.select([0], [1], [], 1.0)
            if readable:
                self.lifeline.listen()
            if self.lifeline.is_cut():
                raise BrokenPipeError
            if writable:
                try:
                    view = view[os.write(1, view) :]
                except BlockingIOError:
                    continue

    def note(self, **fields):
        self.write(render_note(**fields))


def survey(request, _stdin):
    """What lies below the path, which itself is "", as entries of a tree; no content is read for their digests.
    Some are in each note `entries`, at most `limit` in all.

    The last note counts them as `surveyed`, and sockets, pipes and devices, which have no content to copy, as
    `left_out`. `unread` names what could not be read, and why. A path where nothing is has no names where it
    `may_lack`. With `masks` it refuses what `send` would.
    """
    top, limit = top_of(request), request["limit"]
    if not os.path.lexists(top) and not request["may_lack"]:
        raise Refused("not-found", "no such file or directory: %s" % os.fsdecode(top))
    if os.path.isdir(top) and not os.access(top, os.R_OK | os.X_OK):
        raise Refused("unreadable", "permission denied: %s" % os.fsdecode(top))
    if request["masks"]:
        patterns_of(request["masks"])
    walk = Walk(top)
    out = Outflow(request["silence_s"])
    count, rows, weight = 0, [], 0
    for row in walk.rows():
        rows.append(row)
        count += 1
        weight += ROW_WEIGHT + len(row[1]) + (len(row[2]) if row[0] == "l" else 0)
        if count > limit:
            break
        if weight > NOTE_WEIGHT:
            out.note(entries=rows)
            rows, weight = [], 0
    out.note(entries=rows)  # one too many tells the client
    out.note(surveyed=count, left_out=walk.left_out, unread=walk.unread, unread_count=walk.unread_count)


class Walk:
    """Everything below a path, parents first."""

    def __init__(self, top):
        self.top = top
        self.left_out = 0
        self.unread = []
        self.unread_count = 0

    def rows(self):
        waiting = [b""]
        while waiting:
            name = waiting.pop()
            try:
                row, children = self.look(name)
            except FileNotFoundError:
                continue  # it was there when its directory was read
            except OSError as error:
                self.miss(name, error)
                continue
            if row is None:
                self.left_out += 1
                continue
            yield row
            waiting += children

    def look(self, name):
        """The row of what has this name, None for what has no content; and the names below it."""
        path = os.path.join(self.top, name) if name else self.top
        found = os.lstat(path)
        kind, text = stat.S_IFMT(found.st_mode), name.decode("utf-8", "surrogateescape")
        mode = stat.S_IMODE(found.st_mode) & 0o777
        if kind == stat.S_IFREG:
            return ["f", text, mode, "", found.st_size, found.st_mtime_ns], []
        if kind == stat.S_IFLNK:
            return ["l", text, os.readlink(path).decode("utf-8", "surrogateescape")], []
        if kind != stat.S_IFDIR:
            return None, []
        try:
            children = sorted(os.listdir(path), reverse=True)
        except OSError as error:
            self.miss(name, error)
            children = []
        return ["d", text, mode], [os.path.join(name, child) for child in children]

    def miss(self, name, error):
        self.unread_count += 1
        if len(self.unread) < MAX_UNREAD:
            self.unread.append([name.decode("utf-8", "surrogateescape"), error.strerror or str(error)])


def send(request, stdin):
    """Files below the path, one after the other. The request is followed by `size` bytes of JSON: per file its
    name, how many bytes the client has, their sha256, and whether those are the whole file or its beginning.
    `masks` names an attempt, and `values` of its secrets, which are masked.

    What begins is called by its number in the request, and has its mode and
    its time of change now; `end` has the sha256 of the whole.
    """
    top = top_of(request)
    wanted = json.loads(b"".join(stdin.exactly(request["size"])).decode())
    masks = patterns_of(request["masks"]) if request["masks"] else ()
    out = Outflow(request["silence_s"])
    for number, (name, count, digest, whole) in enumerate(wanted):
        try:
            file = open_below(top, name)
            send_file(out, number, masked_file(file, masks), int(count), digest, whole)
        except BrokenPipeError:
            raise
        except (OSError, Refused) as error:
            out.write(render_failure(number, error))


def patterns_of(request):
    from base import Attempt
    from processes import environment_of
    from secret_masks import known_patterns
    from state import look

    attempt = Attempt(request)
    pid = look(attempt)["pid"]
    return known_patterns(attempt, request["values"], environment_of(pid) if pid else {})


def masked_file(file, patterns):
    if not patterns:
        return file
    from secret_forms import MaskedFile

    return MaskedFile(file, patterns)


def open_below(top, name):
    """A regular file below `top`, reached through no link."""
    raw = name.encode("utf-8", "surrogateescape")
    parts = raw.split(b"/") if raw else []
    if any(part in (b"", b".", b"..") for part in parts):
        raise Refused("bad-request", "not a name below the path: %r" % name)
    for count in range(1, len(parts)):
        if os.path.islink(os.path.join(top, *parts[:count])):
            raise Refused("changed", "it lies behind a symbolic link now")
    handle = os.open(os.path.join(top, *parts), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    file = os.fdopen(handle, "rb")
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        file.close()
        raise Refused("changed", "it is no file any more")
    return file


def send_file(out, number, file, count, digest, whole):
    """The file as it is now, without the part that the client has if that is right."""
    with file:
        begun = os.fstat(file.fileno())
        size = begun.st_size
        check, start = checked_start(file, size, count, digest, whole)
        mode = stat.S_IMODE(begun.st_mode) & 0o777
        out.write(render_begin(number, size, start, mode=mode, mtime_ns=begun.st_mtime_ns))
        write_pieces(out.write, file, size - start, check)
        now = os.fstat(file.fileno())
        touched = (now.st_size, now.st_mtime_ns) != (size, begun.st_mtime_ns)
        # Perhaps it only grew; then what was sent is what it was.
        if touched and hash_start(file, size).digest() != check.digest():
            raise Refused("changed", "it changed while it was copied")
        out.note(end=number, sha256=check.hexdigest())


def checked_start(file, size, count, digest, whole):
    """The hash of the part that need not be sent, and its length."""
    import hashlib

    if count and (count == size if whole else count <= size):
        check = hash_start(file, count)
        if check.hexdigest() == digest:
            return check, count
    file.seek(0)
    return hashlib.sha256(), 0


def hash_start(file, count):
    import hashlib

    file.seek(0)
    check = hashlib.sha256()
    while count:
        data = file.read(min(count, CHUNK))
        if not data:
            break
        check.update(data)
        count -= len(data)
    return check


def tree(request, _stdin):
    """The digest is over `[name, size, mtime_ns]` of each file, and `[name, target]` of each link, as lines of
    JSON in the order of names; contents are not read. `sample` is the first file with one of the `endings`."""
    import base64
    import hashlib

    from disks import WORD

    no_data = ("lost+found", WORD)  # root's alone, on every ext4; ours, another for each copy of a disk
    top, limit, endings = top_of(request), request["limit"], tuple(request["endings"])
    if not os.path.lexists(top):
        raise Refused("not-found", "no such file or directory: %s" % os.fsdecode(top))
    walk, rows = Walk(top), []
    for row in walk.rows():
        if row[0] != "d" and row[1] not in no_data:
            rows.append([row[1], row[4], row[5]] if row[0] == "f" else [row[1], row[2]])
        if len(rows) > limit:
            raise Refused("too-many", "more than %d files" % limit)
    unread = [each for each in walk.unread if each[0] not in no_data]
    if unread:
        raise Refused("unreadable", "%s: %s" % tuple(unread[0]))
    rows.sort()
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row).encode() + b"\n")
    files = [row for row in rows if len(row) > 2]
    sample = next((row for row in files if row[0].endswith(endings)), None)
    answer = {"sha256": digest.hexdigest(), "files": len(files), "bytes": sum(row[1] for row in files)}
    if sample is not None:
        with open_below(top, sample[0]) as file:
            head = file.read(request["head"])
        answer["sample"] = {"name": sample[0], "size": sample[1], "head": base64.b64encode(head).decode()}
    return answer
