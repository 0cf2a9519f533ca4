"""Keeps one bucket mounted on this host: starts gcsfuse, looks at the mount again and again, and mounts it anew
when it died.

Root runs it. `up PLAN` begins or changes a mount, `down PATH` ends one that nobody has open; `leave PATH` first
ends who has, for the host is to go. `keep FOLDER` is the service, which systemd starts where there is one.
Whoever stops the service leaves gcsfuse and its open files alone: the next takes both over. Nothing here ever
removes a file below the path of a mount.

Python 3.8, standard library.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import pwd
import re
import select
import shutil
import signal
import subprocess
import sys
import time

STATE = "/var/lib/tpuctl-mounts"  # a folder for each mount, named after its path
PROGRAMS = "/opt/tpuctl-gcsfuse"  # a folder for each gcsfuse, named after its version or its sha256
UNITS = "/etc/systemd/system"
PROBE_EVERY_S = 3.0
PROBE_S = 10.0
MISSES = 2  # probes in a row without an answer: then it counts as dead
ASK_EVERY_S = 30.0  # one operation of class A and one of class B: about 0.02 USD a day
MOUNT_S = 90.0
STOP_S = 15.0
BUSY_S = 6.0  # longer than whoever only looks at a mount, such as the agent, has it open
GRACE_S = 10.0  # for who has a file open on a mount that is to go with its host
UPLOAD_S = 120.0  # for what was closed last; whoever asks again waits again
UMOUNT_S = 10.0
RECENT_S = 600.0
RESTARTS_MAX = 6  # within RECENT_S; after that it is tried every PATIENCE_S
PATIENCE_S = 300.0
LOG_MAX = 1 << 20
MODULE = rb"\tgithub\.com/googlecloudplatform/gcsfuse/v\d\tv(\d+\.\d+\.\d+)"
DENIED = ("code = PermissionDenied", "Error 403")
LOOK = "another path, or move what is there"


class Refused(Exception):
    """What only a person can change, and what they type for that, or what for: then `on_host` is a command for
    this host."""

    def __init__(self, why, hint="", on_host=""):
        super().__init__(why)
        self.hint = hint
        self.on_host = on_host


def folder_of(path):
    return os.path.join(STATE, hashlib.sha256(path.encode()).hexdigest()[:12])


def read_json(path):
    try:
        with open(path) as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def sha256_of(path):
    found = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            found.update(piece)
    return found.hexdigest()


def write(path, text, mode=0o644):
    temp = "%s.%d.tmp" % (path, os.getpid())
    handle = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(handle, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temp, path)


def mounted(path):
    """Type and source of what is mounted there last; None for nothing (proc(5), mountinfo)."""
    found = None
    with open("/proc/self/mountinfo") as file:
        for line in file:
            before, _, after = line.rstrip("\n").partition(" - ")
            if before.split(" ")[4].replace("\\040", " ") == path:
                found = tuple(after.split(" ")[:2])
    return found


def identity(pid):
    """A process for good: its number and when it was started. None when it is gone."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else [pid, int(fields[19])]


def alive(process):
    return bool(process) and identity(process[0]) == list(process)


def probe(path, seconds=PROBE_S):
    """0 for a mount whose server answers, else its errno; None for one that does not answer in time.

    gcsfuse answers statfs by itself. For all else it may wait for the bucket, and sits out what passes there:
    mounted anew it would lose what programs have open, and wait for the same bucket.
    """
    told, tell = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.closerange(0, tell)  # one that hangs keeps nobody's pipe open, and no lock
            os.closerange(tell + 1, 1024)
            os.statvfs(path)
            os.write(tell, b"0")
        except OSError as error:
            os.write(tell, str(error.errno).encode())
        os._exit(0)
    os.close(tell)
    ready = select.select([told], [], [], seconds)[0]
    said = os.read(told, 10) if ready else b""
    os.close(told)
    if not ready:
        os.kill(pid, signal.SIGKILL)  # not waited for: it may be one that no signal reaches
        return None
    os.waitpid(pid, 0)
    return int(said or b"5")


