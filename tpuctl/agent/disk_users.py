"""Who uses a file system or a device: every process' open files, folders, program and mapped memory. As root.

What a link leads to is told by the number of its mount, not by a look at the file: a file system that is
frozen, or whose server is gone, makes whoever looks at it wait for ever.
"""

import os

from base import suppress
from disk_stack import number
from mount_spaces import O_PATH, mount_of, table
from processes import ancestors, pids, proc_text

FOLDERS = ("cwd", "root")
OURS = ("gcsfuse",)  # its cache may lie on a disk


def main(request):
    """Which programs have a file of some file systems open for writing, of all users and in every mount
    namespace. `devices`: `MAJOR:MINOR` of the file systems. Only what the kernel notes of open files is read:
    a look at the files themselves may hang, as on a bucket that does not answer."""
    wanted = set(request["devices"])
    mounts = {each["id"] for space in table() for each in space["mounts"] or () if each["device"] in wanted}
    return {"writers": sum(writes(pid, mounts) for pid in pids())}


def writes(pid, mounts):
    if proc_text(pid, "comm").strip() in OURS:
        return False
    names = []
    with suppress(OSError):  # it has ended meanwhile
        names = os.listdir("/proc/%d/fdinfo" % pid)
    return any(written_mount(proc_text(pid, "fdinfo/" + each)) in mounts for each in names)


def written_mount(text):
    """The number of the mount of a file that is open for writing; -1 for another (proc(5), fdinfo)."""
    rows = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    written = int(rows.get("flags", "0"), 8) & os.O_ACCMODE
    return int(rows.get("mnt_id", "-1")) if written else -1


def users_of(devices, paths=()):
    """[{"pid", "user", "program", "what", "path"}] of all processes but this one and those it descends from.
    `devices` are `major:minor`, of file systems or of devices that are open themselves; `paths` are folders in
    which nobody may be either. `what` is file, cwd, root, map or device."""
    mounted: dict = {}
    for space in table():
        mounted.update((each["id"], each["device"]) for each in space["mounts"] or ())
    ours = ancestors()
    return [found for pid in pids() if pid not in ours for found in uses(pid, devices, paths, mounted)]


def uses(pid, devices, paths, mounted):
    """What one process has there, each thing once."""
    found: dict = {}
    try:
        os.readlink("/proc/%d/exe" % pid)
    except FileNotFoundError:
        return []  # a thread of the kernel, of which there are thousands, or one that has ended
    except OSError:
        pass  # nobody may look at its program, but at its files perhaps
    try:
        links = ["fd/" + name for name in os.listdir("/proc/%d/fd" % pid)]
    except OSError:
        links = []
    for link in [*FOLDERS, *links]:
        path = "/proc/%d/%s" % (pid, link)
        try:
            leads_to = os.readlink(path)
            if not leads_to.startswith("/"):
                continue  # a pipe, a socket
            what = use_of(path, link, leads_to, devices, paths, mounted)
        except OSError:
            continue  # closed meanwhile
        if what:
            found.setdefault((what, leads_to))
    for path in mapped(pid, devices):
        found.setdefault(("map", path))
    files = {path for what, path in found if what == "file"}
    kept = [(what, path) for what, path in found if what != "map" or path not in files]
    return [dict(describe(pid), what=what, path=path) for what, path in kept]


def use_of(path, link, leads_to, devices, paths, mounted):
    """How what `path` (in /proc) leads to is one of those; empty where it is none."""
    kind = "file" if link.startswith("fd/") else link
    if leads_to.startswith("/dev/") and number(os.stat(path).st_rdev) in devices:
        return "device"
    if any(leads_to == each or leads_to.startswith(each + os.sep) for each in paths):
        return kind
    return kind if device_of(path, leads_to, mounted) in devices else ""


def device_of(path, leads_to, mounted):
    """`major:minor` of the file system on which something is that a link leads to."""
    handle = os.open(path, os.O_RDONLY | O_PATH)
    try:
        mount = mount_of(handle)
        if mount in mounted:
            return mounted[mount]
        if leads_to.startswith("/memfd:"):
            return ""
        # It was unmounted lazily: no table has it any more.
        return number(os.fstat(handle).st_dev)
    finally:
        os.close(handle)


def mapped(pid, devices):
    """Files of those file systems in the memory of a process, its program among them."""
    found: dict = {}
    try:
        with open("/proc/%d/maps" % pid, errors="surrogateescape") as file:
            for line in file:
                words = line.rstrip("\n").split(None, 5)
                if len(words) == 6 and words[4] != "0" and decimal(words[3]) in devices:
                    found.setdefault(words[5])
    except OSError:
        return []
    return list(found)


def decimal(number):
    """`08:10` as `8:16`."""
    major, _, minor = number.partition(":")
    return "%d:%d" % (int(major, 16), int(minor, 16))


def describe(pid):
    """Who it is, as far as that can be told."""
    return {"pid": pid, "user": owner(pid), "program": proc_text(pid, "comm").strip()}


def owner(pid):
    uid = next((line.split()[2] for line in proc_text(pid, "status").splitlines() if line[:4] == "Uid:"), "")
    try:
        import pwd

        return pwd.getpwuid(int(uid)).pw_name
    except (ImportError, KeyError, ValueError):
        return uid
