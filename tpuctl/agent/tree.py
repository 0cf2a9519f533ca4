"""`tree`: the files below a path as one digest, and the beginning of one of them. Contents are not read."""

import base64
import hashlib
import json
import os

from base import need
from client import Refused
from disks import WORD
from sending import Walk, open_below, top_of

NO_DATA = ("lost+found", WORD)  # root's alone, on every ext4; ours, another for each copy of a disk


def tree(request, _stdin):
    """The digest is over `[name, size, mtime_ns]` of each file, and `[name, target]` of each link, as lines of
    JSON in the order of names. `sample` is the first file with one of the `endings`."""
    top, limit, endings = top_of(request), need(request, "limit", int), tuple(need(request, "endings", list))
    if not os.path.lexists(top):
        raise Refused("not-found", "no such file or directory: %s" % os.fsdecode(top))
    walk, rows = Walk(top), []
    for row in walk.rows():
        if row[0] != "d" and row[1] not in NO_DATA:
            rows.append([row[1], row[3], row[4]] if row[0] == "f" else [row[1], row[2]])
        if len(rows) > limit:
            raise Refused("too-many", "more than %d files" % limit)
    unread = [each for each in walk.unread if each[0] not in NO_DATA]
    if unread:
        raise Refused("unreadable", "%s: %s" % tuple(unread[0]))
    rows.sort()
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row).encode() + b"\n")
    files = [row for row in rows if len(row) > 2]
    sample = next((row for row in files if row[0].endswith(endings)), None)
    answer = {"sha256": digest.hexdigest(), "files": len(files), "bytes": sum(row[1] for row in files)}
    if sample is not None:
        with open_below(top, sample[0]) as file:
            head = file.read(need(request, "head", int))
        answer["sample"] = {"name": sample[0], "size": sample[1], "head": base64.b64encode(head).decode()}
    return answer
