"""A root part: whether a device may be formatted. What holds anything, or is in use, is somebody's."""

import os

from disk_stack import number

HEAD = 16 << 20
TAIL = 1 << 20
SAMPLES = 256
BLOCK = 4096


def main(request):
    """`device` is a path. {"why": what speaks against it, empty for nothing}."""
    path = request["device"]
    try:
        handle = os.open(path, os.O_RDONLY | os.O_EXCL)
    except OSError as error:
        return {"why": "%s is in use: %s" % (path, os.strerror(error.errno or 0))}
    try:
        why = used_by(number(os.fstat(handle).st_rdev))
        return {"why": why or held(handle, path)}
    finally:
        os.close(handle)


def used_by(device):
    from disk_users import users_of

    user = next(iter(users_of({device})), None)
    return "process %s (%s) has it open" % (user["pid"], user["program"]) if user else ""


def held(handle, path):
    """Looked at where everything that is known keeps something, and here and there."""
    size = os.lseek(handle, 0, os.SEEK_END)
    spots = [(at, BLOCK) for at in range(HEAD, size, max(size // SAMPLES // BLOCK * BLOCK, BLOCK))]
    for at, length in [(0, HEAD), *spots, (max(0, size - TAIL), TAIL)]:
        if os.pread(handle, length, at).strip(b"\0"):
            return "%s holds something, and no file system that is known" % path
    return ""
