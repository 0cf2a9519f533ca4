"""What most verbs need: files below ~/.tpuctl, attempts and their directories."""

import errno
import os

import mask  # noqa: F401 - from here on, what is made is private
import quick_json as json
from client import Refused, write_all

SCHEMA = 1
POLL_S = 0.1
ENDED = ("exited", "lost")
COPY = "copy-"  # begins the name of a run that is a copy from host to host
PROVISION = "provision-"  # begins the name of a run that is a provisioning job
KEPT = "kept.json"  # in the folder of an attempt: what lives on when its job has ended
DUMPS = "dumps"  # a folder there: see `dumps.py`
HEXADECIMAL = frozenset("0123456789abcdef")
ALPHANUMERIC = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
NAME = ALPHANUMERIC | frozenset("._-")
NAME_MAX = 128


class suppress:
    """contextlib's, whose import takes longer than most verbs."""

    def __init__(self, *errors):
        self.errors = errors

    def __enter__(self):
        return None

    def __exit__(self, kind, _error, _trace):
        return kind is not None and issubclass(kind, self.errors)


def is_name(text):
    """Of a run or an attempt."""
    return 0 < len(text) <= NAME_MAX and text[0] in ALPHANUMERIC and NAME.issuperset(text)


def is_sha256(text):
    return len(text) == 64 and HEXADECIMAL.issuperset(text)


def root(*parts):
    return os.path.join(os.path.expanduser("~"), ".tpuctl", *parts)


def source_of(module):
    """The text of a module of this program; `pkgutil`, which has it, takes longer to import than most verbs."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), module + ".py"), "rb") as file:
        return file.read()


def make_dir(path):
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def unescape(text):
    """Of a space and the like in mountinfo, proc(5): a backslash and three octal digits."""
    if "\\" not in text:
        return text
    import re

    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), text)


def mount_points():
    """Where something is mounted on this host; nothing where that cannot be known."""
    try:
        with open("/proc/self/mountinfo") as file:
            return [unescape(line.split(" ")[4]) for line in file]
    except OSError:
        return []


def remove_tree(path):
    """Removes a folder of ours. Refused where something is mounted in it: those files are somebody's."""
    import shutil

    top = os.path.realpath(path)
    for mounted in mount_points():
        if mounted == top or mounted.startswith(top + os.sep):
            raise Refused("mounted", "%s is mounted: umount it, then the same again" % mounted)
    shutil.rmtree(path)


def sync_dir(path):
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path, data):
    temp = "%s.%d.tmp" % (path, os.getpid())
    handle = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(json.dumps(data))
        file.flush()
        os.fsync(file.fileno())
    os.rename(temp, path)


def read_json(path):
    try:
        with open(path) as file:
            return json.loads(file.read())
    except (FileNotFoundError, NotADirectoryError):
        return None


END_BYTES = 4096  # one block, for the end of an attempt


def reserve_end(path):
    """Takes the room for the end of an attempt while there is some: what is overwritten in place needs no
    more."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(handle, b" " * END_BYTES)
        os.fsync(handle)
    finally:
        os.close(handle)


def write_end(path, data):
    text = json.dumps(data).encode()
    if len(text) > END_BYTES:
        raise OSError(errno.EFBIG, "the end of an attempt is too long")
    handle = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(handle, text.ljust(END_BYTES), 0)
        os.fsync(handle)
    finally:
        os.close(handle)


def read_end(path):
    """What was written there; None for room that nobody needed, or that is written just now."""
    try:
        with open(path) as file:
            return json.loads(file.read().strip() or "null")
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def file_size(path):
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def need(request, key, kind):
    value = request.get(key)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise Refused("bad-request", "%r is missing or not of type %s" % (key, kind.__name__))
    return value


def need_sha(value):
    if not isinstance(value, str) or not is_sha256(value):
        raise Refused("bad-request", "not a sha256: %r" % (value,))
    return value


class Attempt:
    """The directory of one attempt of one run and what its files say."""

    def __init__(self, request):
        self.run = str(request.get("run", ""))
        self.number = str(request.get("attempt", ""))
        for name in (self.run, self.number):
            if not is_name(name):
                raise Refused("bad-request", "not a run or attempt id: %r" % (name,))
        self.run_dir = root("runs", self.run)
        self.dir = os.path.join(self.run_dir, self.number)

    def path(self, name):
        return os.path.join(self.dir, name)

    def locked(self):
        """Serialises prepare and start of one run; the lock goes with the process."""
        import fcntl

        handle = self.open_lock()
        fcntl.flock(handle, fcntl.LOCK_EX)
        return handle

    def open_lock(self):
        return os.open(os.path.join(make_dir(self.run_dir), "lock"), os.O_RDWR | os.O_CREAT, 0o600)

    def check_fence(self, fence):
        path = os.path.join(self.run_dir, "fence.json")
        highest = (read_json(path) or {}).get("fence", 0)
        if fence < highest:
            raise Refused(
                "stale-fence", "fence %d is older than %d: another tpuctl took over" % (fence, highest)
            )
        if fence > highest:
            write_json(path, {"schema": SCHEMA, "fence": fence})


def answer(data):
    write_all(1, (json.dumps(data) + "\n").encode())
