"""The operating system that the agent finds on a host in memory: clock, processes, standard streams.

Files are real ones below the host's folder. What lies below /proc is made of the host's processes.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import os
import posixpath
import signal
import sys
import time
from collections.abc import Mapping, MutableMapping, Sequence
from types import SimpleNamespace
from typing import Any

from tests.support.memory.blocking import Exit, here, look_again, the_host, the_process, wait
from tests.support.memory.process import NEVER, Process, Wait

GIB = 1 << 30
READY = -1
"""The handle of a pipe that has ended: a daemon that was started is ready."""
TELLS_READY = 3
"""The handle on which a daemon says so."""
DEADLINE_S = 1.0
"""Who waits that long in `select` wants to know when nothing came; who waits less looks again and again."""


class _Own:
    """A module of Python, with what is another one on the host."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Paths(_Own):
    @staticmethod
    def expanduser(path: str) -> str:
        return the_host().home if path == "~" else os.path.expanduser(path)


class _Os(_Own):
    path = _Paths(posixpath)
    getpid = staticmethod(lambda: here.process.pid if here.process is not None else 0)
    umask = staticmethod(lambda _mask: 0o022)
    cpu_count = staticmethod(lambda: 240)
    getloadavg = staticmethod(lambda: (0.0, 0.0, 0.0))
    set_blocking = staticmethod(lambda _handle, _blocking: None)
    closerange = staticmethod(lambda _low, _high: None)

    @property
    def environ(self) -> MutableMapping[str, str]:
        if here.process is not None:
            return here.process.env
        return {"HOME": the_host().home, **the_host().environment()}

    @property
    def environb(self) -> Mapping[bytes, bytes]:
        return {os.fsencode(name): os.fsencode(value) for name, value in self.environ.items()}

    @staticmethod
    def uname() -> Any:
        return SimpleNamespace(nodename=the_host().hostname, release="6.8.0-memory", machine="x86_64")

    @staticmethod
    def statvfs(_path: str) -> Any:
        return SimpleNamespace(f_frsize=GIB, f_blocks=100, f_bavail=80)

    @staticmethod
    def listdir(path: Any = ".") -> list[Any]:
        if path == "/proc":
            return [str(each.pid) for each in the_host().processes if each.alive]
        return os.listdir(path)

    @staticmethod
    def stat(path: Any, **more: Any) -> Any:
        if isinstance(path, str) and path.startswith("/proc/"):
            return SimpleNamespace(st_uid=1000)
        return os.stat(path, **more)

    @staticmethod
    def fsync(handle: int) -> None:
        os.utime(handle, (the_host().time, the_host().time))

    @staticmethod
    def close(handle: int | str) -> None:
        if handle in (READY, TELLS_READY) or isinstance(handle, str):
            return
        if here.process is not None and handle in here.process.locks:
            here.process.locks.remove(handle)
        os.close(handle)

    @staticmethod
    def read(handle: int, size: int) -> bytes:
        if handle == READY:
            return b""
        if handle != 0:
            return os.read(handle, size)
        process = the_process()
        while not process.stdin and not process.at_eof:
            wait(Wait(stdin=True))
        data = process.stdin.popleft() if process.stdin else b""
        if data[size:]:
            process.stdin.appendleft(data[size:])
        return data[:size]

    @staticmethod
    def write(handle: int, data: bytes) -> int:
        if handle not in (1, 2):
            return os.write(handle, data)
        process = the_process()
        if here.thread is not None:
            while process.blocked:
                wait(Wait(0.0))
        process.write(bytes(data), "stdout" if handle == 1 else "stderr")
        return len(data)

    @staticmethod
    def kill(pid: int, number: int) -> None:
        found = the_host().find_process(pid)
        if found is None:
            raise ProcessLookupError(errno.ESRCH, "No such process")
        if number == signal.SIGTERM:
            found.terminate()
        elif number:
            found.kill(number)

    @staticmethod
    def _exit(status: int) -> None:
        raise Exit(status)


class _Time(_Own):
    time = monotonic = staticmethod(lambda: the_host().time)
    sleep = staticmethod(lambda seconds: wait(Wait(seconds)))


