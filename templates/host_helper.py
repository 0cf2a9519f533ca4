"""The host side of tpuctl: one file, Python 3.8 standard library, run as `python3 -I -S FILE VERB`.

Reads one JSON line (the request) and, for `lacks` and `receive`, raw content from stdin. Answers one JSON line
on stdout and exits 0, or `{"error": code, "message": text}` and exits 1; lines with `progress` may come before.
`follow`, `read` and `leash` answer with raw bytes.

It writes below ~/.tpuctl only (directories 0700, files 0600, temp file + fsync + rename). It never writes the
environment of a run, which may hold secrets, to disk or into an argument list, and never signals a process
that does not descend from the supervisor or leash that started it.
"""

import contextlib
import errno
import json
import os
import re
import select
import signal
import sys
import time

SCHEMA = 1
STARTING_GRACE_S = 15.0  # marker written, supervisor not heard of: still starting for this long
POLL_S = 0.1
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
EXIT_NOTHING_TO_FOLLOW = 98
ENDED = ("exited", "lost")
CHUNK = 1 << 20
MISSING_NAMED = 100  # an answer stays small; what exactly is missing is asked with `lacks`
ATTEMPTS_KEPT = 10  # ended ones, for their logs
SPARE_S = 3600.0  # content that no attempt uses stays this long: another client may be about to use it
STALE_S = 86400.0
PEER_SILENCE_S = 60.0
SERVED_AT_ONCE = 128
ASKED_AT_ONCE = 200
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
SHA256 = re.compile(r"[0-9a-f]{64}\Z")


USER_UMASK = os.umask(0o077)  # commands of the user get theirs back


class Refused(Exception):
    """A request that is answered with an error code instead of being done."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


# ---------------------------------------------------------------- requests and files


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


# ---------------------------------------------------------------- processes


def boot_id():
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def process_stat(pid):
    """(state, parent, start time) of a process, or None when it is gone."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[1]), int(fields[19])


def is_alive(pid, start_time):
    found = process_stat(pid)
    return found is not None and found[2] == start_time and found[0] not in (b"Z", b"X")


def descendants(ancestor):
    """Living processes below `ancestor`, zombies not counted."""
    parents, dead = {}, set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            found = process_stat(int(name))
            if found:
                parents[int(name)] = found[1]
                if found[0] in (b"Z", b"X"):
                    dead.add(int(name))
    known = {ancestor}
    while True:
        more = {pid for pid, parent in parents.items() if parent in known and pid not in known}
        if not more:
            return known - dead - {ancestor}
        known |= more


def signal_all(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue  # gone, or became another user's (sudo): the caller looks again and reports who is left


class Tree:
    """One command and everything it ever starts: this process adopts orphans, so setsid does not escape."""

    def __init__(self):
        import ctypes

        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "cannot adopt orphans (prctl)")
        self.wake_read, wake_write = os.pipe()
        for handle in (self.wake_read, wake_write):
            os.set_blocking(handle, False)
        self.asked_to_stop = False
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._ask_to_stop)
        self.main = None
        self.main_status = None

    def _ask_to_stop(self, _number, _frame):
        self.asked_to_stop = True

    def spawn(self, argv, env, cwd, stdout, stderr):
        """Starts the main process in a session of its own; OSError when it cannot be started."""
        import subprocess

        def restore():
            os.umask(USER_UMASK)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)

        self.popen = subprocess.Popen(
            argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=restore,
        )
        self.main = self.popen.pid

    def reap(self):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.main:
                self.main_status = status
                self.popen.returncode = 0  # reaped here: keeps Popen from waiting for a reused pid

    def wait(self, timeout, handles=()):
        """Waits for a signal, a readable handle or the timeout; returns the readable handles."""
        readable = select.select([self.wake_read, *handles], [], [], timeout)[0]
        if self.wake_read in readable:
            readable.remove(self.wake_read)
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake_read, 4096)
        self.reap()
        return readable

    def end_all(self, grace):
        """TERM to every descendant, `grace()` seconds, KILL; returns those that could not be killed.

        `grace` is asked again and again, so that a second, more impatient stop counts.
        """
        began = time.monotonic()
        told = set()
        while True:
            self.reap()
            alive = descendants(os.getpid())
            if not alive:
                return alive
            if time.monotonic() - began >= grace():
                break
            signal_all(alive - told, signal.SIGTERM)
            told |= alive
            self.wait(0.05)
        deadline = time.monotonic() + 10.0
        while alive and time.monotonic() < deadline:
            signal_all(alive, signal.SIGKILL)
            self.wait(0.02)
            alive = descendants(os.getpid())
        return alive


