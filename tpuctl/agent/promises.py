"""What a run was promised of this host: its disks and mounts are there as they were seen when it was asked.

A host that booted since has lost its disks, and a program would write to the boot disk where they were.
"""


def check_promised(promised):
    """Refuses where something of `promised` is not so. Each has `path` and, of a disk, `read_only`, and its
    `word` and `uuid` where they are known; of a bucket `fuse`."""
    if not promised:
        return
    from base import Refused
    from facts_storage import mounts

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
