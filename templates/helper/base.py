"""What every verb needs: requests from stdin, files below ~/.tpuctl, attempts and their directories."""

import json
import os
import re

SCHEMA = 1
POLL_S = 0.1
ENDED = ("exited", "lost")
CHUNK = 1 << 20
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
SHA256 = re.compile(r"[0-9a-f]{64}\Z")


USER_UMASK = os.umask(0o077)  # commands of the user get theirs back


class Refused(Exception):
    """A request that is answered with an error code instead of being done."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class Stdin:
    """File descriptor 0 read by line, then raw, without losing what came in the same packet."""

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

    def exactly(self, size):
        """The next `size` bytes in pieces; Refused when the stream ends before."""
        while size:
            chunk = self.rest[:size] or os.read(0, min(size, CHUNK))
            self.rest = self.rest[len(chunk) :]
            if not chunk:
                raise Refused("bad-payload", "the stream broke off %d bytes before the end of a file" % size)
            size -= len(chunk)
            yield chunk


def root(*parts):
    return os.path.join(os.path.expanduser("~"), ".tpuctl", *parts)


def make_dir(path):
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


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
        json.dump(data, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temp, path)


def read_json(path):
    try:
        with open(path) as file:
            return json.load(file)
    except (FileNotFoundError, NotADirectoryError):
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
    if not isinstance(value, str) or not SHA256.match(value):
        raise Refused("bad-request", "not a sha256: %r" % (value,))
    return value


class Attempt:
    """The directory of one attempt of one run and what its files say."""

    def __init__(self, request):
        self.run = str(request.get("run", ""))
        self.number = str(request.get("attempt", ""))
        for name in (self.run, self.number):
            if not NAME.match(name):
                raise Refused("bad-request", "not a run or attempt id: %r" % (name,))
        self.run_dir = root("runs", self.run)
        self.dir = os.path.join(self.run_dir, self.number)

    def path(self, name):
        return os.path.join(self.dir, name)

    def locked(self):
        """Serialises prepare and start of one run; the lock goes with the process."""
        import fcntl

        handle = os.open(os.path.join(make_dir(self.run_dir), "lock"), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
        return handle

    def check_fence(self, fence):
        path = os.path.join(self.run_dir, "fence.json")
        highest = (read_json(path) or {}).get("fence", 0)
        if fence < highest:
            raise Refused(
                "stale-fence", "fence %d is older than %d: another tpuctl took over" % (fence, highest)
            )
        if fence > highest:
            write_json(path, {"schema": SCHEMA, "fence": fence})


def write_all(handle, data):
    while data:
        data = data[os.write(handle, data) :]


def answer(data):
    write_all(1, (json.dumps(data) + "\n").encode())