def split_status(status):
    """(exit status, signal) of a wait status; one of them is None."""
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def not_started(error):
    """The exit status a shell gives to a command that it cannot start."""
    return 127 if error.errno in (errno.ENOENT, errno.ENOTDIR) else 126


# ---------------------------------------------------------------- hello, prepare


def hello(_request, _stdin):
    import pwd

    home = os.path.expanduser("~")
    space = os.statvfs(home)
    name = os.uname()
    return {
        "schema": SCHEMA,
        "time": time.time(),
        "boot_id": boot_id(),
        "hostname": name.nodename,
        "user": pwd.getpwuid(os.getuid()).pw_name,
        "home": home,
        "python_version": "%d.%d.%d" % sys.version_info[:3],
        "python_executable": sys.executable,
        "kernel": name.release,
        "disk_free_bytes": space.f_bavail * space.f_frsize,
        "cpu_count": os.cpu_count(),
        "worker_id": os.environ.get("TPU_WORKER_ID"),
    }


def prepare(request, _stdin):
    attempt, fence = Attempt(request), need(request, "fence", int)
    bundle = request.get("bundle")
    entries = []
    if bundle is not None:
        entries = find_tree("blobs", need_sha(bundle))
        if entries is None:
            return {"missing": [bundle]}
        check_tree(entries, links_inside=True)
        lacking = [digest for digest, size in blobs_of(entries) if not has_blob("blobs", digest, size)]
        if lacking:
            return {"missing": lacking[:MISSING_NAMED]}
    attempt.locked()
    attempt.check_fence(fence)
    prepared = read_json(attempt.path("prepared.json"))
    if prepared is None:
        make_work(attempt, entries)
        write_json(attempt.path("prepared.json"), {"schema": SCHEMA, "bundle": bundle, "fence": fence})
        sweep(attempt)
    elif prepared.get("bundle") != bundle:
        raise Refused("conflict", "attempt %s was prepared with other code" % attempt.number)
    answer = {"prepared": True, "work_dir": attempt.path("work")}
    if request.get("want_port"):
        answer["free_port"] = free_port()
    return answer


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def make_work(attempt, entries):
    """`work` appears whole or not at all; leftovers of a crash are removed."""
    import shutil

    make_dir(attempt.dir)
    for name in os.listdir(attempt.dir):
        if name == "work" or name.startswith("work.tmp"):
            shutil.rmtree(attempt.path(name))
    temp = attempt.path("work.tmp.%d" % os.getpid())
    os.mkdir(temp, 0o700)
    try:
        materialise(entries, os.fsencode(temp), "blobs", 0o700)
        check_links(entries, os.fsencode(temp))
        os.rename(temp, attempt.path("work"))
    except BaseException:
        shutil.rmtree(temp, ignore_errors=True)
        raise


def is_inside(path, directory):
    return path == directory or path.startswith(directory + os.sep)


# ---------------------------------------------------------------- content by its sha256


def blob_path(area, digest):
    """`blobs` holds the code of runs, `incoming` what `cp` is about to put in its place."""
    if area not in ("blobs", "incoming"):
        raise Refused("bad-request", "no such area: %r" % (area,))
    return root(area, need_sha(digest))


def has_blob(area, digest, size):
    try:
        return os.stat(blob_path(area, digest)).st_size == size
    except FileNotFoundError:
        return False


def store_blob(area, digest, size, chunks):
    """The blob appears whole and right or not at all. Its content is checked again when it is used, so it is
    not forced to the disk here."""
    import hashlib

    path = blob_path(area, digest)
    temp = "%s.%d.tmp" % (path, os.getpid())
    check, count = hashlib.sha256(), 0
    handle = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            for chunk in chunks:
                check.update(chunk)
                count += len(chunk)
                file.write(chunk)
        if count != size or check.hexdigest() != digest:
            raise Refused("bad-payload", "received %d of %d bytes, or another content" % (count, size))
        os.rename(temp, path)
    except BaseException:
        os.unlink(temp)
        raise


def copy_blob(area, digest, size, target):
    """Copies a blob to the open file `target`. A copy, not a link: programs may write into their files."""
    import hashlib

    check, count = hashlib.sha256(), 0
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
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        raise Refused("missing-blob", "%s was damaged on the host's disk" % digest)


def file_matches(path, size, digest):
    """Whether a regular file has this content."""
    import hashlib
    import stat

    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_size != size:
            return False
        check = hashlib.sha256()
        with open(path, "rb") as file:
            for chunk in iter(lambda: file.read(CHUNK), b""):
                check.update(chunk)
    except OSError:
        return False
    return check.hexdigest() == digest


