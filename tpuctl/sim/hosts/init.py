"""The init process of a simulated host: starts its sessions' processes and can kill every descendant.

Runs as a script of its own under the base interpreter (standard library only), because a host must not share
a process with the server: a child subreaper adopts daemons that forked twice, changed their session and
cleaned their environment, so that nothing of a host escapes `killall`; see prctl(2), PR_SET_CHILD_SUBREAPER.

Where the simulator is root, it stays root and what it starts is nobody: see `RIGHTS_DROPPED`.

One nursery per backend forks one such process per host. Messages are a 4-byte length and JSON over a stream
socket; file descriptors travel with the length. When the socket closes, even because the server was killed,
it kills what is left and exits.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import json
import os
import select
import signal
import socket
import struct
import sys
import termios
import time
from collections.abc import Mapping
from typing import Any, NoReturn

PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECUREBITS = 28
PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 47, 2
SECBIT_NO_SETUID_FIXUP = 1 << 2
CAPABILITY_VERSION_3 = 0x20080522
CAP_DAC_READ_SEARCH, CAP_SETGID, CAP_SETUID, CAP_SETPCAP, CAP_NET_BIND_SERVICE = 2, 6, 7, 8, 10
NOBODY = 65534
"""User and group; the same on every Linux distribution."""
KILL_DEADLINE_S = 10.0
"""A process in uninterruptible sleep cannot be killed; do not wait for it for ever."""


def send_message(sock: socket.socket, message: Mapping[str, Any], fds: list[int] | None = None) -> None:
    payload = json.dumps(message).encode()
    header = struct.pack(">I", len(payload))
    if fds:
        socket.send_fds(sock, [header], fds)
        sock.sendall(payload)
    else:
        sock.sendall(header + payload)


def receive_message(sock: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The next message and its descriptors; None at the end of the stream."""
    header, fds, _, _ = socket.recv_fds(sock, 4, 4)
    for fd in fds:
        os.set_inheritable(fd, False)  # recv_fds ignores MSG_CMSG_CLOEXEC (CPython 3.11)
    header += _receive_exactly(sock, 4 - len(header)) if header else b""
    if len(header) < 4:
        return None, list(fds)
    payload = _receive_exactly(sock, struct.unpack(">I", header)[0])
    return json.loads(payload), list(fds)


def _receive_exactly(sock: socket.socket, size: int) -> bytes:
    chunks = b""
    while len(chunks) < size:
        chunk = sock.recv(size - len(chunks))
        if not chunk:
            break
        chunks += chunk
    return chunks


def _may_drop_rights() -> bool:
    with open("/proc/self/status") as status:  # noqa: PTH123
        held = int(status.read().partition("CapEff:")[2].split()[0], 16)
    needed = (CAP_DAC_READ_SEARCH, CAP_SETGID, CAP_SETUID, CAP_SETPCAP)
    return os.geteuid() == 0 and all(held >> each & 1 for each in needed)


RIGHTS_DROPPED = _may_drop_rights()
"""Whether programs of hosts run as nobody. What they may still do as root is read: the interpreter, code and
the hosts' own folders are often below root's home. A container that withholds that (Docker's default, without
CAP_DAC_READ_SEARCH) could not run them otherwise, so they stay root there."""


def keeps_root() -> bool:
    """Whether programs of hosts stay root, so that what cleans up there cleans up this machine."""
    return os.geteuid() == 0 and not RIGHTS_DROPPED


def _keep_only(*capabilities: int) -> None:
    """Of the calling thread; see capset(2)."""
    low = sum(1 << each for each in capabilities)
    header = struct.pack("Ii", CAPABILITY_VERSION_3, 0)
    if ctypes.CDLL(None, use_errno=True).capset(header, struct.pack("6I", low, low, low, 0, 0, 0)) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def prctl(*arguments: int) -> None:
    """All five are read as long: the kernel refuses what is left over in the upper half of an unused one."""
    words = [ctypes.c_ulong(each) for each in (*arguments, 0, 0, 0, 0)[:5]]
    if ctypes.CDLL(None, use_errno=True).prctl(*words) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def drop_rights_of_thread() -> None:
    """The calling thread, and those that it starts, make, change and remove files as nobody, but may listen on
    any port. The other threads of the process stay root: credentials belong to threads, credentials(7)."""
    if not RIGHTS_DROPPED:
        return
    prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP)  # without it, access(2) heeds no capability of nobody's
    libc = ctypes.CDLL(None)
    libc.setfsgid(NOBODY)
    libc.setfsuid(NOBODY)
    _keep_only(CAP_DAC_READ_SEARCH, CAP_NET_BIND_SERVICE)


def give_to_hosts(folder: str | os.PathLike[str]) -> None:
    """Lets programs of hosts write there."""
    if RIGHTS_DROPPED:
        os.chown(folder, NOBODY, NOBODY)


def _drop_rights() -> None:
    """The calling process becomes nobody for good, and so does what it executes."""
    prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    _keep_only(CAP_DAC_READ_SEARCH)
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_READ_SEARCH)