class _Signal(_Own):
    set_wakeup_fd = staticmethod(lambda _handle: None)
    signal = setitimer = staticmethod(lambda *_what: None)

    @staticmethod
    def alarm(seconds: int) -> None:
        the_process().alarm_at = the_process().now + seconds


class _Sys(_Own):
    executable = "/usr/bin/python3"
    version_info = (3, 10, 12)
    stderr = SimpleNamespace(flush=lambda: None, write=lambda text: the_process().write(text, "stderr"))


def _select(read: Sequence[int], write: Sequence[int], _: object, seconds: float) -> tuple[Any, ...]:
    process = the_process()

    def ready() -> list[int]:
        return [handle for handle in read if handle or process.stdin or process.at_eof]

    if write or ready() or process.stdin:
        return ready(), write, []
    if seconds >= DEADLINE_S:
        wait(Wait(seconds, stdin=True))
    elif seconds:
        look_again(seconds, stdin=True, looks=3)  # so also after a supervisor that looks more seldom
    else:
        wait(Wait(0.0))
    return ready(), [], []


class _Fcntl(_Own):
    @staticmethod
    def flock(file: Any, how: int) -> None:
        """What is waited for is free: nobody else runs until this process waits. It goes with the process."""
        if how & fcntl.LOCK_NB:
            fcntl.flock(file, how)
        else:
            the_process().locks.append(file)


_os = _Os(os)
_own_signal = _Signal(signal)
MODULES: dict[str, Any] = {
    "os": _os,
    "time": _Time(time),
    "signal": _own_signal,
    "_signal": _own_signal,
    "sys": _Sys(sys),
    "select": SimpleNamespace(select=_select),
    "fcntl": _Fcntl(fcntl),
    "gc": SimpleNamespace(disable=lambda: None),
    "pwd": SimpleNamespace(getpwuid=lambda _user: SimpleNamespace(pw_name=the_host().user)),
}


def open_file(path: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
    """`open` of the agent."""
    if not (isinstance(path, str) and path.startswith("/proc/")):
        return builtins.open(path, mode, *more, **named)
    data = read_proc(path)
    return io.BytesIO(data) if "b" in mode else io.StringIO(data.decode())


def read_proc(path: str) -> bytes:
    """proc(5)."""
    host = the_host()
    if path == "/proc/self/mountinfo":
        return "".join(_mount_lines()).encode()
    if path == "/proc/sys/kernel/random/boot_id":
        return host.boot_id.encode()
    pid, _, name = path.removeprefix("/proc/").partition("/")
    process = host.find_process(int(pid)) if pid.isdigit() else None
    if process is None or name not in _OF_PROCESS:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
    return _OF_PROCESS[name](process)


def _mount_lines() -> list[str]:
    host, line = the_host(), "1 0 %s / %s %s - %s none rw\n"
    rows = [line % ("0:1", shared_memory(), "rw", "tmpfs")]
    rows += [
        line % (each["device"], each["path"], "ro" if each["read_only"] else "rw", "ext4")
        for each in host.mounts
    ]
    return rows + [line % ("0:2", path, "rw", "fuse.gcsfuse") for path in host.buckets]


def shared_memory() -> str:
    """Its /dev/shm."""
    return f"{the_host().folder}/shm"


def _stat(process: Process) -> bytes:
    fields = [
        "S",
        str(process.parent.pid if process.parent is not None else 1),
        *("0" * 17),
        str(start_time(process)),
    ]
    return f"{process.pid} (program) {' '.join(fields)}".encode()


def start_time(process: Process) -> int:
    return int(process.started_at * 100)


def _environ(process: Process) -> bytes:
    return b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in process.env.items())


def _cmdline(process: Process) -> bytes:
    return b"".join(os.fsencode(word) + b"\0" for word in process.argv)


def _comm(process: Process) -> bytes:
    return os.fsencode(process.argv[0].rsplit("/", 1)[-1][:15] if process.argv else "program")


_OF_PROCESS = {"stat": _stat, "environ": _environ, "cmdline": _cmdline, "comm": _comm}
__all__ = ["MODULES", "NEVER", "open_file", "shared_memory", "sys"]