def find_tree(area, digest):
    """The entries of a tree: `["f", path, mode, sha256, size]` with perhaps a time of change, `["l", path,
    target]` and `["d", path, mode]`. None when it is not here."""
    import hashlib

    path = blob_path(area, digest)
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return None
    if hashlib.sha256(content).hexdigest() != digest:
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
        mtime = int(entry[5]) if len(entry) > 5 else None
        return kind, path, int(entry[2]) & 0o777, (need_sha(entry[3]), int(entry[4])), mtime
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


def materialise(entries, target, area, mask=0o777):
    """Writes a checked tree below `target`, a directory that nobody else knows yet."""
    made = []
    for entry in entries:
        kind, path = entry[0], os.path.join(target, entry[1])
        os.makedirs(path if kind == "d" else os.path.dirname(path), mode=0o755, exist_ok=True)
        if kind == "d":
            made.append((path, entry[2]))
        elif kind == "l":
            os.symlink(entry[2], path)
        else:
            write_file(path, entry, area, mask)
    for path, mode in reversed(made):
        os.chmod(path, mode & mask)


def write_file(path, entry, area, mask=0o777):
    _, _, mode, (digest, size), mtime = entry
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as file:
        copy_blob(area, digest, size, file)
        file.flush()
        os.fchmod(file.fileno(), mode & mask)
    if mtime is not None:
        os.utime(path, (mtime, mtime))


def lacks(request, stdin):
    """Which contents of a tree this host lacks, as bits in hexadecimal; `tree` false when it lacks the tree.

    With `size` the tree itself follows the request. With `destination` a file that lies there already counts.
    """
    area, digest = request.get("area"), request.get("tree")
    make_dir(os.path.dirname(blob_path(area, digest)))
    if request.get("size") is not None:
        size = need(request, "size", int)
        store_blob(area, digest, size, stdin.exactly(size))
    return lacking_of(request)


def lacking_of(request):
    area = request.get("area")
    entries = find_tree(area, request.get("tree"))
    if entries is None:
        return {"tree": False, "lacking": ""}
    lies_at = {}
    if request.get("destination") is not None:
        lies_at = destinations(entries, placement(request))
    bits = 0
    for number, blob in enumerate(blobs_of(entries)):
        digest, size = blob
        there = any(file_matches(path, size, digest) for path in lies_at.get(blob, ()))
        if not there and not has_blob(area, digest, size):
            bits |= 1 << number
    return {"tree": True, "lacking": "%x" % bits}


def receive(request, stdin):
    """Contents one after the other behind the request; each counts as soon as it is whole."""
    area = request.get("area")
    count = 0
    for digest, size in need(request, "blobs", list):
        make_dir(os.path.dirname(blob_path(area, digest)))
        store_blob(area, digest, int(size), stdin.exactly(int(size)))
        count += 1
    return {"stored": count}


# ---------------------------------------------------------------- from host to host


def seal(token, role, first, second):
    import hmac

    return hmac.new(token, role + first + second, "sha256").digest()


def token_of(request):
    token = bytes.fromhex(need(request, "token", str))
    if len(token) < 32:
        raise Refused("bad-request", "the token is too short")
    return token


def serve(request, _stdin):
    """Hands out contents to whoever knows the token, until the client is gone or the time is up.

    Contents travel in the clear between hosts of one network; who may ask, and what arrives, is checked.
    """
    import socket
    import threading

    area, token = request.get("area"), token_of(request)
    make_dir(os.path.dirname(blob_path(area, "0" * 64)))
    try:
        listener = socket.create_server((need(request, "address", str), 0), backlog=256)
    except OSError as error:
        raise Refused("no-address", "cannot listen on %s: %s" % (request["address"], error)) from error
    answer({"progress": "serving", "port": listener.getsockname()[1]})
    lifeline, ends = (
        Lifeline(float(request.get("silence_s", 15.0))),
        time.monotonic() + float(request.get("deadline_s", 600.0)),
    )
    while not lifeline.is_cut() and time.monotonic() < ends:
        readable = select.select([0, listener], [], [], 1.0)[0]
        if 0 in readable:
            lifeline.listen()
        if listener in readable and threading.active_count() < SERVED_AT_ONCE:
            connection = listener.accept()[0]
            threading.Thread(target=attend, args=(connection, area, token), daemon=True).start()
    answer({"served": True})
    os._exit(0)


