"""The host side of tpuctl: one file, Python 3.8 standard library, run as `python3 -I -S FILE VERB`.

Reads one JSON line (the request) and, for `put`, raw payload from stdin. Answers one JSON line on stdout and
exits 0, or `{"error": code, "message": text}` and exits 1. `follow`, `read` and `leash` answer with raw bytes.

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

    def chunks(self):
        if self.rest:
            chunk, self.rest = self.rest, b""
            yield chunk
        while True:
            chunk = os.read(0, 1 << 20)
            if not chunk:
                return
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


# ---------------------------------------------------------------- hello, put, prepare


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


def put(request, stdin):
    import hashlib

    digest, size = need_sha(request.get("sha256")), need(request, "size", int)
    path = os.path.join(make_dir(root("blobs")), digest)
    if os.path.exists(path):
        return {"stored": True, "already": True}
    temp = "%s.%d.tmp" % (path, os.getpid())
    check, count = hashlib.sha256(), 0
    handle = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            for chunk in stdin.chunks():
                check.update(chunk)
                count += len(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        if count != size or check.hexdigest() != digest:
            raise Refused("bad-payload", "received %d of %d bytes, or another content" % (count, size))
        os.rename(temp, path)
    except BaseException:
        os.unlink(temp)
        raise
    sync_dir(root("blobs"))
    return {"stored": True, "already": False}


def prepare(request, _stdin):
    attempt, fence = Attempt(request), need(request, "fence", int)
    bundle = request.get("bundle")
    if bundle is not None and not os.path.exists(root("blobs", need_sha(bundle))):
        return {"missing": [bundle]}
    attempt.locked()
    attempt.check_fence(fence)
    prepared = read_json(attempt.path("prepared.json"))
    if prepared is None:
        make_work(attempt, bundle)
        write_json(attempt.path("prepared.json"), {"schema": SCHEMA, "bundle": bundle, "fence": fence})
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


def make_work(attempt, bundle):
    """`work` appears whole or not at all; leftovers of a crash are removed."""
    import shutil

    make_dir(attempt.dir)
    for name in os.listdir(attempt.dir):
        if name == "work" or name.startswith("work.tmp"):
            shutil.rmtree(attempt.path(name))
    temp = attempt.path("work.tmp.%d" % os.getpid())
    os.mkdir(temp, 0o700)
    try:
        if bundle is not None:
            extract(root("blobs", bundle), temp)
        os.rename(temp, attempt.path("work"))
    except BaseException:
        shutil.rmtree(temp, ignore_errors=True)
        raise


def extract(archive, target):
    """Unpacks a .tar.gz; refuses whatever would land, or point, outside `target`."""
    import tarfile

    try:
        with tarfile.open(archive, "r:gz") as tar:
            links = [member_path(member, target) for member in tar if place(tar, member, target)]
    except (tarfile.TarError, EOFError) as error:
        raise Refused("bad-bundle", "not a usable .tar.gz: %s" % error) from error
    inside = os.path.realpath(target)
    for link in links:
        if not is_inside(os.path.realpath(link), inside):
            raise Refused("bad-bundle", "symbolic link leaves the bundle: %r" % os.path.relpath(link, target))


def is_inside(path, directory):
    return path == directory or path.startswith(directory + os.sep)


def member_path(member, target):
    return os.path.join(target, os.path.normpath(member.name))


def place(tar, member, target):
    """Writes one member below `target`; true for a symbolic link, whose end is checked when all are there."""
    name = os.path.normpath(member.name)
    if os.path.isabs(member.name) or ".." in member.name.split("/"):
        raise Refused("bad-bundle", "path leaves the bundle: %r" % member.name)
    if name == ".":
        return False
    path = os.path.join(target, name)
    parent = os.path.dirname(path)
    if os.path.realpath(parent) != os.path.join(os.path.realpath(target), os.path.dirname(name)).rstrip("/"):
        raise Refused("bad-bundle", "path goes through a symbolic link: %r" % member.name)
    make_dir(parent)
    if member.isdir():
        if os.path.islink(path):
            raise Refused("bad-bundle", "path goes through a symbolic link: %r" % member.name)
        make_dir(path)
        return False
    if os.path.lexists(path):
        os.unlink(path)
    if member.issym():
        os.symlink(member.linkname, path)
        return True
    if not member.isfile():
        raise Refused("bad-bundle", "neither file, directory nor symbolic link: %r" % member.name)
    mode = 0o700 if member.mode & 0o100 else 0o600
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(handle, "wb") as file:
        import shutil

        shutil.copyfileobj(tar.extractfile(member), file, 1 << 20)
    os.utime(path, (member.mtime, member.mtime))
    return False


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
    removed, blobs = [], []
    for attempt in list(list_attempts()):
        if (attempt.run, attempt.number) not in keep and look(attempt)["state"] in ENDED:
            shutil.rmtree(attempt.dir)
            removed.append([attempt.run, attempt.number])
    keep_blobs = set(request.get("keep_blobs") or [])
    folder = root("blobs")
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if name not in keep_blobs and SHA256.match(name):
            os.unlink(os.path.join(folder, name))
            blobs.append(name)
    return {"removed": removed, "removed_blobs": blobs}


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
    for verb in (hello, put, prepare, start, status, attempts, stop, follow, read, leash, prune)
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
