"""Processes: who lives, who descends from whom, and bringing a whole tree to its end."""

import contextlib
import errno
import os
import select
import signal
import time

from base import USER_UMASK

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


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