def attend(connection, area, token):
    """One connection: a challenge both ways, then contents by their digests."""
    import hmac

    with connection, contextlib.suppress(OSError, EOFError, Refused):
        connection.settimeout(10.0)
        ours = os.urandom(32)
        connection.sendall(ours)
        theirs = read_exactly(connection, 64)
        if not hmac.compare_digest(theirs[32:], seal(token, b"fetch", ours, theirs[:32])):
            return
        connection.sendall(seal(token, b"serve", theirs[:32], ours))
        connection.settimeout(PEER_SILENCE_S)
        asked = connection.makefile("rb")
        for line in iter(lambda: asked.readline(80), b""):
            send_blob(connection, blob_path(area, line.decode("ascii", "replace").strip()))


def send_blob(connection, path):
    import struct

    try:
        with open(path, "rb") as file:
            connection.sendall(struct.pack(">q", os.fstat(file.fileno()).st_size))
            connection.sendfile(file)
    except FileNotFoundError:
        connection.sendall(struct.pack(">q", -1))


def read_exactly(connection, size):
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise EOFError("the other host hung up")
        data += chunk
    return data


def fetch(request, _stdin):
    """Gets the tree, and of its contents what this host lacks, from a host that serves them.

    The answer is that of `lacks`: what the other host had not is still lacking.
    """
    area, tree = request.get("area"), request.get("tree")
    make_dir(os.path.dirname(blob_path(area, tree)))
    try:
        peer = Peer(request)
        with peer.connection:
            if find_tree(area, tree) is None:
                peer.get(area, [(tree, None)])
            entries = find_tree(area, tree) or []
            wanted = blobs_of(entries)
            bits = int(lacking_of(request)["lacking"] or "0", 16)
            peer.get(area, [blob for number, blob in enumerate(wanted) if bits >> number & 1])
    except (OSError, EOFError) as error:
        raise Refused("no-peer", "cannot fetch from %s: %s" % (request.get("address"), error)) from error
    return {**lacking_of(request), "bytes": peer.bytes}


class Peer:
    """The connection to a host that serves, after both have shown that they know the token."""

    def __init__(self, request):
        import hmac
        import socket

        token = token_of(request)
        where = (need(request, "address", str), need(request, "port", int))
        self.bytes = 0
        self.told = time.monotonic()
        self.connection = socket.create_connection(where, timeout=10.0)
        try:
            theirs, ours = read_exactly(self.connection, 32), os.urandom(32)
            self.connection.sendall(ours + seal(token, b"fetch", theirs, ours))
            if not hmac.compare_digest(read_exactly(self.connection, 32), seal(token, b"serve", ours, theirs)):
                raise Refused("no-peer", "the other host does not know the token")
            self.connection.settimeout(PEER_SILENCE_S)
        except BaseException:
            self.connection.close()
            raise

    def get(self, area, blobs):
        """Asks in batches, so that neither side waits for the other with full buffers."""
        import struct

        for start in range(0, len(blobs), ASKED_AT_ONCE):
            batch = blobs[start : start + ASKED_AT_ONCE]
            self.connection.sendall("".join("%s\n" % digest for digest, _ in batch).encode())
            for digest, expected in batch:
                size = struct.unpack(">q", read_exactly(self.connection, 8))[0]
                if size < 0:
                    continue
                if expected is not None and size != expected:
                    raise Refused("bad-payload", "the other host has another %s" % digest)
                store_blob(area, digest, size, self.content(size))

    def content(self, size):
        while size:
            chunk = self.connection.recv(min(size, CHUNK))
            if not chunk:
                raise EOFError("the other host hung up")
            size -= len(chunk)
            self.bytes += len(chunk)
            if time.monotonic() - self.told > 1.0:
                self.told = time.monotonic()
                answer({"progress": "fetching", "bytes": self.bytes})
            yield chunk


# ---------------------------------------------------------------- cp


def placement(request):
    """Where the paths of a tree belong: a function of the path.

    As with cp: into `destination` if that is a directory, ends in a slash or there are several top-level names;
    otherwise the one name becomes `destination`.
    """
    text = need(request, "destination", str)
    destination = os.path.join(os.fsencode(os.path.expanduser("~")), text.encode("utf-8", "surrogateescape"))
    into = text.endswith("/") or len(need(request, "names", list)) != 1 or os.path.isdir(destination)
    if into:
        return lambda path: os.path.join(destination, path)
    return lambda path: os.path.join(destination, *path.split(b"/")[1:])


def destinations(entries, find):
    """Content to the places where it belongs."""
    places = {}
    for entry in entries:
        if entry[0] == "f":
            places.setdefault(entry[3], []).append(find(entry[1]))
    return places


