"""Files by the sha256 of their content, and the lists of files (trees) that name them."""

import os

import quick_json as json
from base import Refused, make_dir, need_sha, root, suppress
from client import CHUNK
from digest import file_sha256, sha256
from frames import read_begin, read_pieces

AREAS = ("blobs", "incoming", "sealed")
LINKED_MIN = 1 << 20
SILENCE_S = 60.0  # a client that sends nothing for this long is gone, and others may go on with its part


def is_inside(path, directory):
    return path == directory or path.startswith(directory + os.sep)


def blob_path(area, digest):
    """`blobs` holds the code of runs, `incoming` what `cp` is about to put in its place, `sealed` environments
    that one host has for others."""
    if area not in AREAS:
        raise Refused("bad-request", "no such area: %r" % (area,))
    return root(area, need_sha(digest))


def has_blob(area, digest, size):
    try:
        return os.stat(blob_path(area, digest)).st_size == size
    except FileNotFoundError:
        return False


def part_of(path):
    """Where the beginning of a blob waits for the rest."""
    return path + ".part"


def open_part(path, start):
    """The file into which a blob comes: its name, itself, and whether it is kept when the stream breaks off.

    One writer alone has the part that is kept. Another one at the same time begins anew, beside it.
    """
    import fcntl

    part = part_of(path)
    file = os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), os.stat(part)):
            return part, file, True
    file.close()
    if start:
        raise Refused("busy", "somebody else is sending the same content")
    temp = "%s.%d.tmp" % (path, os.getpid())
    return temp, os.fdopen(os.open(temp, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "r+b"), False


def part_size(path):
    """How much of a blob has come and can be gone on with; none while somebody else does that."""
    import fcntl

    try:
        with open(part_of(path), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return os.fstat(file.fileno()).st_size
    except OSError:
        return 0


def store_blob(area, digest, size, chunks, start=0):
    """The blob appears whole and right or not at all; `start` bytes of it came before. Its content is checked
    again when it is used, so it is not forced to the disk here."""
    path = blob_path(area, digest)
    temp, file, kept = open_part(path, start)
    check, count = sha256(size), 0
    try:
        with file:
            while count < start:
                chunk = file.read(min(CHUNK, start - count))
                if not chunk:
                    raise Refused("bad-payload", "there are %d bytes of it, not %d" % (count, start))
                check.update(chunk)
                count += len(chunk)
            file.seek(start)
            file.truncate()
            for chunk in chunks:
                check.update(chunk)
                count += len(chunk)
                file.write(chunk)
            kept = kept and count < size
            if count != size or check.hexdigest() != digest:
                raise Refused("bad-payload", "received %d of %d bytes, or another content" % (count, size))
            file.flush()
            os.rename(temp, path)
    except BaseException:
        if not kept:
            with suppress(FileNotFoundError):
                os.unlink(temp)
        raise


def copy_blob(area, digest, size, target):
    """Copies a blob to the open file `target`. A copy, not a link: programs may write into their files."""
    check, count = sha256(size), 0
    path = blob_path(area, digest)
    try:
        with open(path, "rb") as source:
            for chunk in iter(lambda: source.read(CHUNK), b""):
                check.update(chunk)
                count += len(chunk)
                target.write(chunk)
    except FileNotFoundError:
        raise Refused("missing-blob", "the host lost %s meanwhile" % digest) from None
    if count != size or check.hexdigest() != digest:
        with suppress(FileNotFoundError):
            os.unlink(path)
        raise Refused("missing-blob", "%s was damaged on the host's disk" % digest)


def link_blob(area, blob, path):
    """Gives a blob a second name, after a look at its content. False where the file system cannot."""
    digest, size = blob
    try:
        os.link(blob_path(area, digest), path)
    except FileNotFoundError:
        raise Refused("missing-blob", "the host lost %s meanwhile" % digest) from None
    except OSError:
        return False
    if not file_matches(path, size, digest):
        with suppress(FileNotFoundError):
            os.unlink(blob_path(area, digest))
        raise Refused("missing-blob", "%s was damaged on the host's disk" % digest)
    return True


def file_matches(path, size, digest):
    """Whether a regular file has this content."""
    import stat

    try:
        found = os.lstat(path)
        return stat.S_ISREG(found.st_mode) and found.st_size == size and file_sha256(path) == digest
    except OSError:
        return False


def find_tree(area, digest):
    """The entries of a tree: `["f", path, mode, sha256, size]`, perhaps with a time of change in ns,
    `["l", path, target]` and `["d", path, mode]`. None when it is not here."""
    path = blob_path(area, digest)
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return None
    check = sha256(len(content))
    check.update(content)
    if check.hexdigest() != digest:
        os.unlink(path)
        return None
    try:
        return [parse_entry(entry) for entry in json.loads(content.decode())["entries"]]
    except (ValueError, KeyError, TypeError) as error:
        raise Refused("bad-bundle", "not a usable tree: %s" % error) from error


def parse_entry(entry):
    kind, path = entry[0], entry[1].encode("utf-8", "surrogateescape")
    parts = path.split(b"/")
    if b"\0" in path or any(part in (b"", b".", b"..") for part in parts):
        raise Refused("bad-bundle", "path leaves the tree: %r" % entry[1])
    if kind == "f":
        mtime_ns = int(entry[5]) if len(entry) > 5 else None
        return kind, path, int(entry[2]) & 0o777, (need_sha(entry[3]), int(entry[4])), mtime_ns
    if kind == "l":
        return kind, path, entry[2].encode("utf-8", "surrogateescape")
    if kind == "d":
        return kind, path, int(entry[2]) & 0o777
    raise Refused("bad-bundle", "neither file, directory nor symbolic link: %r" % (entry[1],))


def check_tree(entries, links_inside):
    """Refuses a tree whose entries lie in each other's way, or whose links point outside of it."""
    solid = set()
    for entry in entries:
        kind, path = entry[:2]
        if kind != "d":
            if path in solid:
                raise Refused("bad-bundle", "twice in the tree: %r" % path)
            solid.add(path)
        if kind == "l" and links_inside:
            end = os.path.normpath(os.path.join(os.path.dirname(path), entry[2]))
            if os.path.isabs(end) or end.split(b"/")[0] == b"..":
                raise Refused("bad-bundle", "symbolic link leaves the tree: %r" % path)
    for entry in entries:
        parent = entry[1] if entry[0] == "d" else os.path.dirname(entry[1])
        while parent:
            if parent in solid:
                raise Refused("bad-bundle", "path goes through a file or symbolic link: %r" % entry[1])
            parent = os.path.dirname(parent)


def check_links(entries, target):
    """A chain of links, each harmless by itself, can lead out; that shows only when all are there."""
    inside = os.path.realpath(target)
    for entry in entries:
        if entry[0] == "l":
            end = os.path.realpath(os.path.join(target, entry[1]))
            if end != inside and not end.startswith(inside + b"/"):
                raise Refused("bad-bundle", "symbolic link leaves the tree: %r" % entry[1])


def blobs_of(entries):
    """(sha256, size) of every content once, in order of first appearance: both sides count on this order."""
    return list(dict.fromkeys(entry[3] for entry in entries if entry[0] == "f"))


def materialise(entries, target, area, mask=0o777, link=False):
    """Writes a checked tree below `target`, a directory that nobody else knows yet. With `link` large files are
    the contents themselves, checked: for who does not write into them."""
    made = []
    for entry in entries:
        kind, path = entry[0], os.path.join(target, entry[1])
        os.makedirs(path if kind == "d" else os.path.dirname(path), mode=0o755, exist_ok=True)
        if kind == "d":
            made.append((path, entry[2]))
        elif kind == "l":
            os.symlink(entry[2], path)
        elif link and entry[3][1] >= LINKED_MIN and link_blob(area, entry[3], path):
            os.chmod(path, entry[2] & mask)
        else:
            write_file(path, entry, area, mask)
    for path, mode in reversed(made):
        os.chmod(path, mode & mask)


def write_file(path, entry, area, mask=0o777):
    _, _, mode, (digest, size), mtime_ns = entry
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as file:
        copy_blob(area, digest, size, file)
        file.flush()
        os.fchmod(file.fileno(), mode & mask)
    if mtime_ns is not None:
        os.utime(path, ns=(mtime_ns, mtime_ns))


def receive(request, stdin):
    """The contents that follow the request, by their digests; each counts as soon as it is whole, and what came
    of one that broke off is kept."""
    area, count = request["area"], 0

    def read(size):
        return stdin.exactly(size, SILENCE_S)

    while True:
        begun = read_begin(read)
        if begun is None:
            return {"stored": count}
        digest, size, start = begun
        make_dir(os.path.dirname(blob_path(area, digest)))
        store_blob(area, digest, size, read_pieces(read, size - start), start)
        count += 1