class BucketProbe:
    """Asks the bucket, through the mount, for a file that is not there, of which no cache of gcsfuse knows.

    The next question waits for the answer to the last one: while the bucket is silent no signal ends the child.
    """

    def __init__(self, path):
        self.path, self.due, self.pid = path, 0.0, 0

    def look(self):
        """Empty where the bucket answered last time, else what is wrong; None while nothing new is known."""
        now = time.monotonic()
        if not self.pid:
            if now >= self.due:
                self.ask(now)
            return None
        if not select.select([self.told], [], [], 0)[0]:
            return "no answer within %d s" % PROBE_S if now - self.asked_at > PROBE_S else None
        said = os.read(self.told, 10)
        os.close(self.told)
        self.pid, self.due = 0, now + ASK_EVERY_S
        number = int(said or b"5")
        return "" if number in (0, errno.ENOENT) else os.strerror(number)

    def ask(self, now):
        self.told, tell = os.pipe()
        self.asked_at = now
        self.pid = os.fork()
        if not self.pid:
            try:
                os.closerange(0, tell)  # as in probe
                os.closerange(tell + 1, 1024)
                os.stat(os.path.join(self.path, ".tpuctl-probe-%s" % os.urandom(8).hex()))
                os.write(tell, b"0")
            except OSError as error:
                os.write(tell, str(error.errno).encode())
            os._exit(0)
        os.close(tell)

    def forget(self):
        """Without waiting for a child that no signal reaches."""
        if self.pid:
            os.close(self.told)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.pid = 0


def check_point(path):
    """Raises Refused unless the folder is there and empty; makes it where nothing is."""
    if os.path.lexists(path) and not os.path.isdir(path):
        raise Refused("%s is not a directory" % path, LOOK, "ls -ld " + path)
    os.makedirs(path, exist_ok=True)
    if os.listdir(path):
        raise Refused("%s is not empty, and its files are not to be hidden" % path, LOOK, "ls -lA " + path)


def close_point(path, closed=True):
    """Whether the folder is immutable now (chattr(1)), or not any more. What is mounted there covers it;
    without a mount a program would write to the boot disk, and what it wrote would hinder the next mount."""
    words = ["chattr", "+i" if closed else "-i", path]
    try:
        return subprocess.run(words, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def unmount(path, lazy=False):
    """What umount complains of; empty when nothing is mounted there any more. Only what a server keeps goes."""
    while mounted(path):
        if not mounted(path)[0].startswith("fuse"):
            return "%s of %s is mounted on %s" % (*mounted(path), path)
        argv = ["umount", *(["-l"] if lazy else []), path]
        process = subprocess.Popen(argv, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        try:
            said = process.communicate(timeout=UMOUNT_S)[1]
        except subprocess.TimeoutExpired:
            process.kill()  # not waited for: it may be one that no signal reaches
            return "umount did not come back within %d s" % UMOUNT_S
        if process.returncode != 0 and mounted(path):
            return said.decode(errors="replace").strip() or "umount failed"
    return ""


def device_at(path, pid="self"):
    """`major:minor` by path of what is mounted in the mount namespace of a process."""
    found = {}
    with contextlib.suppress(OSError), open("/proc/%s/mountinfo" % pid) as file:
        for line in file:
            words = line.split(" ")
            found[words[4].replace("\\040", " ")] = words[2]
    return found if path is None else found.get(path)


def link(path):
    try:
        return os.readlink(path)
    except OSError:
        return ""  # gone, or nobody's


def users_of(path):
    """{pid: one file that it has open} of the mount, whatever that is called in the namespace of the process.
    Links are read, and no file is looked at: that may hang."""
    device, here = device_at(path), link("/proc/self/ns/mnt")
    places, found = {here: [path]}, {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        folder = "/proc/%s/" % pid
        namespace = link(folder + "ns/mnt")
        if namespace not in places:
            mounts = device_at(None, pid)
            places[namespace] = [each for each in mounts if device and mounts[each] == device]
        if not places[namespace]:
            continue
        with contextlib.suppress(OSError):
            names = [folder + each for each in ("cwd", "root", "exe")]
            names += [folder + "fd/" + each for each in os.listdir(folder + "fd")]
            for target in map(link, names):
                if any(target == each or target.startswith(each + "/") for each in places[namespace]):
                    found[int(pid)] = target
                    break
    return found


def said_of(users):
    """`123 python of ada has /mnt/b/x open` of each."""
    said = []
    for pid, target in sorted(users.items()):
        with contextlib.suppress(OSError, KeyError):
            with open("/proc/%d/comm" % pid) as file:
                program = file.read().strip()
            user = pwd.getpwuid(os.stat("/proc/%d" % pid).st_uid).pw_name
            said.append("%d %s of %s has %s open" % (pid, program, user, target))
    return ", ".join(said[:4])


def end_users(path):
    """Ends who has the mount open: TERM, then KILL. What they had open is uploaded when it is closed."""
    for number, seconds in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, 5.0)):
        until = time.monotonic() + seconds
        told = set()
        while time.monotonic() < until:
            users = [pid for pid in users_of(path) if pid != os.getpid()]
            if not users:
                return
            for pid in set(users) - told:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            told.update(users)
            time.sleep(0.1)


def end(process):
    """Ends a process, at last by force."""
    for number, seconds in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, 5.0)):
        until = time.monotonic() + seconds
        while alive(process) and time.monotonic() < until:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process[0], number)
            reap()
            time.sleep(0.1)


