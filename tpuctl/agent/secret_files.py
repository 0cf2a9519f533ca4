"""The secrets of a program as files in memory, beside its variables.

A folder is called by the mark of the supervisor that made it. It goes at the end of the attempt; what a killed
supervisor left goes when the next one begins.
"""

import os

from base import Refused, remove_tree, suppress
from processes import is_alive

VARIABLE = "TPUCTL_SECRETS"
PREFIX = "tpuctl-secrets-"
MEMORY = ("tmpfs", "ramfs")


def places():
    """Where files may be in memory alone: the user's own place and that of everybody."""
    return [place for place in (os.environ.get("XDG_RUNTIME_DIR"), "/dev/shm") if place]


def write(mark, secrets):
    """The folder with a file for each secret, named like it; None where no place takes them."""
    for place in places():
        with suppress(OSError):  # another user's place, or there is no room
            if is_in_memory(place):
                return write_to(os.path.join(place, PREFIX + mark), secrets)
    return None


def write_to(folder, secrets):
    os.mkdir(folder, 0o700)
    try:
        for name, value in secrets.items():
            handle = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(os.fsencode(value))
    except OSError:
        remove_folder(folder)
        raise
    return folder


def read(mark):
    """The values that the supervisor of this mark left."""
    values = []
    for place in places():
        folder = os.path.join(place, PREFIX + mark)
        with suppress(OSError):
            if os.lstat(folder).st_uid == os.geteuid():
                for name in os.listdir(folder):
                    with open(os.path.join(folder, name), "rb") as file:
                        values.append(os.fsdecode(file.read(1 << 20)))
    return values


def is_in_memory(place):
    from facts_storage import mounts

    kinds = {each["path"]: each["fs"] for each in mounts()}
    place = os.path.realpath(place)
    while place not in kinds and place != "/":
        place = os.path.dirname(place)
    return kinds.get(place) in MEMORY


def remove(mark):
    """What the supervisor of this mark made, and what the program put there."""
    for place in places():
        remove_folder(os.path.join(place, PREFIX + mark))


def sweep():
    """Removes what supervisors left that are gone."""
    for place in places():
        with suppress(OSError):
            for name in os.listdir(place):
                pid, _, start = name[len(PREFIX) :].partition(".")
                alive = pid.isdigit() and start.isdigit() and is_alive(int(pid), int(start))
                if name.startswith(PREFIX) and not alive:
                    remove_folder(os.path.join(place, name))


def remove_folder(folder):
    """If it is there and this user's."""
    with suppress(OSError, Refused):  # where a program left a mount in it, it stays
        if os.lstat(folder).st_uid == os.geteuid():
            remove_tree(folder)
