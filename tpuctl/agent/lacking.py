"""`lacks`: what is missing for a tree. Apart from `place`, which a new host need not compile to start a run."""

import os

from base import Attempt, make_dir
from contents import blob_path, blobs_of, file_matches, find_tree, has_blob, part_size, receive


def lacks(request, stdin):
    """Which contents of a tree this host lacks, as bits in hexadecimal; `tree` false when it lacks the tree.

    With `follows` the tree itself comes behind the request. With `destination` a file that lies there already
    counts. With `copy`, the name of one, the answer says how that stands; it waits up to `patience_s` for its
    end, and where that has not come then says nothing more: to look would read all that lies there.
    """
    make_dir(os.path.dirname(blob_path(request["area"], request["tree"])))
    if request["follows"]:
        receive(request, stdin)
    if request["copy"] is None:
        return lacking_of(request)
    from copies import stands

    copy = Attempt(request["copy"])
    if request["patience_s"]:
        from jobs import wait_for_jobs

        wait_for_jobs([copy], request)
    found = stands(copy)
    if request["patience_s"] and found["state"] in ("starting", "running"):
        return {"copy": found}
    return dict(lacking_of(request), copy=found)


def lacking_of(request):
    area = request["area"]
    entries = find_tree(area, request["tree"])
    if entries is None:
        return {"tree": False, "lacking": ""}
    lies_at = {}
    if request["destination"] is not None:
        lies_at = destinations(entries, placement(request))
    bits, begun = 0, []
    for number, blob in enumerate(blobs_of(entries)):
        digest, size = blob
        there = any(file_matches(path, size, digest) for path in lies_at.get(blob, ()))
        if not there and not has_blob(area, digest, size):
            bits |= 1 << number
            came = part_size(blob_path(area, digest))
            if 0 < came < size:
                begun.append([number, came])
    return {"tree": True, "lacking": "%x" % bits, "begun": begun}


def placement(request):
    """Where the paths of a tree belong: a function of the path.

    As with cp: into `destination` if that is a directory, ends in a slash or there are several top-level names;
    otherwise the one name becomes `destination`.
    """
    text = request["destination"]
    destination = os.path.join(os.fsencode(os.path.expanduser("~")), text.encode("utf-8", "surrogateescape"))
    into = text.endswith("/") or len(request["names"]) != 1 or os.path.isdir(destination)
    if into:
        return lambda path: os.path.join(destination, path)
    return lambda path: os.path.join(destination, *path.split(b"/")[1:])


def destinations(entries, find):
    """Content to the places where it belongs."""
    places: dict = {}
    for entry in entries:
        if entry[0] == "f":
            places.setdefault(entry[3], []).append(find(entry[1]))
    return places