def place(request, _stdin):
    """Puts a tree whose contents are all here in its place: each file at once, a new directory as a whole."""
    area, tree = request.get("area"), request.get("tree")
    entries = find_tree(area, tree)
    if entries is None:
        raise Refused("missing-blob", "the host lost the list of files meanwhile")
    check_tree(entries, links_inside=False)
    find = placement(request)
    keep_reused(entries, find, area)
    os.umask(USER_UMASK)
    groups = {}
    for entry in entries:
        groups.setdefault(entry[1].split(b"/")[0], []).append(entry)
    for name, group in groups.items():
        place_one(name, group, find, area)
    for digest in [tree] + [digest for digest, _ in blobs_of(entries)]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(blob_path(area, digest))
    return {"placed": len(entries)}


def place_one(name, group, find, area):
    import shutil
    import tempfile

    final = find(name).rstrip(b"/")
    parent = os.path.dirname(final)
    os.makedirs(parent, exist_ok=True)
    is_folder = not any(entry[1] == name and entry[0] != "d" for entry in group)
    if is_folder and os.path.isdir(final):
        return merge(group, find, area)
    if not is_folder and os.path.isdir(final) and not os.path.islink(final):
        raise Refused("in-the-way", "%s is a directory" % os.fsdecode(final))
    if len(group) == 1 and is_same(group[0], final):
        return None
    stage = tempfile.mkdtemp(prefix=b".tpuctl-cp.", dir=parent)
    try:
        materialise(group, stage, area)
        os.rename(os.path.join(stage, name), final)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return None


def keep_reused(entries, find, area):
    """Content that was not sent because it lies in one of its places already, and belongs into others too."""
    for (digest, size), paths in destinations(entries, find).items():
        if has_blob(area, digest, size):
            continue
        right = [path for path in paths if file_matches(path, size, digest)]
        if not right:
            raise Refused("missing-blob", "%s changed meanwhile" % os.fsdecode(paths[0]))
        if len(right) < len(paths):
            with open(right[0], "rb") as file:
                store_blob(area, digest, size, iter(lambda: file.read(CHUNK), b""))


def is_same(entry, path):
    """A file that lies in its place with the right content gets its mode and time and is left alone."""
    if entry[0] != "f" or not file_matches(path, entry[3][1], entry[3][0]):
        return False
    os.chmod(path, entry[2])
    if entry[4] is not None:
        os.utime(path, (entry[4], entry[4]))
    return True


def merge(group, find, area):
    """Into a directory that exists: file by file, never through a symbolic link below it."""
    top = find(group[0][1].split(b"/")[0]).rstrip(b"/")
    folders = []
    for entry in group:
        path = find(entry[1])
        folder = path if entry[0] == "d" else os.path.dirname(path)
        make_real_folders(top, folder)
        if entry[0] == "d":
            folders.append((path, entry[2]))
        elif not is_same(entry, path):
            replace_entry(entry, path, area)
    for path, mode in reversed(folders):
        os.chmod(path, mode)


def make_real_folders(top, folder):
    path = top
    for part in folder[len(top) :].split(b"/"):
        path = os.path.join(path, part) if part else path
        if path != top and os.path.islink(path):
            raise Refused("in-the-way", "%s is a symbolic link" % os.fsdecode(path))
        if not os.path.isdir(path):
            os.mkdir(path)


def replace_entry(entry, path, area):
    if os.path.isdir(path) and not os.path.islink(path):
        raise Refused("in-the-way", "%s is a directory" % os.fsdecode(path))
    temp = os.path.join(os.path.dirname(path), b".tpuctl-cp.%d" % os.getpid())
    try:
        if entry[0] == "l":
            os.symlink(entry[2], temp)
        else:
            write_file(temp, entry, area)
        os.rename(temp, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temp)
        raise


# ---------------------------------------------------------------- start and the supervisor


