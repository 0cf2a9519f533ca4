"""Operations that hold the file system of a disk still while it is copied, renew that hold, and let go.

Which device it is, is found here by what the node lists; what needs root is in `freeze.py`. A hold has an id of
its own, which its copy has written down: nobody ends it by another.
"""

import os

from disk_names import choose, writable
from disk_roles import RO, with_roles
from disks import WORD
from operations import Failed
from rooted import run_root

ROOT_S = 150
NOT_MOUNTED = "it is not mounted"
HINT = "the same with --unmount (nothing may be open there) or --crash-consistent"


def hold_disk(parameters, job):
    """`hold` is the id of the hold, `word` what is written before it begins, `seconds` its lease; the disk is
    `disk` of `disks`, which the node lists as writable, each with `name`, `label` and `path`. Where an earlier
    hold stands: `busy`, with its id and the `seconds` of its lease that are left."""
    told = {"held": parameters["id"]}
    devices = devices_of(parameters)
    if not devices:
        return dict(told, how=NOT_MOUNTED)
    found = run_root(job, "freeze", request_of("hold", parameters, devices), ROOT_S)
    if found["state"] == "nowhere":
        return dict(told, how=NOT_MOUNTED)
    if found["state"] == "held":
        return dict(told, how=found["how"], word=found["word"])
    if found.get("by"):
        return dict(told, how="busy", by=found["by"], seconds=found["seconds"])
    why = found.get("why") or "its hold has ended already"
    raise Failed("it cannot be held still: %s" % why, permanent=True, hint=HINT)


def request_of(do, parameters, devices):
    home = os.path.expanduser("~")
    return {
        "do": do,
        "id": parameters["hold"],
        "devices": devices,
        "seconds": parameters["seconds"],
        # Of several disks only one is this one, and a copy of another has another word.
        "word": [WORD, parameters["word"]] if len(devices) == 1 else None,
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


def devices_of(parameters):
    """The devices (`major:minor`) that are or may be the disk: all that cannot be told apart stand still.
    Raises Failed where they are to be unmounted, which only the disk itself may be."""
    known = [each for each in with_roles(writable()) if each["role"] != RO]
    found = choose(known, parameters["disks"], [parameters["disk"]])
    if len(found) > 1 and parameters["unmount"]:
        why = "which of %s is disk %s cannot be told" % (
            ", ".join(each["path"] for each in found),
            parameters["disk"],
        )
        raise Failed(why, permanent=True, hint="the same without --unmount: all of them are held still")
    return [each["device"] for each in found]
