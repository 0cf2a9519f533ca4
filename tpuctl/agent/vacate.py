"""`vacate`: proves that nothing of this host is on its way to a disk any more, before the disk leaves it.

The disks are found as the login user, what needs root is in vacate_root.py. For `leave`, whoever has a file
open stays and is named; for `delete`, programs are ended first.
"""

from base import Refused, need
from disk_stack import is_system, stack
from disks import contents_of, mounts, whole_devices
from operations import Failed
from rooted import run_root

SECONDS = 900
"""For all that is written to be on the disk; a host that is asked again meanwhile says that it is at work."""


def vacate(request, _stdin):
    """`purpose` (leave, delete), `disks`: those of the node's list that can be written here, each with `name`
    and `label`; `only`, names of those of them that are asked for; all that can be written, if empty.
    `patience_s`."""
    need(request, "purpose", str)
    only = need(request, "only", list)
    try:
        found = writable()
        if only:
            found = choose(found, need(request, "disks", list), only)
        if not found:
            return {"state": "done", "disks": []}
        wanted = {key: request.get(key) for key in ("purpose", "patience_s", "grace_s")}
        return run_root(None, "vacate_root", dict(wanted, devices=found, seconds=SECONDS), SECONDS)
    except Failed as error:
        raise Refused("failed", error.args[0] + ("; " + error.hint if error.hint else "")) from error


def writable():
    """Whole disks that can be written, but for the one that the host itself is on."""
    seen = mounts()
    found = [each for each in whole_devices() if not each["read_only"]]
    return [each for each in found if not is_system(stack(each["device"]), seen)]


def choose(found, listed, only):
    """Which of the devices are the disks called `only`: by their labels; else by what is left when all others
    are known. What could be it and cannot be told is all given, with `unclear`: it is proved of each, or of
    none."""
    known = contents_of([each["path"] for each in found])
    labels = {each["path"]: known.get(each["path"], {}).get("LABEL", "") for each in found}
    chosen, left = [], list(found)
    for disk in listed:
        own = [each for each in found if disk.get("label") and labels[each["path"]] == disk["label"]]
        if len(own) == 1:
            left = [each for each in left if each is not own[0]]
            if disk["name"] in only:
                chosen.append(dict(own[0], disk=disk["name"]))
    clear = {each["disk"] for each in chosen}
    missing = [name for name in only if name not in clear]
    if missing:
        unclear = len(left) > 1
        chosen += [dict(each, disk=missing[0], unclear=unclear) for each in left]
    return chosen
