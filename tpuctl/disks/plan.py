"""What to do next about a disk: a total table over what is wanted and what Compute Engine shows."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from tpuctl.inventory.ownership import Claim, check_ownership
from tpuctl.model.cloud import STORE_LABEL, USER_LABEL
from tpuctl.model.disks import GENERATION_LABEL, MASTER_LABEL, DiskInfo, DiskRecord


class Seen(StrEnum):
    """What Compute Engine shows under the name of a disk."""

    ABSENT = "absent"
    COMING = "coming"
    READY = "ready"
    GOING = "going"
    BROKEN = "broken"
    FOREIGN = "foreign"
    """There is one, and it does not carry the labels of this record."""
    UNKNOWN = "unknown"


class Step(StrEnum):
    CREATE = "create"
    DELETE = "delete"
    WAIT = "wait"
    DONE = "done"
    FAIL = "fail"
    TAKEN = "taken"


STEPS: Mapping[tuple[bool, Seen], Step] = {
    (True, Seen.ABSENT): Step.CREATE,
    (True, Seen.COMING): Step.WAIT,
    (True, Seen.READY): Step.DONE,
    (True, Seen.GOING): Step.WAIT,
    (True, Seen.BROKEN): Step.FAIL,
    (True, Seen.FOREIGN): Step.TAKEN,
    (True, Seen.UNKNOWN): Step.WAIT,
    (False, Seen.ABSENT): Step.DONE,
    (False, Seen.COMING): Step.WAIT,
    (False, Seen.READY): Step.DELETE,
    (False, Seen.GOING): Step.WAIT,
    (False, Seen.BROKEN): Step.DELETE,
    (False, Seen.FOREIGN): Step.DONE,
    (False, Seen.UNKNOWN): Step.WAIT,
}
"""(wanted, what is seen) → what to do. A disk that somebody else made is never touched."""
_STATUS = {
    "CREATING": Seen.COMING,
    "RESTORING": Seen.COMING,
    "READY": Seen.READY,
    "DELETING": Seen.GOING,
    "FAILED": Seen.BROKEN,
    "UNAVAILABLE": Seen.BROKEN,
}


def see(record: DiskRecord, disk: DiskInfo | None, store_id: str) -> Seen:
    """What `disk` is, read under the name of `record`."""
    if disk is None:
        return Seen.ABSENT
    if check_ownership(disk.resource, disk.resource, claim_of(record, store_id)) is not None:
        return Seen.FOREIGN
    return _STATUS.get(disk.status, Seen.UNKNOWN)


def claim_of(record: DiskRecord, store_id: str) -> Claim:
    """What a disk must show to be the one of a record, whoever made it."""
    labels = {MASTER_LABEL: record.master, STORE_LABEL: store_id, GENERATION_LABEL: str(record.generation)}
    return Claim(labels, user=None)


def owner_labels(master: str, generation: int, store_id: str, user: str) -> dict[str, str]:
    """What every disk and snapshot of ours carries."""
    return {
        MASTER_LABEL: master,
        GENERATION_LABEL: str(generation),
        STORE_LABEL: store_id,
        USER_LABEL: user,
    }


def fs_label(name: str) -> str:
    """A stable label for the file system of a disk; ext4 has room for 16 bytes, so long names are cut and get a
    checksum."""
    import zlib

    return name if len(name) <= 16 else f"{name[:10]}-{zlib.crc32(name.encode()) & 0xFFFFF:05x}"