def start(request, _stdin):
    attempt, fence = Attempt(request), need(request, "fence", int)
    argv, env = need(request, "argv", list), request.get("env") or {}
    if not argv or not all(isinstance(part, str) for part in argv):
        raise Refused("bad-request", "argv must be a list of strings with at least one")
    attempt.locked()
    attempt.check_fence(fence)
    found = look(attempt)
    if found["state"] == "absent":
        raise Refused(
            "not-prepared", "attempt %s of run %s is not prepared here" % (attempt.number, attempt.run)
        )
    if found["state"] != "prepared":
        return {"state": found["state"], "pid": found["pid"], "already": True}
    work = os.path.realpath(attempt.path("work"))
    cwd = os.path.realpath(os.path.join(work, request.get("cwd") or "."))
    if not is_inside(cwd, work):
        raise Refused("bad-request", "cwd leaves the work directory: %r" % request.get("cwd"))
    if os.path.exists(attempt.path("stop.json")):
        raise Refused("stopped", "attempt %s was stopped before it started" % attempt.number)
    try:
        marker = os.open(attempt.path("started"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return {"state": "starting", "pid": None, "already": True}
    os.write(marker, json.dumps({"schema": SCHEMA, "boot_id": boot_id(), "fence": fence}).encode())
    os.fsync(marker)
    os.close(marker)
    sync_dir(attempt.dir)
    environment = {str(key): str(value) for key, value in (request.get("env_defaults") or {}).items()}
    environment.update(os.environ)
    environment.update({str(key): str(value) for key, value in env.items()})
    prefix = [root(part) for part in request.get("path_prepend") or []]
    environment["PATH"] = os.pathsep.join([*prefix, environment.get("PATH") or os.defpath])
    report = detach(lambda: supervise(attempt, argv, environment, cwd, float(request.get("grace_s", 30.0))))
    os.read(report, 1)  # until the supervisor has written its first status, or died
    os.close(report)
    found = look(attempt)
    return {"state": found["state"], "pid": found["pid"], "already": False}


def detach(body):
    """Runs `body(ready)` in a daemon that outlives this process; returns a pipe that ends when it is ready."""
    report, ready = os.pipe()
    child = os.fork()
    if child:
        os.close(ready)
        os.waitpid(child, 0)
        return report
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for handle in (0, 1, 2):
        os.dup2(null, handle)
    keep = os.dup2(ready, 3) if ready != 3 else 3
    os.set_inheritable(keep, False)
    os.closerange(4, 1024)  # this program opens a handful
    os.chdir("/")
    code = 1
    try:
        body()
        code = 0
    finally:
        os._exit(code)


class Record:
    """What the supervisor writes down for whoever looks later."""

    def __init__(self, attempt):
        pid = os.getpid()
        self.path = attempt.path("status.json")
        self.status = {
            "schema": SCHEMA,
            "boot_id": boot_id(),
            "supervisor": {"pid": pid, "start_time": process_stat(pid)[2]},
            "state": "starting",
        }
        write_json(self.path, self.status)

    def note(self, **more):
        """A full disk must not end the run: the next write repeats what this one could not."""
        self.status.update(more)
        with contextlib.suppress(OSError):
            write_json(self.path, self.status)

    def insist(self, **more):
        """The end of a run is written down even if that has to wait for somebody to make room."""
        self.status.update(more)
        while True:
            try:
                return write_json(self.path, self.status)
            except OSError:
                time.sleep(1.0)


def supervise(attempt, argv, env, cwd, grace):
    """Runs one attempt to its end and records it; runs in the daemon, file descriptor 3 tells `start`."""
    record, tree = Record(attempt), Tree()
    try:
        run_main(tree, attempt, argv, env, cwd)
    except OSError as error:
        why = "cannot run %s: %s" % (argv[0], error.strerror)
        with contextlib.suppress(OSError), open(attempt.path("stderr.log"), "ab") as log:
            log.write(("tpuctl: %s\n" % why).encode("utf-8", "surrogateescape"))
        now = time.time()
        record.insist(state="exited", exit_status=not_started(error), started_at=now, ended_at=now, detail=why)
        return
    found = process_stat(tree.main)
    record.note(state="running", pid=tree.main, start_time=found[2] if found else 0, started_at=time.time())
    os.close(3)
    wait_for_end(tree, attempt)
    record.note(stopped=tree.main_status is None)
    left = tree.end_all(lambda: wanted_grace(attempt, grace))
    tree.reap()
    exit_status, number = (None, None) if tree.main_status is None else split_status(tree.main_status)
    record.insist(
        state="exited", exit_status=exit_status, signal=number, ended_at=time.time(), survivors=sorted(left)
    )


def wanted_grace(attempt, default):
    """The latest stop may be more patient or less than what the start asked for."""
    return float((read_json(attempt.path("stop.json")) or {}).get("grace_s", default))


def run_main(tree, attempt, argv, env, cwd):
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    out = os.open(attempt.path("stdout.log"), flags, 0o600)
    err = os.open(attempt.path("stderr.log"), flags, 0o600)
    try:
        tree.spawn(argv, env, cwd, out, err)
    finally:
        os.close(out)
        os.close(err)


def wait_for_end(tree, attempt):
    """Until the main process ended or a stop was asked for, by signal or by file."""
    while tree.main_status is None and not tree.asked_to_stop:
        tree.wait(0.5)
        if os.path.exists(attempt.path("stop.json")):
            return


# ---------------------------------------------------------------- status, stop, attempts, prune


def look(attempt):
    """The state of an attempt from its files and the process table."""
    answer = {
        "run": attempt.run,
        "attempt": attempt.number,
        "state": "absent",
        "exit_status": None,
        "signal": None,
        "started_at": None,
        "ended_at": None,
        "pid": None,
        "stopped": False,
        "detail": "",
        "survivors": [],
        "stdout_bytes": file_size(attempt.path("stdout.log")),
        "stderr_bytes": file_size(attempt.path("stderr.log")),
        "boot_id": boot_id(),
        "time": time.time(),
    }
    status = read_json(attempt.path("status.json"))
    if status is not None:
        answer.update({key: status[key] for key in answer if key in status and key not in ("boot_id", "time")})
        if answer["state"] != "exited" and not supervisor_alive(status):
            # It may have written its end between the two looks.
            status = read_json(attempt.path("status.json")) or status
            answer.update(
                {key: status[key] for key in ("state", "exit_status", "signal", "ended_at") if key in status}
            )
            if answer["state"] != "exited":
                answer.update(state="lost", detail="the supervisor is gone and left no end")
    elif os.path.exists(attempt.path("started")):
        answer["state"] = "starting" if is_fresh(attempt.path("started")) else "lost"
    elif os.path.exists(attempt.path("prepared.json")):
        answer["state"] = "prepared"
    return answer


def supervisor_alive(status):
    who = status["supervisor"]
    return status["boot_id"] == boot_id() and is_alive(who["pid"], who["start_time"])


def is_fresh(marker):
    try:
        with open(marker) as file:
            same_boot = json.load(file).get("boot_id") == boot_id()
    except ValueError:
        same_boot = True  # caught between creating and writing it
    return same_boot and abs(time.time() - os.stat(marker).st_mtime) < STARTING_GRACE_S


def status(request, _stdin):
    return look(Attempt(request))


def stop(request, _stdin):
    attempt = Attempt(request)
    found = look(attempt)
    if found["state"] in ("prepared", "starting", "running"):
        # The file is the request, so that a supervisor which has not come up yet finds it too.
        write_json(
            attempt.path("stop.json"), {"schema": SCHEMA, "grace_s": float(request.get("grace_s", 30.0))}
        )
        recorded = read_json(attempt.path("status.json"))
        if recorded is not None and supervisor_alive(recorded):
            signal_all([recorded["supervisor"]["pid"]], signal.SIGTERM)
    return found


def list_attempts():
    runs = root("runs")
    for run in sorted(os.listdir(runs)) if os.path.isdir(runs) else []:
        for number in sorted(os.listdir(os.path.join(runs, run))):
            if NAME.match(run) and NAME.match(number) and os.path.isdir(os.path.join(runs, run, number)):
                yield Attempt({"run": run, "attempt": number})


def attempts(_request, _stdin):
    return {"attempts": [look(attempt) for attempt in list_attempts()]}


def prune(request, _stdin):
    import shutil

    keep = {(str(run), str(number)) for run, number in request.get("keep") or []}
    removed = []
    for attempt in list(list_attempts()):
        if (attempt.run, attempt.number) not in keep and look(attempt)["state"] in ENDED:
            shutil.rmtree(attempt.dir)
            removed.append([attempt.run, attempt.number])
    return {"removed": removed, "removed_blobs": remove_blobs(set(request.get("keep_blobs") or []), 0.0)}


def remove_blobs(keep, older_than):
    """Removes content of runs that no attempt on this host uses."""
    used = set(keep)
    for attempt in list_attempts():
        bundle = (read_json(attempt.path("prepared.json")) or {}).get("bundle")
        if bundle is not None:
            used.add(bundle)
            used.update(digest for digest, _ in blobs_of(find_tree("blobs", bundle) or []))
    spare = [name for name in aged_files(root("blobs"), older_than) if SHA256.match(name) and name not in used]
    for name in spare:
        drop("blobs", name)
    return spare


def drop(area, name):
    with contextlib.suppress(FileNotFoundError):
        os.unlink(root(area, name))


def aged_files(folder, older_than):
    now = time.time()
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        with contextlib.suppress(FileNotFoundError):
            if now - os.stat(os.path.join(folder, name)).st_mtime >= older_than:
                yield name


def sweep(current):
    """Keeps the home directory from filling up: old attempts that are over, and content nobody uses."""
    import shutil

    over = []
    for attempt in list_attempts():
        age = time.time() - os.stat(attempt.dir).st_mtime
        state = look(attempt)["state"]
        if attempt.dir != current.dir and (state in ENDED or (state == "prepared" and age > STALE_S)):
            over.append((age, attempt.dir))
    for _, folder in sorted(over)[ATTEMPTS_KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)
    remove_blobs((), SPARE_S)
    for area in ("blobs", "incoming"):
        for name in list(aged_files(root(area), STALE_S)):
            if area == "incoming" or not SHA256.match(name):
                drop(area, name)  # left by a copy, or by a transfer that broke off


# ---------------------------------------------------------------- follow, read, leash


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


def follow(request, _stdin):
    attempt = Attempt(request)
    held = request.get("silence_s")
    lifeline = Lifeline(float(held)) if held else None
    logs = [
        [1, attempt.path("stdout.log"), int(request.get("stdout_offset", 0))],
        [2, attempt.path("stderr.log"), int(request.get("stderr_offset", 0))],
    ]
    while True:
        state = look(attempt)["state"]
        moved = sum(deliver(log) for log in logs)
        if state in ("absent", "lost") and not moved:
            os._exit(EXIT_NOTHING_TO_FOLLOW)
        if state == "exited" and not moved:
            return
        if lifeline is None:
            time.sleep(0 if moved else POLL_S)
        else:
            if select.select([0], [], [], 0 if moved else POLL_S)[0]:
                lifeline.listen()
            if lifeline.is_cut():
                return


def deliver(log):
    """Copies what was added to a log; returns the number of bytes."""
    handle, path, offset = log
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.read(1 << 18)
    except FileNotFoundError:
        return 0
    write_all(handle, data)
    log[2] += len(data)
    return len(data)


def read(request, _stdin):
    attempt, stream = Attempt(request), request.get("stream")
    if stream not in ("stdout", "stderr"):
        raise Refused("bad-request", "stream must be stdout or stderr, not %r" % (stream,))
    limit = int(request.get("limit", 1 << 20))
    try:
        with open(attempt.path(stream + ".log"), "rb") as file:
            file.seek(int(request.get("offset", 0)))
            while limit > 0:
                data = file.read(min(limit, 1 << 20))
                if not data:
                    break
                limit -= len(data)
                write_all(1, data)
    except FileNotFoundError:
        raise Refused("absent", "no such log on this host") from None


def leash(request, _stdin):
    argv = request.get("argv")
    if not argv:
        argv = [os.environ.get("SHELL") or "/bin/sh", "-c", need(request, "shell", str)]
    env = dict(os.environ)
    env.update({str(key): str(value) for key, value in (request.get("env") or {}).items()})
    grace, lifeline = float(request.get("grace_s", 2.0)), Lifeline(float(request.get("silence_s", 15.0)))
    tree = Tree()
    try:
        tree.spawn(argv, env, request.get("cwd") or None, None, None)
    except OSError as error:
        write_all(2, os.fsencode("tpuctl: cannot run %s: %s\n" % (argv[0], error.strerror)))
        os._exit(not_started(error))
    while tree.main_status is None and not tree.asked_to_stop and not lifeline.is_cut():
        if 0 in tree.wait(min(1.0, lifeline.silence), [0]):
            lifeline.listen()
    tree.end_all(lambda: grace)
    tree.reap()
    code, number = split_status(tree.main_status) if tree.main_status is not None else (None, signal.SIGKILL)
    os._exit(code if number is None else 128 + number)


# ---------------------------------------------------------------- main

VERBS = {
    verb.__name__: verb
    for verb in (
        *(hello, lacks, receive, serve, fetch, place),
        *(prepare, start, status, attempts, stop, follow, read, leash, prune),
    )
}


def answer(data):
    write_all(1, (json.dumps(data) + "\n").encode())


def main(arguments):
    stdin = Stdin()
    try:
        verb = VERBS.get(arguments[0] if arguments else "")
        if verb is None:
            raise Refused("bad-request", "no such verb: %r" % (arguments[:1],))
        try:
            request = json.loads(stdin.line().decode() or "{}")
        except ValueError as error:
            raise Refused("bad-request", "the request is not JSON: %s" % error) from error
        if not isinstance(request, dict):
            raise Refused("bad-request", "the request is not an object")
        result = verb(request, stdin)  # None: it answered with raw bytes
        if result is not None:
            answer(result)
        return 0
    except Refused as error:
        answer({"error": error.code, "message": str(error)})
    except BrokenPipeError:
        pass  # the client went away; there is nobody to tell
    except Exception as error:
        # Whatever the operating system does must reach the client as an answer.
        answer({"error": "host-error", "message": "%s: %s" % (type(error).__name__, error)})
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
