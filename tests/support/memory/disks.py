"""The `Disks` port over a simulated world in the same process, and disks on hosts in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any

from google.auth.credentials import AnonymousCredentials

from tests.support.memory.rest import ENDPOINT, DirectRest, Handle, typed_in_memory
from tpuctl.cloud.disks import GoogleDisks
from tpuctl.disks.hosts import LONGEST_S
from tpuctl.engine.ports import Clock
from tpuctl.sim.compute.rest import ComputeApi
from tpuctl.sim.hosts.backend import HostDisk

if TYPE_CHECKING:
    from tests.support.memory.host import MemoryHost
    from tpuctl.cloud.compute_clients import ComputeClients

Json = Mapping[str, Any]


class WorldDisks:
    """Implements `cloud_ports.Disks`. The API is made when it is first asked: most worlds have no disks."""

    def __init__(self, project: str, api: Callable[[], ComputeApi], clock: Clock) -> None:
        self._project = project
        self._api = api
        self._clock = clock

    @cached_property
    def _disks(self) -> GoogleDisks:
        return _DisksInMemory(self._project, self._api().handle, self._clock)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disks, name)


class _DisksInMemory(GoogleDisks):
    """The real adapter, with both of its ways to the API itself."""

    def __init__(self, project: str, handle: Handle, clock: Clock) -> None:
        super().__init__(project, ENDPOINT, AnonymousCredentials())
        self._rest = DirectRest(handle, clock)
        self._handle = handle

    @cached_property
    def _clients(self) -> ComputeClients:
        return typed_in_memory(super()._clients, self._handle, ("DisksClient", "SnapshotsClient"))


class OperationFailed(Exception):
    """An operation did not succeed."""

    def __init__(self, message: str, *, permanent: bool = False, hint: str = "") -> None:
        super().__init__(message)
        self.permanent, self.hint = permanent, hint


@dataclass
class Content:
    """What is on a disk: its file system, if it has one, the word of the copy that it was made ready for, and
    whether its journal has something to replay."""

    size_gib: int
    label: str = ""
    uuid: str = ""
    word: str = ""
    fs_gib: int = 0
    dirty: bool = False


@dataclass
class HeldDisk:
    """A file system that a host holds still. `ended` says by what; empty while it stands."""

    key: str
    until: float
    longest: float
    ended: str = ""

    def stands(self, now: float) -> bool:
        return not self.ended and now < min(self.until, self.longest)


class MemoryDisks:
    """The contents of all disks, by the key of each, and what hosts do with them."""

    def __init__(self, hosts: Callable[[], Sequence[MemoryHost]], now: Callable[[], float]) -> None:
        self._hosts = hosts
        self._now = now
        self._made = count(1)
        self.contents: dict[str, Content] = {}
        self.torn: list[str] = []
        """Disks that were taken from a host which had them mounted: what it had not written yet is lost, and
        who reads gets errors."""

    def write(self, key: str, size_gib: int, source: str) -> None:
        if source:
            content = self.contents[source]
            self.contents[key] = replace(content, dirty=content.dirty or self.is_moving(source))
        elif key in self.contents:
            self.contents[key].size_gib = size_gib
        else:
            self.contents[key] = Content(size_gib)

    def drop(self, key: str) -> None:
        self.contents.pop(key, None)

    def is_moving(self, key: str) -> bool:
        """Whether programs may be writing to it."""
        writers = [host for host in self._hosts() if key in written(host)]
        return any(not self.is_held(key, host) for host in writers)

    def is_held(self, key: str, host: MemoryHost) -> bool:
        return any(each.key == key and each.stands(self._now()) for each in host.holds.values())

    def held(self) -> list[str]:
        """What stands still anywhere."""
        now = self._now()
        return [each.key for host in self._hosts() for each in host.holds.values() if each.stands(now)]

    def pull(self, host: MemoryHost, left: Sequence[HostDisk] = (), *, deleted: bool = False) -> None:
        """The host has those devices alone from now on; none if it is `deleted`, which readers may be."""
        kept = {each.key for each in left}
        there = written(host) if deleted else [str(each["key"]) for each in host.mounts]
        self.torn += [key for key in there if key not in kept and not self.is_held(key, host)]
        host.mounts = [each for each in host.mounts if each["key"] in kept]
        host.devices = tuple(left)

    def format(self, content: Content, label: str) -> None:
        content.label, content.uuid, content.fs_gib = label, f"fs-{next(self._made)}", content.size_gib


def written(host: MemoryHost) -> list[str]:
    """The disks that a host has mounted for writing."""
    return [str(each["key"]) for each in host.mounts if not each["read_only"]]


def rows_of(host: MemoryHost) -> list[dict[str, object]]:
    """The mounts of a host, as its facts have them."""
    found = []
    for each in host.mounts:
        content = host.network.disks.contents[str(each["key"])]
        found.append({**each, "word": content.word, "uuid": content.uuid, "unsafe": False})
    return found


def word_at(host: MemoryHost, path: str) -> str:
    keys = [str(each["key"]) for each in host.mounts if each["path"] == path]
    return host.network.disks.contents[keys[0]].word if keys else ""


def mount_disk(host: MemoryHost, parameters: Json) -> Json:
    """A copy that is not of one moment is refused, and a disk that is not blank is never formatted."""
    path, read_only, label = parameters["path"], parameters["read_only"], parameters["label"]
    taken = {each["key"] for each in host.mounts}
    known = host.network.disks.contents
    free = [e.key for e in host.devices if e.read_only is read_only and e.key not in taken and e.key in known]
    if any(each["path"] == path for each in host.mounts):
        raise OperationFailed(f"{path} is mounted", permanent=True)
    found = [key for key in free if known[key].label == label and parameters["word"] in ("", known[key].word)]
    if not read_only:
        found = [key for key in free if known[key].label == label]
    if not found and not read_only and parameters["format"]:
        blank = [key for key in free if not known[key].label]
        found = [key for key in blank if known[key].size_gib << 30 == parameters["size"]]
        for key in found[:1]:
            host.network.disks.format(known[key], label)
    if not found:
        raise OperationFailed(f"no disk has the label {label} yet")
    content = known[found[0]]
    if read_only and content.dirty:
        raise OperationFailed(f"{found[0]} needs recovery", permanent=True)
    if not read_only:
        content.dirty, content.fs_gib = False, content.size_gib
    device = f"8:{16 * (1 + len(host.mounts))}"
    host.mounts.append({"path": path, "read_only": read_only, "key": found[0], "device": device})
    return {"mounted": path}


def unmount_disk(host: MemoryHost, parameters: Json) -> Json:
    host.mounts = [each for each in host.mounts if each["path"] != parameters["path"]]
    return {"unmounted": parameters["path"]}


def hold_disk(host: MemoryHost, parameters: Json) -> Json:
    """As tpuctl/agent/freeze.py does: one hold at a time, by its id, for as long as its lease."""
    told, known, name = {"held": parameters["id"]}, host.network.disks.contents, parameters["hold"]
    keys = [key for key in written(host) if known[key].label == parameters["label"]]
    if not keys:
        return {**told, "how": "it is not mounted"}
    now, mine = host.time, host.holds.get(name)
    for other, each in host.holds.items():
        if other != name and each.key == keys[0] and each.stands(now):
            left = min(each.until, each.longest) - now
            return {**told, "how": "busy", "by": other, "seconds": left}
    if mine is not None and not mine.stands(now):
        raise OperationFailed("it cannot be held still: its hold has ended already", permanent=True)
    if mine is None:
        known[keys[0]].word = parameters["word"]
        host.holds[name] = HeldDisk(keys[0], now + parameters["seconds"], now + LONGEST_S)
    return {**told, "how": "frozen", "word": True}


def renew_hold(host: MemoryHost, parameters: Json) -> Json:
    held = host.holds.get(parameters["hold"])
    stands = held is not None and held.stands(host.time)
    if held is not None and stands:
        held.until = host.time + parameters["seconds"]
    return {"renewed": parameters["id"], "stands": stands}


def release_disk(host: MemoryHost, parameters: Json) -> Json:
    """One that never began can begin no more."""
    held = host.holds.setdefault(parameters["hold"], HeldDisk("", 0.0, 0.0, "release"))
    stood = held.stands(host.time)
    held.ended = held.ended or ("release" if stood else "lease")
    return {"released": parameters["id"], "stood": stood}


def repair_disk(host: MemoryHost, parameters: Json) -> Json:
    taken, known = {each["key"] for each in host.mounts}, host.network.disks.contents
    writable = [each.key for each in host.devices if not each.read_only]
    labelled = [key for key in writable if known[key].label == parameters["label"]]
    if len(labelled) < parameters["of"]:
        raise OperationFailed("no disk to repair has the label yet")
    found = [key for key in labelled if key not in taken]
    if len(found) != 1:
        raise OperationFailed(f"{len(found)} disks with the label are not mounted here", permanent=True)
    known[found[0]].dirty, known[found[0]].word = False, parameters["word"]
    return {"repaired": parameters["id"]}


def grow_disk(host: MemoryHost, parameters: Json) -> Json:
    """Never while it is held."""
    keys = [str(each["key"]) for each in host.mounts if each["path"] == parameters["path"]]
    if not keys:
        return {"grown": parameters["id"], "fs": ""}
    if host.network.disks.is_held(keys[0], host):
        raise OperationFailed("its file system is held still")
    content = host.network.disks.contents[keys[0]]
    content.fs_gib = content.size_gib
    return {"grown": parameters["id"], "fs": "ext4"}


def vacate(host: MemoryHost, request: Json) -> Json:
    """Disks that can be written are unmounted, those of `only` if it names any. Nobody has anything open there
    but who holds a file system still: that is named, or ended before a deletion."""
    known, only = host.network.disks.contents, request["only"]
    at = {each["path"]: each["name"] for each in request["disks"]}
    labels = {each["label"] for each in request["disks"] if each["name"] in only}
    answers = []
    for row in [each for each in host.mounts if not each["read_only"]]:
        key = str(row["key"])
        ours = at[row["path"]] in only if row["path"] in at else known[key].label in labels
        if only and not ours:
            continue
        holds = [each for each in host.holds.values() if each.key == key and each.stands(host.time)]
        if holds and request["purpose"] == "leave":
            holder = {"what": "file", "path": "/mnt", "pid": 1, "user": "root", "program": "python3"}
            answers.append({"proved": False, "holders": [holder]})
            continue
        for each in holds:
            each.ended = "signal"
        host.mounts = [each for each in host.mounts if each["key"] != key]
        answers.append({"proved": True})
    return {"state": "done", "disks": answers}
