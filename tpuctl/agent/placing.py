"""`place`: brings a tree whose contents are here into its place."""

import os

from base import Refused, suppress
from client import CHUNK
from contents import (
    blob_path,
    blobs_of,
    check_tree,
    file_matches,
    find_tree,
    has_blob,
    materialise,
    store_blob,
    write_file,
)
from lacking import destinations, placement
from mask import USER_UMASK
from mirroring import Mirror


def place(request, _stdin):
    """Puts a tree whose contents are all here in its place: each file at once, a new directory as a whole.

    With `mirror` the one directory of the tree is kept equal to it: see `mirroring`."""
    area, tree = request["area"], request["tree"]
    entries = find_tree(area, tree)
    if entries is None:
        raise Refused("missing-blob", "the host lost the list of files meanwhile")
    check_tree(entries, links_inside=False)
    find = placement(request)
    keep_reused(entries, find, area)
    mirror = None
    if request["mirror"]:
        if not request["names"]:
            raise Refused("bad-request", "nothing to mirror has a name")
        mirror = Mirror(find(os.fsencode(request["names"][0])), entries, find)
        mirror.begin()
    os.umask(USER_UMASK)
    groups: dict = {}
    for entry in entries:
        groups.setdefault(entry[1].split(b"/")[0], []).append(entry)
    for name, group in groups.items():
        place_one(name, group, find, area)
    for digest in [tree] + [digest for digest, _ in blobs_of(entries)]:
        with suppress(FileNotFoundError):
            os.unlink(blob_path(area, digest))
    return dict({"placed": len(entries)}, **(mirror.end() if mirror else {}))


def place_one(name, group, find, area):
    import shutil
    import tempfile

    final = find(name).rstrip(b"/")
    parent = os.path.dirname(final)
    os.makedirs(parent, exist_ok=True)
    is_folder = not any(entry[1] == name and entry[0] != "d" for entry in group)
    if is_folder and os.path.isdir(final):
        return merge(group, find, area)
    if not is_folder and os.path.isdir(final) and not os.path.islink(final):
        raise Refused("in-the-way", "%s is a directory" % os.fsdecode(final))
    if len(group) == 1 and is_same(group[0], final):
        return None
    stage = tempfile.mkdtemp(prefix=b".tpuctl-cp.", dir=parent)
    try:
        materialise(group, stage, area)
        os.rename(os.path.join(stage, name), final)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return None


def keep_reused(entries, find, area):
    """Content that was not sent because it lies in one of its places already, and belongs into others too."""
    for (digest, size), paths in destinations(entries, find).items():
        if has_blob(area, digest, size):
            continue
        right = [path for path in paths if file_matches(path, size, digest)]
        if not right:
            raise Refused("missing-blob", "%s changed meanwhile" % os.fsdecode(paths[0]))
        if len(right) < len(paths):
            with open(right[0], "rb") as file:
                store_blob(area, digest, size, iter(lambda: file.read(CHUNK), b""))


def is_same(entry, path):
    """A file that lies in its place with the right content gets its mode and time and is left alone."""
    if entry[0] != "f" or not file_matches(path, entry[3][1], entry[3][0]):
        return False
    os.chmod(path, entry[2])
    if entry[4] is not None:
        os.utime(path, ns=(entry[4], entry[4]))
    return True


def merge(group, find, area):
    """Into a directory that exists: file by file, never through a symbolic link below it."""
    top = find(group[0][1].split(b"/")[0]).rstrip(b"/")
    folders = []
    for entry in group:
        path = find(entry[1])
        folder = path if entry[0] == "d" else os.path.dirname(path)
        make_real_folders(top, folder)
        if entry[0] == "d":
            folders.append((path, entry[2]))
        elif not is_same(entry, path):
            replace_entry(entry, path, area)
    for path, mode in reversed(folders):
        os.chmod(path, mode)


def make_real_folders(top, folder):
    path = top
    for part in folder[len(top) :].split(b"/"):
        path = os.path.join(path, part) if part else path
        if path != top and os.path.islink(path):
            raise Refused("in-the-way", "%s is a symbolic link" % os.fsdecode(path))
        if not os.path.isdir(path):
            os.mkdir(path)


def replace_entry(entry, path, area):
    if os.path.isdir(path) and not os.path.islink(path):
        raise Refused("in-the-way", "%s is a directory" % os.fsdecode(path))
    temp = os.path.join(os.path.dirname(path), b".tpuctl-cp.%d" % os.getpid())
    try:
        if entry[0] == "l":
            os.symlink(entry[2], temp)
        else:
            write_file(temp, entry, area)
        os.rename(temp, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temp)
        raise
