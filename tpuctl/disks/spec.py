"""A disk of a slice as a user writes it: NAME[:ro|rw][:/PATH]. Pure."""

from __future__ import annotations

import posixpath
import re

from msgspec import Struct

from tpuctl.errors import UsageError
from tpuctl.lib.names import check_disk_name
from tpuctl.model.disks import DiskMode

_FORM = re.compile(r"(?P<name>[^:]*)(:(?P<mode>ro|rw))?(:(?P<path>/.*))?\Z")
_MODES = {"ro": DiskMode.READ_ONLY, "rw": DiskMode.READ_WRITE}
_SYSTEM = frozenset({"/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/mnt", "/proc", "/root", "/run"})
_SYSTEM |= {"/sbin", "/sys", "/tmp", "/usr", "/var"}  # noqa: S108 (named to be refused)


class DiskRequest(Struct, frozen=True):
    """None and empty: what follows from the disk and the slice."""

    name: str
    mode: DiskMode | None
    path: str


def parse_disk(text: str) -> DiskRequest:
    """Raises UsageError for what is no disk, or a place where hosts have something else."""
    match = _FORM.match(text)
    if match is None:
        raise UsageError.of("disk", f"{text!r} is not NAME[:ro|rw][:/PATH]", "--disk data:/mnt/data")
    path = match["path"] or ""
    if path and (path != posixpath.normpath(path) or path in _SYSTEM):
        raise UsageError.of("disk", f"{path} is no place for a disk", f"--disk {match['name']}:/mnt/data")
    return DiskRequest(check_disk_name(match["name"]), _MODES.get(match["mode"] or ""), path)
