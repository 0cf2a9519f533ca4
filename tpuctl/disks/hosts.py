"""Disks on hosts, as kinds of provisioning: mounted, unmounted, held still for a copy. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from tpuctl.hosts.facts import FactsReply, MountedDisk, Section
from tpuctl.hosts.provision import NO_ROOT, Operation
from tpuctl.lib.codec import to_data
from tpuctl.model.verdict import Blocked

HOLD_S = 120
"""The lease of a file system that is held still: so long after it was renewed last it goes on."""
LONGEST_S = 600
"""How long it is held still at most."""
GIB = 1 << 30
OPEN = "can be written without its disk"
TITLES = {
    "hold_disk": ("held", "holding the file system still"),
    "renew_hold": ("renewed", "holding the file system for longer"),
    "release_disk": ("released", "letting the file system go on"),
    "repair_disk": ("repaired", "replaying the journal of the copy"),
    "grow_disk": ("grown", "growing the file system"),
}
"""Operation → the key of its result, and what it does in words."""


class DiskMount(Struct, frozen=True):
    """A disk at `path` on every host. `word` is what a copy must hold, empty for a disk that is written; `uuid`
    is that of its file system, empty where nobody has seen it or it may be another one by now. `asked_by`
    names the command: a failure of an earlier one is not its own."""

    disk: str
    path: str
    label: str
    read_only: bool
    word: str = ""
    size_gib: int = 0
    blank: bool = False
    asked_by: str = ""
    uuid: str = ""

    @property
    def column(self) -> str:
        """Its column in the host's row of a manifest."""
        return f"disk {self.path}"

    @property
    def name(self) -> str:
        return f"disk {self.disk} at {self.path}"

    @property
    def sections(self) -> frozenset[Section]:
        return frozenset({Section.HOST, Section.JOBS, Section.DISKS})

    def plan(self, facts: FactsReply) -> Sequence[Operation] | Blocked:
        there = _at(facts, self.path)
        if there is not None:
            return self._check(there)
        blocked = _without_root(facts)
        if blocked is not None:
            return blocked
        parameters = {
            "path": self.path,
            "label": self.label,
            "word": self.word,
            "read_only": self.read_only,
            "size": self.size_gib * GIB,
            "format": self.blank,
            "asked_by": self.asked_by,
        }
        return [Operation("mount_disk", f"mounting disk {self.disk} at {self.path}", parameters)]

    def _check(self, there: MountedDisk) -> Sequence[Operation] | Blocked:
        if there.unsafe:
            why = f"{self.path} was mounted with noload: its files may be wrong without anybody noticing"
            return Blocked(why, f"sudo umount {self.path}")
        other = self.uuid and there.uuid and there.uuid != self.uuid
        if other or there.read_only != self.read_only or (self.word and there.word != self.word):
            return Blocked(f"another disk is mounted at {self.path}", "tpuctl disk umount, or another --path")
        return ()

    def row(self, facts: FactsReply) -> Mapping[str, str]:
        there = _at(facts, self.path)
        uuid = there.uuid if there is not None else ""
        row = {self.column: self.disk, f"{self.column} uuid": uuid}
        return {**row, f"{self.column} point": OPEN} if self._is_open(facts) else row

    def _is_open(self, facts: FactsReply) -> bool:
        """Whether the host that mounted it could not close the folder below to writers."""
        results = [each for job in facts.jobs or () for each in job.results if isinstance(each, dict)]
        return any(each.get("mounted") == self.path and each.get("open") for each in results)

    def promise(self, row: Mapping[str, str]) -> Mapping[str, Any]:
        """What a host whose `row` says that it is there has to have until a program starts."""
        uuid = row.get(f"{self.column} uuid", "")
        return {"path": self.path, "read_only": self.read_only, "word": self.word, "uuid": uuid}

    def trouble(self, facts: FactsReply) -> str:
        """What is wrong with it on this host, in words; empty where all is as asked."""
        there, found = _at(facts, self.path), self.plan(facts)
        if there is None:
            return "not mounted"
        return found.why if isinstance(found, Blocked) else ""


