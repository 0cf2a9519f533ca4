"""Processes: who lives, who descends from whom, and bringing a whole tree to its end."""

import errno
import os
import select
import time

from mask import USER_UMASK

try:
    import _signal as signal  # type: ignore[import-not-found] # without the enumerations, whose import takes longer than all else here
except ImportError:
    import signal

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
KILL_S = 10.0  # what was killed may be in a call of the kernel's
FOLLOW_S = 1.0  # a sudo ends with the program that it waits for


def boot_id():
    """Another one after each boot. The kernel's is that of the machine: where a host is only a part of one,
    such as a container, what makes it may name its boots."""
    named = os.environ.get("TPUCTL_BOOT_ID")
    if named:
        return named
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def pids():
    """Of all processes that this host shows."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def read_proc(pid, name):
    """One of the files that proc(5) has of a process; nothing of one that is gone, or into which we may not
    look."""
    try:
        with open("/proc/%d/%s" % (pid, name), "rb") as file:
            return file.read()
    except OSError:
        return b""


def proc_text(pid, name):
    """The same, for a person."""
    return read_proc(pid, name).decode("utf-8", "replace")


def process_stat(pid):
    """(state, parent, start time) of a process, or None when it is gone."""
    fields = read_proc(pid, "stat").rpartition(b")")[2].split()
    return (fields[0], int(fields[1]), int(fields[19])) if fields else None


def is_alive(pid, start_time):
    found = process_stat(pid)
    return found is not None and found[2] == start_time and found[0] not in (b"Z", b"X")


def descendants(ancestor):
    """Living processes below `ancestor`, zombies not counted."""
    parents, dead = {}, set()
    for pid in pids():
        found = process_stat(pid)
        if found:
            parents[pid] = found[1]
            if found[0] in (b"Z", b"X"):
                dead.add(pid)
    known = {ancestor}
    while True:
        more = {pid for pid, parent in parents.items() if parent in known and pid not in known}
        if not more:
            return known - dead - {ancestor}
        known |= more


def ancestors():
    """This process and those above it."""
    found, pid = set(), os.getpid()
    while pid and pid not in found:
        found.add(pid)
        stat = process_stat(pid)
        pid = stat[1] if stat else 0
    return found


def signal_all(numbers, number):
    for pid in numbers:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue  # gone, or became another user's (sudo): the caller looks again and reports who is left


def can_signal(pid):
    """Whether a process is there and takes signals of ours: another user's does not."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


class Tree:
    """Some commands and everything they ever start: this process adopts orphans, so setsid does not escape."""

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
        self.mains = []  # what was spawned
        self.ends = {}  # of those that ended, in the order of their ends: (wait status, time) by their place

    def _ask_to_stop(self, _number, _frame):
        self.asked_to_stop = True

    def spawn(self, argv, env, cwd, stdout, stderr, stdin=None):
        """Starts a main process in a session of its own, reading nothing if there is no `stdin`; OSError when
        it cannot be started. `argv` may be a function of this program: what Python has loaded is there then."""
        told, tell = os.pipe()
        pid = os.fork()
        if not pid:
            become(argv, env, cwd, (stdin, stdout, stderr), tell)
        os.close(tell)
        number = os.read(told, 16)  # nothing: the program runs, and the pipe closed by itself
        os.close(told)
        if number:
            os.waitpid(pid, 0)
            raise OSError(int(number), os.strerror(int(number)))
        self.mains.append(pid)

    def is_over(self):
        """Whether a main process ended wrongly, or all have ended."""
        return len(self.ends) == len(self.mains) or any(status != 0 for status, _ in self.ends.values())

    def reap(self):
        """Takes note of children that ended. False: there is none left, so no descendant either, because a
        process that loses its parent becomes our child."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid in self.mains:
                self.ends.setdefault(self.mains.index(pid), (status, time.time()))

    def wait(self, timeout, handles=()):
        """Waits for a signal, a readable handle or the timeout; returns the readable handles."""
        readable = select.select([self.wake_read, *handles], [], [], timeout)[0]
        if self.wake_read in readable:
            readable.remove(self.wake_read)
            os.read(self.wake_read, 4096)
        self.reap()
        return readable

    def end_all(self, grace, kept=set):
        """TERM to every descendant, `grace()` seconds, KILL; returns those that could not be killed. Another
        user's (sudo) cannot be told: where only such are left, they have FOLLOW_S to go by themselves.
        Those of `kept()` are left alone.

        `grace` is asked again and again, so that a second, more impatient stop counts.
        """
        began = reached = time.monotonic()
        told: set = set()
        deadline = None
        while True:
            alive = descendants(os.getpid()) - kept() if self.reap() else set()
            now = time.monotonic()
            if any(can_signal(pid) for pid in alive):
                reached = now
            if not alive or now - reached >= FOLLOW_S or (deadline is not None and now >= deadline):
                return alive
            if deadline is None and now - began >= grace():
                deadline = now + KILL_S
            if deadline is None:
                signal_all(alive - told, signal.SIGTERM)
                told |= alive
                self.wait(0.05)
            else:
                signal_all(alive, signal.SIGKILL)
                self.wait(0.02)


def become(argv, env, cwd, streams, tell):
    """Turns this new process into the program; a failure goes to `tell` as an error number.

    What else is open here closes by itself (PEP 446), or is closed for a function.
    """
    number = errno.EINVAL
    try:
        os.setsid()
        os.umask(USER_UMASK)
        for ours in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(ours, signal.SIG_DFL)
        for pythons in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(pythons, signal.SIG_DFL)
        if cwd:
            os.chdir(cwd)
        if streams[0] is None:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for handle, wanted in enumerate(streams):
            if wanted is not None:
                os.dup2(wanted, handle)
        if callable(argv):
            perform(argv, env)
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        number = error.errno or number
    finally:
        os.write(tell, b"%d" % number)
        os._exit(1)


def perform(function, env):
    """Calls a function as if it were a program, and ends with what it returns as its exit status."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        os.closerange(3, 1024)  # this program opens a handful
        os.environ.clear()
        os.environ.update(env)
        status = function()
    except Exception as error:
        os.write(2, ("tpuctl: %s: %s\n" % (type(error).__name__, error)).encode("utf-8", "replace"))
    finally:
        os._exit(status)


def split_status(status):
    """(exit status, signal) of a wait status; one of them is None."""
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def not_started(error):
    """The exit status a shell gives to a command that it cannot start."""
    return 127 if error.errno in (errno.ENOENT, errno.ENOTDIR) else 126


def environment_of(pid):
    """What a program was started with; nothing of one that is gone."""
    pairs = [os.fsdecode(each).partition("=") for each in environment(pid or 0)]
    return {name: value for name, _, value in pairs if name}


def environment(pid):
    """The same as it is there."""
    return read_proc(pid, "environ").split(b"\0")
