"""A disk of a slice as a user writes it: NAME[:ro|rw][:/PATH]. Pure."""

from __future__ import annotations

import re

from msgspec import Struct

from tpuctl.errors import UsageError
from tpuctl.lib.mount_paths import check_place
from tpuctl.lib.names import check_disk_name
from tpuctl.model.disks import DiskMode

_FORM = re.compile(r"(?P<name>[^:]*)(:(?P<mode>ro|rw))?(:(?P<path>/.*))?\Z")
_MODES = {"ro": DiskMode.READ_ONLY, "rw": DiskMode.READ_WRITE}


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
    if path:
        check_place(path, field="disk", what="disk", hint=f"--disk {match['name']}:/mnt/data")
    return DiskRequest(check_disk_name(match["name"]), _MODES.get(match["mode"] or ""), path)