def children_of(pid: int) -> list[int]:
    """Direct children of a single-threaded process."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as listing:  # noqa: PTH123 - start-up cost of pathlib
            return [int(child) for child in listing.read().split()]
    except OSError:
        return _children_by_scan(pid) if os.path.isdir(f"/proc/{pid}") else []  # noqa: PTH112


def _children_by_scan(pid: int) -> list[int]:
    """The same for kernels without CONFIG_PROC_CHILDREN, and for threads that forked."""
    found = []
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat") as stat:  # noqa: PTH123
                parent = int(stat.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found.append(int(entry))
    return found


def kill_descendants(reaped: dict[int, int]) -> bool:
    """SIGKILL until no child is left; orphans of each round become children of the caller, the subreaper.

    Wait statuses are added to `reaped`. False if something survived the deadline.
    """
    deadline = time.monotonic() + KILL_DEADLINE_S
    while True:
        for child in children_of(os.getpid()):
            os.kill(child, signal.SIGKILL)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                break
            reaped[pid] = status
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)


def descendants_of(pid: int) -> list[int]:
    """Every process below `pid`, parents before their children: who is told to end may take along what it
    knows."""
    found = [pid]
    for each in found:
        found += children_of(each)
    return found[1:]


def try_kill(pid: int, number: int = signal.SIGKILL) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it ended just now


def _exec_child(message: Mapping[str, Any], fds: list[int], control: socket.socket) -> NoReturn:
    try:
        control.close()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        if message["tty"]:
            fcntl.ioctl(fds[0], termios.TIOCSCTTY, 0)
        for target, source in enumerate(fds if len(fds) == 3 else fds * 3):
            os.dup2(source, target)
        os.umask(0o022)
        if RIGHTS_DROPPED:
            _drop_rights()
        prctl(PR_SET_NO_NEW_PRIVS, 1)  # nothing on a host becomes root
        os.chdir(message["cwd"])
        os.execve(message["program"], message["argv"], message["env"])  # noqa: S606 - the point of it
    except OSError as error:
        os.write(2, f"{message['program']}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


class HostInit:
    """The main loop of one host."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._sessions: dict[int, int] = {}
        self._terminating = False

    def run(self) -> None:
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            while True:
                control = self._control.fileno()
                readable, _, _ = select.select([control, wake_read], [], [])
                if wake_read in readable:
                    os.read(wake_read, 4096)
                    self._reap()
                if control in readable and not self._obey():
                    return
        except (ConnectionError, BrokenPipeError):
            return
        finally:
            kill_descendants({})

    def _obey(self) -> bool:
        message, fds = receive_message(self._control)
        if message is None:
            return False
        try:
            self._handle(message, fds)
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _handle(self, message: Mapping[str, Any], fds: list[int]) -> None:
        if message["op"] == "spawn":
            pid = os.fork()
            if pid == 0:
                _exec_child(message, fds, self._control)
            self._sessions[pid] = message["id"]
        elif message["op"] == "signal":
            self._signal(message["id"], message["signal"])
        elif message["op"] == "terminate":
            for pid in descendants_of(os.getpid()):
                try_kill(pid, signal.SIGTERM)
            self._terminating = True
            self._reap()
        elif message["op"] == "killall":
            reaped: dict[int, int] = {}
            clean = kill_descendants(reaped)
            for pid, status in reaped.items():
                self._report(pid, status)
            send_message(self._control, {"op": "killed", "clean": clean})

    def _signal(self, session: int, number: int) -> None:
        for pid, known in self._sessions.items():
            if known == session:
                try:
                    os.killpg(pid, number)
                except ProcessLookupError:
                    return  # it ended just now; its status is on the way

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                if self._terminating:
                    self._terminating = False
                    send_message(self._control, {"op": "quiet"})
                return
            if pid == 0:
                return
            self._report(pid, status)

    def _report(self, pid: int, status: int) -> None:
        session = self._sessions.pop(pid, None)
        if session is not None:
            code = os.waitstatus_to_exitcode(status)
            send_message(self._control, {"op": "exit", "id": session, "code": code})


def become_subreaper() -> None:
    """Makes this process the parent of every descendant whose own parent dies (prctl(2))."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def _reap_inits(inits: set[int]) -> None:
    """They end by themselves; what one that was killed leaves behind must not outlive it."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            inits.clear()
            return
        inits.discard(pid)
        if pid == 0:
            orphans = set(children_of(os.getpid())) - inits
            for orphan in orphans:
                os.kill(orphan, signal.SIGKILL)
            return


def nursery(control: socket.socket) -> None:
    """Forks an init process for each descriptor received, until the server goes."""
    become_subreaper()
    inits: set[int] = set()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which then closes the socket
    gc.freeze()
    while True:
        select.select([control], [], [], 5.0 if inits else None)
        _reap_inits(inits)
        if not select.select([control], [], [], 0)[0]:
            continue
        message, fds = receive_message(control)
        if message is None:
            break
        pid = os.fork()
        if pid == 0:
            control.close()
            become_subreaper()
            HostInit(socket.socket(fileno=fds[0])).run()
            os._exit(0)
        inits.add(pid)
        os.close(fds[0])
    while inits:  # their sockets are closed too; leave no one behind
        _reap_inits(inits)
        time.sleep(0.002)


if __name__ == "__main__":
    nursery(socket.socket(fileno=int(sys.argv[1])))
