"""Where hosts may have a disk or a bucket mounted. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from tpuctl.errors import UsageError

_LONGEST = 1024
SYSTEM = frozenset(
    {"bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys", "usr", "var"}
)
"""Folders at the top of which, and below which, hosts have what they need themselves."""
SHARED = frozenset({"home", "media", "mnt", "opt", "root", "srv", "tmp"})
"""Folders in which others have something, too: below them there is a place."""
PRIVATE = frozenset({".ssh", ".tpuctl"})
"""In a home: what tpuctl logs in by, and what its agent has."""


def why_no_place(path: str) -> str:
    """Why nothing can be mounted at `path`; empty where something can."""
    if not path.startswith("/"):
        return "it has to be an absolute path"
    if path.startswith("//") or path != posixpath.normpath(path):
        return "it has to be written without '.', '..' and needless slashes"
    if len(path) > _LONGEST:
        return f"it is longer than {_LONGEST} letters"
    parts = path.split("/")[1:]
    if path == "/" or parts[0] in SYSTEM:
        return "hosts need what is there"
    if not path.isprintable() or ":" in path or "\\" in path:
        return "it has letters that no path of a mount can have"
    in_home = parts[2:] if parts[0] == "home" else parts[1:] if parts[0] == "root" else []
    if len(parts) == 1 and parts[0] in SHARED:
        return "others have something there, too"
    if parts[0] == "home" and len(parts) == 2:
        return "it is the home of somebody who logs in there"
    if in_home and in_home[0] in PRIVATE:
        return "tpuctl logs in by what is there"
    return ""


def check_place(path: str, *, field: str, what: str, hint: str) -> str:
    """`path`, if something can be mounted there. Raises UsageError about `field`."""
    why = why_no_place(path)
    if why:
        shown = path if path.isprintable() else repr(path)
        raise UsageError.of(field, f"{shown} is no place for a {what}: {why}", hint)
    return path


def check_apart(path: str, others: Mapping[str, str], *, field: str, hint: str) -> None:
    """Raises UsageError about `field` for a path at, below or above one of `others`, {path: what is there}."""
    for other, name in others.items():
        if path == other:
            raise UsageError.of(field, f"{name} is at {path} already", hint)
        if is_inside(path, other) or is_inside(other, path):
            inner, outer = sorted((path, other), key=len, reverse=True)
            why = f"{inner} is inside {outer}, and {name} is at {other}"
            raise UsageError.of(field, why, "paths beside each other, such as /mnt/a and /mnt/b")


def is_inside(path: str, folder: str) -> bool:
    return path.startswith(f"{folder.rstrip('/')}/")
