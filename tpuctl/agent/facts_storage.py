"""The section `space` of `facts`, and the table of mounts.

A file system whose server died makes whoever looks at it hang, unkillable at worst: each is looked at by a
child that has a short time, all at once, and one that does not come back counts as dead.
"""

import os
import select
import time

import quick_json as json
from base import Refused, unescape
from processes import signal

PROBE_S = 2.0


def probe_all(paths, seconds=PROBE_S, look=None):
    """{path: how a look at it went}, of those that answered in time; `error` is empty where it went well."""
    children = {}
    for path in paths:
        told, tell = os.pipe()
        pid = os.fork()
        if not pid:
            os.closerange(0, tell)  # one that hangs keeps nobody's pipe open, and no lock
            os.closerange(tell + 1, 1024)
            os.write(tell, json.dumps(tried(look or look_at, path)).encode())
            os._exit(0)
        os.close(tell)
        children[told] = (path, pid)
    found, until = {}, time.monotonic() + seconds
    while children and time.monotonic() < until:
        for told in select.select(list(children), [], [], max(0.0, until - time.monotonic()))[0]:
            path, pid = children.pop(told)
            found[path] = json.loads(os.read(told, 1 << 16).decode() or "null")
            os.close(told)
            os.waitpid(pid, 0)
    for told, (_, pid) in children.items():
        os.close(told)
        os.kill(pid, signal.SIGKILL)  # not waited for: it may be one that no signal reaches
    return found


def tried(look, path):
    began = time.monotonic()
    try:
        said = dict(look(path), error="")
    except OSError as error:
        said = {"error": os.strerror(error.errno or 0)}
    return dict(said, took_s=time.monotonic() - began)


def look_at(path):
    os.stat(path)
    space = os.statvfs(path)
    return {
        "total_bytes": space.f_blocks * space.f_frsize,
        "free_bytes": space.f_bavail * space.f_frsize,
    }


def space_facts(request):
    """Of the home directory, of where programs put what is temporary, and of the `paths` asked for. Only those
    are looked at in children, which cost more than all else here: hosts do without none of the others."""
    own = dict.fromkeys([os.path.expanduser("~"), "/", "/tmp", "/dev/shm"])
    probed = {path: tried(look_at, path) for path in own}
    asked = [path for path in request.get("paths") or [] if path not in own]
    probed.update(probe_all(asked))
    return [dict(probed.get(path) or {"error": "no answer"}, path=path) for path in [*own, *asked]]


def mounts():
    """Of this mount namespace, in the order in which they were made: the last one at a path is what shows."""
    with open("/proc/self/mountinfo") as file:
        return [parse_mount(line) for line in file]


def parse_mount(line):
    """proc(5): ID PARENT MAJOR:MINOR ROOT PATH OPTIONS [FIELDS…] - TYPE SOURCE OPTIONS OF THE FILE SYSTEM."""
    before, _, after = line.rstrip("\n").partition(" - ")
    words, (kind, source, more) = before.split(" "), after.split(" ")[:3]
    options = list(dict.fromkeys(words[5].split(",") + more.split(",")))
    return {
        "path": unescape(words[4]),
        "source": unescape(source),
        "fs": kind,
        "options": options,
        "device": words[2],
        "read_only": "ro" in words[5].split(","),
    }


def check_promised(promised):
    """Refuses where a disk or mount of `promised` is not there as it was when it was asked: a host that booted
    since has lost it, and a program would write to the boot disk. Each has `path` and, of a disk, `read_only`,
    and its `word` and `uuid` where they are known; of a bucket `fuse`."""
    there = {mount["path"]: mount for mount in mounts()}  # the last one at a path is what programs see
    for one in promised:
        why = broken(one, there.get(one["path"]))
        if why:
            raise Refused("promise", "%s: %s" % (one["path"], why))


def broken(promise, mount):
    """Why a promise is not kept; empty where it is. Nothing looks into a mount that may hang."""
    if mount is None:
        return "nothing is mounted there"
    is_fuse = mount["fs"].startswith("fuse")
    if promise.get("fuse"):
        return "" if is_fuse else "no bucket is mounted there"
    if is_fuse or mount["device"].startswith("0:"):
        return "no disk is mounted there"
    if mount["read_only"] != promise["read_only"]:
        return "it is %s" % ("read-only" if mount["read_only"] else "not read-only")
    from disks import UNSAFE, uuid_on, word_at

    if any(each in mount["options"] for each in UNSAFE):
        return "its journal was passed over"
    if promise.get("word") and word_at(promise["path"]) != promise["word"]:
        return "it is another copy"
    if promise.get("uuid"):
        uuid = uuid_on(mount["source"], promise["path"])
        if uuid and uuid != promise["uuid"]:  # one that cannot be read tells nothing
            return "it is another disk"
    return ""
