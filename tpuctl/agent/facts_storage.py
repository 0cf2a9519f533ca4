"""The sections `space`, `blocks` and `mounts` of `facts`.

A file system whose server died makes whoever looks at it hang, unkillable at worst: each is looked at by a
child that has a short time, all at once, and one that does not come back counts as dead.
"""

import os
import select
import time

import quick_json as json
from base import unescape
from processes import signal
from rooted import as_root, output_of

PROBE_S = 2.0
SECTOR = 512  # the unit of /sys/class/block/*/size, whatever the disk's own is
PSEUDO = {"autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs"}
PSEUDO |= {"efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "ramfs", "rpc_pipefs"}
PSEUDO |= {"securityfs", "squashfs", "sysfs", "tracefs"}
SPARE_DEVICES = ("ram", "zram", "sr", "fd")
UDEV = {"ID_FS_TYPE": "fs", "ID_FS_UUID": "uuid", "ID_FS_LABEL": "label"}
BLKID = {"TYPE": "fs", "UUID": "uuid", "LABEL": "label"}


def probe_all(paths, seconds=PROBE_S, look=None):
    """{path: how a look at it went}, of those that answered in time; `error` is empty where it went well."""
    children = {}
    for path in paths:
        told, tell = os.pipe()
        pid = os.fork()
        if not pid:
            os.closerange(0, tell)  # one that hangs keeps nobody's pipe open, and no lock
            os.closerange(tell + 1, 1024)
            report(look or look_at, path, tell)
        os.close(tell)
        children[told] = (path, pid)
    found, until = {}, time.monotonic() + seconds
    while children and time.monotonic() < until:
        for told in select.select(list(children), [], [], max(0.0, until - time.monotonic()))[0]:
            path, pid = children.pop(told)
            found[path] = json.loads(os.read(told, 4096).decode() or "null")
            os.close(told)
            os.waitpid(pid, 0)
    for told, (_, pid) in children.items():
        os.close(told)
        os.kill(pid, signal.SIGKILL)  # not waited for: it may be one that no signal reaches
    return found


def report(look, path, tell):
    began = time.monotonic()
    try:
        said = dict(look(path), error="")
    except OSError as error:
        said = {"error": os.strerror(error.errno or 0)}
    os.write(tell, json.dumps(dict(said, took_s=time.monotonic() - began)).encode())
    os._exit(0)


def look_at(path):
    os.stat(path)
    space = os.statvfs(path)
    return {
        "total_bytes": space.f_blocks * space.f_frsize,
        "free_bytes": space.f_bavail * space.f_frsize,
        "free_files": space.f_favail,
    }


def space_facts(request):
    """Of the home directory, of where programs put what is temporary, and of the `paths` asked for."""
    home = os.path.expanduser("~")
    paths = list(dict.fromkeys([home, "/", "/tmp", "/dev/shm", *(request.get("paths") or [])]))
    probed = probe_all(paths)
    return [dict(probed.get(path) or {"error": "no answer"}, path=path) for path in paths]


def mounts_facts(request):
    """Mounts that hold files. `alive`: a look at it came back in `probe_s` seconds, well or with `error`."""
    with open("/proc/self/mountinfo") as file:
        mounts = [parse_mount(line) for line in file]
    mounts = [mount for mount in mounts if mount["fs"] not in PSEUDO]
    probed = probe_all(
        list(dict.fromkeys(mount["path"] for mount in mounts)), float(request.get("probe_s") or PROBE_S)
    )
    for mount in mounts:
        said = probed.get(mount["path"])
        mount.update(alive=said is not None, error=said["error"] if said else "no answer")
    return mounts


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


def blocks_facts(_request):
    """Disks and partitions. What is on them udev knows; where it does not run, blkid(8) looks, as root."""
    links = links_of("/dev/disk/by-id")
    found = []
    for name in sorted(os.listdir("/sys/class/block")):
        folder = os.path.join("/sys/class/block", name)
        size = int(word(folder, "size") or 0) * SECTOR
        if not size or name.rstrip("0123456789") in SPARE_DEVICES:
            continue
        block = {
            "name": name,
            "size_bytes": size,
            "read_only": word(folder, "ro") == "1",
            "partition_of": os.path.basename(os.path.dirname(os.path.realpath(folder)))
            if os.path.exists(os.path.join(folder, "partition"))
            else "",
            "device": word(folder, "dev"),
            "links": links.get(name, []),
            "backing": word(folder, "loop/backing_file"),
        }
        block.update(content_of(name, block["device"]))
        found.append(block)
    return found


def content_of(name, device):
    """Type, uuid and label of the file system on a device, empty where there is none; `fs` is None where nobody
    here may know."""
    empty = {"fs": "", "uuid": "", "label": ""}
    try:
        with open("/run/udev/data/b" + device) as file:
            rows = [line[2:].rstrip("\n").partition("=") for line in file if line.startswith("E:")]
        known = {UDEV[key]: value for key, _, value in rows if key in UDEV}
        if known:
            return dict(empty, **known)
    except OSError:
        pass  # no udev here: ask the device
    said = output_of(as_root(["blkid", "-p", "-o", "export", "/dev/" + name]), any_status=True)
    if said is None:
        return dict(empty, fs=None)
    rows = [line.partition("=") for line in said.splitlines()]
    return dict(empty, **{BLKID[key]: value for key, _, value in rows if key in BLKID})


def links_of(folder):
    """{device: names of the links to it}"""
    found: dict = {}
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        device = os.path.basename(os.path.realpath(os.path.join(folder, name)))
        found.setdefault(device, []).append(name)
    return found


def word(folder, name):
    try:
        with open(os.path.join(folder, name)) as file:
            return file.read().strip()
    except OSError:
        return ""
