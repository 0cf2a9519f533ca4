"""A root part: brings a mounted file system to the size of its device, while programs use it.

The device is looked at again first, for a kernel learns late that a disk has grown. A file system that is held
still is left alone: growing waits for the hold's end.
"""

import os

import freeze
from disk_stack import folder_of, read
from facts_storage import mounts
from operations import Failed
from rooted import run_program

SECTOR = 512
LONGEST_S = 240
WAYS = {
    "ext4": ("resize2fs", "device"),
    "ext3": ("resize2fs", "device"),
    "xfs": ("xfs_growfs", "path"),
}
"""Type of a file system → what grows it while it is mounted, and what that is given."""
RESCAN = ("device/rescan", "device/rescan_controller")
"""Of SCSI and NVMe disks, below /sys/class/block/NAME: the kernel asks the disk for its size."""


def main(request):
    """`path`, where the disk is mounted to be written, and `size` of the disk in bytes. {"fs": its type}, or
    {"fs": ""} where nothing is mounted there."""
    mount = mount_at(request["path"])
    if mount is None:
        return {"fs": ""}
    if mount["read_only"]:
        raise Failed("%s is mounted read-only" % mount["path"], permanent=True)
    if os.path.isdir(freeze.FOLDER) and freeze.holder_of([mount["device"]]) is not None:
        raise Failed("%s is held still for a copy" % mount["path"])
    folder = folder_of(mount["device"])
    rescan(os.path.basename(os.path.realpath(folder)))
    size = int(read(os.path.join(folder, "size"))) * SECTOR
    if size < request["size"]:
        raise Failed("the host sees %d GiB of the disk yet" % (size >> 30))
    if mount["fs"] not in WAYS:
        why = "a %s file system on %s is not grown while it is mounted" % (mount["fs"], mount["path"])
        raise Failed(why, permanent=True)
    program, given = WAYS[mount["fs"]]
    what = mount["source"] if given == "device" else mount["path"]
    grow([program, what])
    return {"fs": mount["fs"]}


def grow(words):
    """What is as large already stays so, and that is no failure."""
    try:
        status, said = run_program(["sh", "-c", '"$@" 2>&1 > /dev/null', "sh", *words], LONGEST_S)
    except (OSError, TimeoutError) as error:
        raise Failed("%s: %s" % (words[0], error)) from error
    if status != 0:
        lines = said.decode(errors="replace").strip().splitlines()
        raise Failed("%s: %s" % (words[0], lines[-1] if lines else "status %d" % status), permanent=True)


def mount_at(path):
    """The topmost mount there; None where there is none, or it is on no device."""
    found = [each for each in mounts() if each["path"] == path]
    return found[-1] if found and not found[-1]["device"].startswith("0:") else None


def rescan(name):
    for each in RESCAN:
        path = os.path.join("/sys/class/block", name, each)
        if os.path.exists(path):
            with open(path, "w") as file:
                file.write("1")
            return
