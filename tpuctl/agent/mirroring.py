"""A directory that is kept equal to a tree: what came from there is replaced and removed; what somebody changed
on this host since is kept."""

import os

from base import make_dir, read_json, root, suppress, write_json
from digest import file_sha256, sha256

KEPT = ".changed-here"  # behind the name of a file that a newer one replaces


def text_of(path):
    return path.decode("utf-8", "surrogateescape")


def parents(path):
    """The directories above it, the nearest first."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def content_of(entry):
    """What tells one content of a path from another."""
    return "link " + text_of(entry[2]) if entry[0] == "l" else entry[3][0]


def content_at(path):
    """The same of what lies there; empty for a directory and for what cannot be read."""
    try:
        if os.path.islink(path):
            return "link " + text_of(os.readlink(path))
        return file_sha256(path)
    except OSError:
        return ""


class Mirror:
    """What was brought below `top`, by path and with the contents that were: in a file that is written before
    anything is changed and again after it. One program at a time holds it."""

    def __init__(self, top, entries, find):
        import fcntl

        place = os.path.normpath(top)
        name = sha256(len(place))
        name.update(place)
        self.path = os.path.join(make_dir(root("mirrors")), name.hexdigest() + ".json")
        self.lock = os.open(self.path + ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.top, self.find = top, find
        self.wanted = {text_of(entry[1]): content_of(entry) for entry in entries if entry[0] != "d"}
        self.folders = {text_of(entry[1]) for entry in entries if entry[0] == "d"}
        for path in self.wanted:
            self.folders.update(parents(path))
        self.kept, self.removed = [], 0

    def begin(self):
        """Removes what is wanted no more, and sets aside what was changed here and is about to be replaced."""
        files = (read_json(self.path) or {}).get("files") or {}
        known = {path: set(found) for path, found in files.items()}
        for path, content in self.wanted.items():
            known.setdefault(path, set()).add(content)
        self.write({path: sorted(found) for path, found in known.items()})
        for path in sorted(set(known) - set(self.wanted)):
            self.remove(path, known[path])
        for path in sorted(self.folders):
            place = self.place_of(path)
            if place and not os.path.islink(place) and not os.path.isdir(place):
                self.set_aside(path, place)
        for path in sorted(self.wanted):
            place = self.place_of(path)
            if place and content_at(place) not in known[path]:
                self.set_aside(path, place)

    def place_of(self, path):
        """Where it lies on this host; empty where nothing is, or where a link on the way leads elsewhere. `top`
        itself may be a link: what is brought goes through it."""
        place = self.find(path.encode("utf-8", "surrogateescape"))
        parent = os.path.dirname(place)
        while len(parent) > len(self.top):
            if os.path.islink(parent):
                return b""
            parent = os.path.dirname(parent)
        return place if os.path.lexists(place) else b""

    def remove(self, path, ours):
        place = self.place_of(path)
        if not place:
            return
        if content_at(place) in ours:
            os.unlink(place)
            self.removed += 1
            self.remove_empty(os.path.dirname(place))
        elif path not in self.folders:
            self.kept.append([path, ""])

    def set_aside(self, path, place):
        aside = free_name(place)
        os.rename(place, aside)
        self.kept.append([path, text_of(os.path.basename(aside))])

    def remove_empty(self, folder):
        with suppress(OSError):  # not empty
            while len(folder) > len(self.top):
                os.rmdir(folder)
                folder = os.path.dirname(folder)

    def end(self):
        self.write({path: [content] for path, content in self.wanted.items()})
        os.close(self.lock)
        return {"kept": self.kept, "removed": self.removed}

    def write(self, files):
        write_json(self.path, {"top": text_of(os.path.normpath(self.top)), "files": files})


def free_name(path):
    """Behind the name of a file, so that nobody's file is replaced."""
    number, found = 1, path + os.fsencode(KEPT)
    while os.path.lexists(found):
        number += 1
        found = path + os.fsencode("%s.%d" % (KEPT, number))
    return found