class DiskUnmount(Struct, frozen=True):
    """That disk not at `path`; another one that is mounted there stays. Without a `path` it is nowhere, by its
    `word`, else by the `uuid` of its file system; at the paths of `others` it never is. `asked_by` as of
    Mounted."""

    path: str
    read_only: bool
    word: str = ""
    asked_by: str = ""
    uuid: str = ""
    others: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.path or 'disk'} unmounted"

    @property
    def sections(self) -> frozenset[Section]:
        return frozenset({Section.HOST, Section.DISKS})

    def plan(self, facts: FactsReply) -> Sequence[Operation] | Blocked:
        paths = [each.path for each in facts.disks or () if self._is_it(each)]
        if not paths:
            return ()
        return _without_root(facts) or [
            Operation("unmount_disk", f"unmounting {path}", {"path": path, "asked_by": self.asked_by})
            for path in paths
        ]

    def _is_it(self, there: MountedDisk) -> bool:
        if there.read_only != self.read_only or (self.word and there.word != self.word):
            return False
        if self.path:
            return there.path == self.path
        known = self.word or (self.uuid and there.uuid == self.uuid)
        return bool(known) and there.path not in self.others

    def row(self, facts: FactsReply) -> Mapping[str, str]:
        del facts
        return {}


class Once(Struct, frozen=True):
    """Something that is done once with the file system `label` for the copy `word`: what came of it is in the
    results of its job. `id` names this time, for hosts remember jobs of earlier commands. `of` disks with the
    label can be written there. `hold` is the id of a hold, of `disk` among all the `disks` that are written
    there."""

    verb: str
    label: str
    word: str
    id: str
    of: int = 1
    hold: str = ""
    disk: str = ""
    disks: tuple[Mapping[str, str], ...] = ()
    unmount: bool = False

    @property
    def name(self) -> str:
        return f"file system {self.label}: {TITLES[self.verb][1]}"

    @property
    def sections(self) -> frozenset[Section]:
        return frozenset({Section.HOST, Section.JOBS})

    def result(self, facts: FactsReply) -> Mapping[str, str]:
        """What the host said when it was done; empty before."""
        return _result(facts, self.verb, self.id)

    def plan(self, facts: FactsReply) -> Sequence[Operation] | Blocked:
        if self.result(facts):
            return ()
        asked = {key: value for key, value in to_data(self).items() if key != "verb"}
        parameters = {**asked, "seconds": HOLD_S}
        return _without_root(facts) or [Operation(self.verb, TITLES[self.verb][1], parameters)]

    def row(self, facts: FactsReply) -> Mapping[str, str]:
        return self.result(facts)


class Grown(Struct, frozen=True):
    """The file system of a disk that is written at `path` is as large as the disk. `id` names this time."""

    disk: str
    path: str
    size_gib: int
    id: str

    @property
    def name(self) -> str:
        return f"disk {self.disk}: {TITLES['grow_disk'][1]}"

    @property
    def sections(self) -> frozenset[Section]:
        return frozenset({Section.HOST, Section.JOBS})

    def plan(self, facts: FactsReply) -> Sequence[Operation] | Blocked:
        if self.row(facts):
            return ()
        parameters = {"path": self.path, "size": self.size_gib * GIB, "id": self.id}
        return _without_root(facts) or [Operation("grow_disk", TITLES["grow_disk"][1], parameters)]

    def row(self, facts: FactsReply) -> Mapping[str, str]:
        return _result(facts, "grow_disk", self.id)


def _result(facts: FactsReply, verb: str, this_time: str) -> Mapping[str, str]:
    """What a host said when it had done `verb` this time; empty before."""
    for job in facts.jobs or ():
        for result in job.results:
            if isinstance(result, dict) and result.get(TITLES[verb][0]) == this_time:
                return {name: str(value) for name, value in result.items()}
    return {}


def _at(facts: FactsReply, path: str) -> MountedDisk | None:
    return next((each for each in facts.disks or () if each.path == path), None)


def _without_root(facts: FactsReply) -> Blocked | None:
    return NO_ROOT if facts.host is not None and not facts.host.root else None
