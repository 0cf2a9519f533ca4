"""`vacate`: proves that nothing of this host is on its way to a disk any more, before the disk leaves it.

The disks are found as the login user, what needs root is in vacate_root.py. For `leave`, whoever has a file
open stays and is named; for `delete`, programs are ended first.
"""

from base import Refused
from disk_names import choose, writable
from operations import Failed
from rooted import run_root

SECONDS = 900
"""For all that is written to be on the disk; a host that is asked again meanwhile says that it is at work."""


def vacate(request, _stdin):
    """`purpose` (leave, delete); `disks`: those of the node's list that can be written here, each with `name`,
    `label` and `path`, where the slice has it; `only`: names of those of them that are asked for, and all that
    can be written, if empty; `patience_s`."""
    only = request["only"]
    try:
        found = writable()
        if only:
            found = choose(found, request["disks"], only)
        if not found:
            return {"state": "done", "disks": []}
        wanted = {key: request[key] for key in ("purpose", "patience_s", "grace_s")}
        return run_root(None, "vacate_root", dict(wanted, devices=found, seconds=SECONDS), SECONDS)
    except Failed as error:
        raise Refused("failed", error.args[0] + ("; " + error.hint if error.hint else "")) from error
