"""Operations that hold the file system of a disk still while it is copied, renew that hold, and let go.

Which device it is, is found here; what needs root is in `freeze.py`. A hold has an id of its own, which its
copy has written down: nobody ends it by another.
"""

import os

from disks import WORD, devices, mounts
from operations import Failed
from rooted import run_root

ROOT_S = 150
NOT_MOUNTED = "it is not mounted"
HINT = "the same with --unmount (nothing may be open there) or --crash-consistent"


def hold_disk(parameters, job):
    """`hold` is the id of the hold, `word` what is written before it begins, `seconds` its lease; the disk has
    the `label`, or is mounted at `path`. Where an earlier hold stands: `busy`, with its id and the `seconds` of
    its lease that are left."""
    told = {"held": parameters["id"]}
    device = device_of(parameters["label"], parameters["path"])
    if device is None:
        return dict(told, how=NOT_MOUNTED)
    found = run_root(job, "freeze", request_of("hold", parameters, device), ROOT_S)
    if found["state"] == "nowhere":
        return dict(told, how=NOT_MOUNTED)
    if found["state"] == "held":
        return dict(told, how=found["how"], word=found["word"])
    if found.get("by"):
        return dict(told, how="busy", by=found["by"], seconds=found["seconds"])
    why = found.get("why") or "its hold has ended already"
    raise Failed("it cannot be held still: %s" % why, permanent=True, hint=HINT)


def request_of(do, parameters, device):
    home = os.path.expanduser("~")
    return {
        "do": do,
        "id": parameters["hold"],
        "devices": [device],
        "seconds": parameters["seconds"],
        "word": [WORD, parameters["word"]],
        "homes": [home, os.path.join(home, ".tpuctl")],
        "how": "unmount" if parameters["unmount"] else "freeze",
    }


def renew_hold(parameters, job):
    """Whether the hold `hold` stands, now for another lease."""
    asked = {"do": "renew", "id": parameters["hold"], "seconds": parameters["seconds"]}
    found = run_root(job, "freeze", asked, ROOT_S)
    return {"renewed": parameters["id"], "stands": found["state"] == "held"}


def release_disk(parameters, job):
    """Ends the hold `hold`, and no other; whether it had stood until now."""
    found = run_root(job, "freeze", {"do": "release", "id": parameters["hold"]}, ROOT_S)
    return {"released": parameters["id"], "stood": found["stood"]}


def device_of(label, path):
    """The disk that can be written here and has this label, else the one that is mounted at `path`; None where
    none is here. Raises Failed where it is not clear which it is."""
    known = [each for each in devices() if not each["read_only"]]
    found = [each["device"] for each in known if label and each["label"] == label]
    there = [mount["device"] for mount in mounts() if mount["path"] == path]
    at_path = [each["device"] for each in known if each["device"] in there]
    if len(found) > 1:
        found = [each for each in found if each in at_path]
        if not found:
            raise Failed("several disks that can be written have the label %s" % label, permanent=True)
    return (found or at_path or [None])[0]