def reap():
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class Keeper:
    """The service of one mount."""

    def __init__(self, folder):
        self.folder = folder
        self.plan = read_json(os.path.join(folder, "plan.json"))
        self.path = self.plan["path"]
        before = read_json(os.path.join(folder, "status.json")) or {}
        same = before.get("digest") == self.plan["digest"]
        self.server = before.get("gcsfuse") if same else None
        self.log = os.path.join(folder, "gcsfuse.log")
        self.times = []
        self.stopping = False
        self.status = {
            "path": self.path,
            "bucket": self.plan["bucket"],
            "digest": self.plan["digest"],
            "program": self.plan["program"],
            "version": self.plan["version"],
            "keeper": identity(os.getpid()),
            "keeper_sha256": sha256_of(os.path.abspath(__file__)),
            "restarts": before.get("restarts", 0) if same else 0,
            "detail": before.get("detail", "") if same else "",
            "troubled_at": before.get("troubled_at", 0.0) if same else 0.0,
            "bucket_error": "",
        }

    def note(self, state, detail=None):
        if detail is not None:
            self.status["detail"] = detail
        self.status.update(state=state, gcsfuse=self.server, at=time.time())
        with contextlib.suppress(OSError):  # a full disk must not end the mount
            write(os.path.join(self.folder, "status.json"), json.dumps(self.status))

    def run(self):
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, self.stop)
        while not self.stopping:
            try:
                why = self.mount()
            except Refused as error:
                self.status.update(hint=error.hint, on_host=error.on_host)
                self.note("refused", str(error))
                self.sleep(PROBE_EVERY_S)
                continue
            if not why:
                self.note("up")
                why = self.watch()
            if self.stopping:
                return
            self.status["restarts"] += 1
            self.status.update(troubled_at=time.time(), bucket_error="")
            self.note("restarting", why)
            self.clear()
            self.pause(why)

    def stop(self, *_):
        self.stopping = True

    def sleep(self, seconds):
        until = time.monotonic() + seconds
        while not self.stopping and time.monotonic() < until:
            reap()
            time.sleep(min(0.2, seconds))

    def pause(self, why):
        now = time.monotonic()
        self.times = [at for at in self.times if now - at < RECENT_S] + [now]
        if len(self.times) > RESTARTS_MAX:
            self.note("failed", "%s; it was mounted %d times in vain" % (why, len(self.times)))
            self.sleep(PATIENCE_S)
        else:
            self.sleep(2.0 ** (len(self.times) - 1) - 1)

    def clear(self):
        """Ends the server, and takes the dead mount away from whoever still has it open. One that was unmounted
        ends by itself, and may be uploading what was closed last."""
        if alive(self.server) and mounted(self.path):
            os.kill(self.server[0], signal.SIGKILL)  # one that is stopped hears nothing else
            end(self.server)
        self.server = None
        unmount(self.path, lazy=True)

    def mount(self):
        """Empty once it is mounted and answers, else why not. One that is there from before is taken over."""
        if mounted(self.path):
            if alive(self.server) and probe(self.path) != errno.ENOTCONN:
                return ""  # one that is slow to answer may be uploading: it is judged by several looks
            self.clear()
        clear_foreign(self.path)
        check_point(self.path)
        self.status["open"] = not close_point(self.path)
        if os.path.exists(self.log) and os.stat(self.log).st_size > LOG_MAX:
            os.replace(self.log, self.log + ".1")
        begin = os.stat(self.log).st_size if os.path.exists(self.log) else 0
        self.note("mounting")
        with open(self.log, "ab") as log:
            process = subprocess.Popen(
                self.plan["argv"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=self.plan["environment"],
                start_new_session=True,
            )
        self.server = identity(process.pid)
        self.note("mounting")  # who finishes after a kill has to know the server
        until = time.monotonic() + MOUNT_S
        while not self.stopping and time.monotonic() < until:
            if process.poll() is not None or not alive(self.server):
                return last_line(self.log, begin) or "gcsfuse ended at once"
            if mounted(self.path) and probe(self.path) == 0:
                return ""
            time.sleep(0.1)
        return last_line(self.log, begin) or "gcsfuse did not mount within %d s" % MOUNT_S

    def watch(self):
        """Returns when it is dead, and why."""
        bucket = BucketProbe(self.path)
        try:
            return self.look_at(bucket)
        finally:
            bucket.forget()

    def hear(self, error):
        """Of a bucket that does not answer: to mount it anew would not help, so that it is only told."""
        if error is None or error == self.status["bucket_error"]:
            return
        self.status["bucket_error"] = error
        if error:
            self.status["troubled_at"] = time.time()
        self.note("up", "the bucket does not answer: %s" % error if error else None)

    def look_at(self, bucket):
        misses, due = 0, time.monotonic() + PROBE_EVERY_S
        while not self.stopping:
            self.sleep(0.2)
            self.hear(bucket.look())
            if not alive(self.server):
                return "gcsfuse died"
            if time.monotonic() < due:
                continue
            if not mounted(self.path):
                return "somebody unmounted it"
            said = probe(self.path)
            due = time.monotonic() + PROBE_EVERY_S
            if said == errno.ENOTCONN:
                return "transport endpoint is not connected"
            misses = 0 if said is not None else misses + 1
            if misses >= MISSES:
                return "no answer within %d s, %d times" % (PROBE_S, misses)
        return ""


def last_line(path, begin):
    with open(path, "rb") as file:
        file.seek(begin)
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    failed = [line for line in lines if "rror" in line]
    line = (failed or lines or [""])[-1].strip()
    for mark in ("rpc error: ", "googleapi: "):  # before what Cloud Storage says are the names of functions
        line = line.rpartition(mark)[2]
    return line[-400:]


@contextlib.contextmanager
def locked(folder, name="lock"):
    """Raises BlockingIOError while somebody else has it."""
    handle = os.open(os.path.join(folder, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def keep(folder):
    try:
        with locked(folder, "keeper"):
            Keeper(folder).run()
    except BlockingIOError:
        return  # there is one


def has_systemd():
    return os.path.isdir("/run/systemd/system")


def unit_of(folder):
    return "tpuctl-mount-%s.service" % os.path.basename(folder)


def start(folder, unit):
    argv = [sys.executable, "-I", "-S", os.path.join(folder, "keeper.py"), "keep", folder]
    if has_systemd():
        write(os.path.join(UNITS, unit_of(folder)), unit.replace("@COMMAND@", " ".join(argv)))
        subprocess.run(["systemctl", "daemon-reload"], check=True)
        subprocess.run(["systemctl", "enable", "-q", unit_of(folder)], check=True)
        subprocess.run(["systemctl", "restart", unit_of(folder)], check=True)
        return
    if os.fork():
        return
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for handle in (0, 1, 2):
        os.dup2(null, handle)
    os.closerange(3, 1024)
    os.execve(argv[0], argv, {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/root"})


def stop(folder):
    """The service, not what it keeps."""
    if has_systemd() and os.path.exists(os.path.join(UNITS, unit_of(folder))):
        subprocess.run(["systemctl", "stop", unit_of(folder)], check=True)
    status = read_json(os.path.join(folder, "status.json")) or {}
    end(status.get("keeper"))
    return status


def is_well(folder, plan, here):
    """Mounted as `plan` has it, and kept by the keeper that came with it; another one is replaced."""
    status = read_json(os.path.join(folder, "status.json")) or {}
    return (
        status.get("digest") == plan["digest"]
        and status.get("keeper_sha256") == sha256_of(os.path.join(here, "keeper.py"))
        and status.get("state") == "up"
        and alive(status.get("keeper"))
        and alive(status.get("gcsfuse"))
        and mounted(plan["path"]) is not None
        and probe(plan["path"]) == 0
    )


def check_cache(plan):
    """Raises Refused where the cache is promised more than its disk has."""
    if not plan.get("cache"):
        return
    path, size = plan["cache"]
    there = path
    while not os.path.isdir(there):
        there = os.path.dirname(there)
    space = os.statvfs(there)
    free = space.f_bavail * space.f_frsize >> 20
    used = sum(
        os.stat(os.path.join(at, name)).st_blocks * 512 for at, _, names in os.walk(path) for name in names
    )
    if size > free + (used >> 20):
        free_gib, hint = (free + (used >> 20)) >> 10, "--cache-dir on a larger disk"
        if free_gib:
            hint = "--cache-size %d, or %s" % (free_gib, hint)
        why = "%s has %d GiB free, and the cache may grow to %d GiB" % (path, free_gib, size >> 10)
        raise Refused(why, hint)
    os.makedirs(path, mode=0o700, exist_ok=True)


def program_in(folder):
    """The gcsfuse in there: brought as it is, or unpacked from a package; None for none."""
    paths = [os.path.join(folder, name) for name in ("gcsfuse", "usr/bin/gcsfuse")]
    return next(filter(os.path.exists, paths), None)


def install_program(source, sha256):
    """The path of the gcsfuse that came with the job, a program or a Debian package, put in place if it is not
    there yet."""
    folder = os.path.join(PROGRAMS, sha256[:16])
    if program_in(folder):
        return program_in(folder)
    found = sha256_of(source)
    if found != sha256:
        why = "the gcsfuse that came has the sha256 %s, not %s" % (found[:16], sha256[:16])
        raise Refused(why, "the same command again brings it anew")
    temp = "%s.%d.tmp" % (folder, os.getpid())
    os.makedirs(temp)
    with open(source, "rb") as file:
        packed = file.read(8) == b"!<arch>\n"  # deb(5)
    if packed:  # not installed: that would need the package tool, which is busy after boot
        subprocess.run(["dpkg-deb", "-x", source, temp], check=True, stdin=subprocess.DEVNULL)
    else:
        shutil.copyfile(source, os.path.join(temp, "gcsfuse"))
        os.chmod(os.path.join(temp, "gcsfuse"), 0o755)
    if not program_in(temp):
        shutil.rmtree(temp)
        raise Refused("the package that came has no usr/bin/gcsfuse", "TPUCTL_GCSFUSE=FILE: another one")
    os.rename(temp, folder)
    return program_in(folder)


def version_of(program):
    """As it says itself; one that `go install` made says none, and has that of its module. Else `unknown`."""
    said = subprocess.run([program, "--version"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL).stdout
    found = re.search(rb"version v?(\d+\.\d+\.\d+)", said)
    if not found:
        with open(program, "rb") as file:
            found = re.search(MODULE, file.read())
    return found.group(1).decode() if found else "unknown"


def check_version(program, wanted):
    """Raises Refused for one whose options were not checked, or that has known defects."""
    found = version_of(program)
    if found not in (wanted, "unknown"):
        raise Refused("this gcsfuse is %s, not %s" % (found, wanted), "TPUCTL_GCSFUSE=FILE: one of %s" % wanted)
    return found


def up(plan_file):
    plan = read_json(plan_file)
    here = os.path.dirname(os.path.abspath(plan_file))
    folder = folder_of(plan["path"])
    os.makedirs(folder, exist_ok=True)
    with locked(folder):
        if is_well(folder, plan, here):
            return
        old = read_json(os.path.join(folder, "plan.json"))
        try:
            begin(folder, plan, old, here)
        except (Refused, RuntimeError, OSError, subprocess.CalledProcessError):
            if old is None:  # it was never there: nobody is left to try it again and again
                undo(folder, plan["path"])
            raise


def undo(folder, path):
    """What a first try has left."""
    if os.path.exists(os.path.join(folder, "plan.json")):
        remove(folder, path)
    else:
        shutil.rmtree(folder)


def begin(folder, plan, old, here):
    """Mounts it anew, in the place of what `old` says if that is another. What refuses comes first."""
    check_cache(plan)
    if plan["program"]:
        program = install_program(os.path.join(here, "gcsfuse"), plan["program"])
    else:
        program = program_in(os.path.join(PROGRAMS, plan["version"])) or shutil.which("gcsfuse") or "gcsfuse"
    plan["version"] = check_version(program, plan["version"])
    if old is None:
        clear_foreign(plan["path"])
        check_point(plan["path"])
    elif old["digest"] != plan["digest"]:
        release(folder, plan["path"])
    else:
        stop(folder)
    config = os.path.join(folder, "gcsfuse.yaml")
    write(config, plan["configuration"])
    plan["argv"] = [program, "--config-file=%s" % config, *plan["flags"], plan["bucket"], plan["path"]]
    with open(os.path.join(here, "keeper.py")) as file:
        write(os.path.join(folder, "keeper.py"), file.read())
    write(os.path.join(folder, "plan.json"), json.dumps(plan), 0o600)
    began = time.time()
    start(folder, plan["unit"])
    wait(folder, plan, began)


def clear_foreign(path):
    """What is mounted there that is not ours: a dead gcsfuse goes, anything else stays and is told of."""
    there = mounted(path)
    if there is None:
        return
    if there[0].startswith("fuse") and probe(path) == errno.ENOTCONN:
        unmount(path, lazy=True)
        return
    why = "%s of %s is mounted on %s, and not by tpuctl" % (*there, path)
    raise Refused(why, on_host="sudo umount %s" % path)


def release(folder, path):
    """Ends a mount that nobody has open. Raises Refused, and keeps it as it was, for one that somebody has."""
    status = stop(folder)
    # Never lazily while the server lives: what is open would be cut off, and nobody would be told.
    dead = not alive(status.get("gcsfuse")) or probe(path) == errno.ENOTCONN
    began = time.monotonic()
    busy, users = unmount(path, lazy=dead), {}
    while busy:
        users = users_of(path)
        # Who has ended, and is uploading what it had open, has nothing open any more.
        if time.monotonic() > began + (BUSY_S if users else UPLOAD_S):
            break
        time.sleep(0.2)
        busy = unmount(path, lazy=dead)
    if busy:
        busy = "; ".join(filter(None, [busy, said_of(users)]))
        plan = read_json(os.path.join(folder, "plan.json"))
        if plan is not None:
            began = time.time()
            start(folder, plan["unit"])
            wait(folder, plan, began)
        raise Refused(busy, "end what has it open", "sudo fuser -vm %s" % path)
    while alive(status.get("gcsfuse")):
        if time.monotonic() > began + UPLOAD_S:
            raise RuntimeError("gcsfuse of %s is still uploading after %d s" % (path, UPLOAD_S))
        reap()
        time.sleep(0.1)


def wait(folder, plan, began):
    """Until the service says that it is mounted. Raises Refused, or RuntimeError with what gcsfuse said."""
    until = time.monotonic() + MOUNT_S + 10
    status = {}
    while time.monotonic() < until:
        reap()
        status = read_json(os.path.join(folder, "status.json")) or {}
        if status.get("at", 0) >= began and status.get("digest") == plan["digest"]:
            if status["state"] == "up":
                return
            if status["state"] == "refused":
                raise Refused(status["detail"], status.get("hint", ""), status.get("on_host", ""))
            if status["state"] in ("restarting", "failed"):
                if any(text in status["detail"] for text in DENIED):
                    raise Refused(status["detail"], plan["denied"])
                raise RuntimeError(status["detail"])
        time.sleep(0.1)
    raise RuntimeError(status.get("detail") or "no word from the service of the mount")


def down(path):
    folder = folder_of(path)
    if not os.path.isdir(folder):
        return
    with locked(folder):
        remove(folder, path)


def leave(path):
    """Ends a mount and who has it open: its host is to be deleted."""
    folder = folder_of(path)
    if not os.path.isdir(folder):
        return
    with locked(folder):
        end_users(path)
        remove(folder, path)


def remove(folder, path):
    """Ends a mount and its service. Raises Refused for one that somebody has open."""
    release(folder, path)
    if has_systemd() and os.path.exists(os.path.join(UNITS, unit_of(folder))):
        subprocess.run(["systemctl", "disable", "-q", unit_of(folder)], check=True)
        os.unlink(os.path.join(UNITS, unit_of(folder)))
        subprocess.run(["systemctl", "daemon-reload"], check=True)
    close_point(path, closed=False)
    shutil.rmtree(folder)


def main(arguments):
    os.umask(0o022)
    try:
        {"up": up, "down": down, "leave": leave, "keep": keep}[arguments[0]](arguments[1])
    except Refused as error:
        told = {"refused": str(error), "hint": error.hint, "on_host": error.on_host}
        sys.stderr.write(json.dumps(told) + "\n")
        return 3
    except BlockingIOError:
        sys.stderr.write("another command is at work on this mount\n")
        return 1
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        sys.stderr.write("%s\n" % error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
