"""Mounts in every mount namespace of this host (mount_namespaces(7)): a container, or `unshare -m`, has mounts
that no other namespace shows, and each of them keeps a disk in use. Needs root."""

import os

import quick_json as json
from base import unescape
from facts_storage import parse_mount
from processes import pids, signal

CLONE_NEWNS = 0x00020000  # linux/sched.h
O_PATH = 0o10000000  # fcntl.h; a file that is opened so is not looked at
LIMIT_S = 20
PROC = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)  # there may be none in another namespace


def spaces():
    """{name of a mount namespace: a process in it}, this one first."""
    found = {os.readlink("/proc/self/ns/mnt"): os.getpid()}
    for pid in pids():
        try:
            name = os.readlink("/proc/%d/ns/mnt" % pid)
        except OSError:
            continue  # it is gone; a thread of the kernel has this one's
        found.setdefault(name, pid)
    return found


def inside(pid, work, seconds=LIMIT_S):
    """The result of `work()` in the mount namespace of a process, at its root; None if it cannot be entered, or
    the process is gone. Runs in a child, because a process cannot leave a namespace that it has entered."""
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        os.close(told)
        try:
            signal.alarm(seconds)
            enter(pid)
            os.write(tell, json.dumps([work()]).encode())
        finally:
            os._exit(0)
    os.close(tell)
    said = b""
    with os.fdopen(told, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return json.loads(said.decode())[0] if said else None


def enter(pid):
    """Moves this process into another's mounts, and its root to their root."""
    import ctypes

    handle = os.open("/proc/%d/ns/mnt" % pid, os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(handle, CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter the mounts of process %d" % pid)


def table():
    """The mounts of all namespaces: [{"pid", "mounts"}]; `mounts` is None if they cannot be read. Those of
    this process, usually the only ones, are read without a child."""
    own = os.getpid()
    return [
        {"pid": pid, "mounts": read_mounts() if pid == own else inside(pid, read_mounts)}
        for pid in spaces().values()
    ]


def read_mounts():
    """The mounts in this process's namespace, in the order of their creation."""
    handle = os.open("self/mountinfo", os.O_RDONLY, dir_fd=PROC)
    with open(handle, encoding="utf-8", errors="surrogateescape") as file:
        return [parse(line) for line in file]


def mount_of(handle):
    """The id of the mount of an open file; -1 if it has none."""
    with open(os.open("self/fdinfo/%d" % handle, os.O_RDONLY, dir_fd=PROC)) as file:
        rows = dict(line.split(":", 1) for line in file if ":" in line)
    return int(rows.get("mnt_id", "-1"))


def parse(line):
    """Like `facts_storage.parse_mount`, plus the identity of the mount. `fixed`: its file system is read-only
    through every mount."""
    words = line.split(" - ")[0].split(" ")
    own = {"id": int(words[0]), "parent": int(words[1]), "root": unescape(words[3])}
    own["shared"] = any(each.startswith("shared:") for each in words[6:])
    return dict(parse_mount(line), fixed="ro" in line.rstrip("\n").rpartition(" ")[2].split(","), **own)


def mounts_of(devices):
    """The mounts of these devices (`major:minor`) in all namespaces, this one first, each with the `pid` of a
    process in its namespace."""
    return [
        dict(mount, pid=space["pid"])
        for space in table()
        for mount in space["mounts"] or ()
        if mount["device"] in devices
    ]


def open_mount(mount):
    """A handle of the root of a mount, in any namespace; None if something else is mounted over it, or it
    cannot be opened."""
    import array
    import socket

    ours, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        try:
            signal.alarm(LIMIT_S)
            enter(mount["pid"])
            handle = os.open(mount["path"], os.O_RDONLY | os.O_NOFOLLOW)
            if mount_of(handle) == mount["id"]:
                passed = array.array("i", [handle])
                theirs.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
        finally:
            os._exit(0)
    theirs.close()
    passed = array.array("i")
    with ours:
        for _, kind, data in ours.recvmsg(1, socket.CMSG_SPACE(passed.itemsize))[1]:
            if kind == socket.SCM_RIGHTS:
                passed.frombytes(data[: passed.itemsize])
    os.waitpid(child, 0)
    return passed[0] if passed else None
