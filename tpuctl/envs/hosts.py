"""What an environment needs on a host, and whether it is there: facts of a host to operations."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.envs.lock import X86
from tpuctl.envs.pinned import (
    ARCHIVE,
    PinnedEnvironment,
    SealedFile,
    archive_of,
    bytes_needed,
    bytes_of_archive,
    environment_files,
    environment_key,
    missing_files,
)
from tpuctl.envs.spec import InstallFrom
from tpuctl.hosts.facts import Environment, FactsReply, Section
from tpuctl.hosts.provision import Operation
from tpuctl.model.hosts import Blob
from tpuctl.model.verdict import Blocked
from tpuctl.things.sharing import Offer
from tpuctl.transfer.lacking import Where
from tpuctl.transfer.tree import TreeFile, render_tree

SPARE_BYTES = 100 << 20
"""What the installer leaves free, too."""
IN_VAIN = (2, 3)
"""Exit statuses of the installer after which the same again is in vain."""
HUGEPAGES_FILE = "/sys/kernel/mm/transparent_hugepage/enabled"
NO_WHEELS: Mapping[str, Mapping[str, Blob]] = {}


AREA = Where("sealed", hosts_only=True)


class EnvironmentKind(Struct, frozen=True):
    """One pinned environment; `slice_name` is for hints, `installer` what runs on the host. Each `asked_by`
    has a try of its own, whatever failed before. `wheels` are blobs that come along, by Python and path.
    Without `mend` what was changed after its installation is left as it is. With `seal` the host holds it ready
    for others; it is made of what is `sealed`, if anything."""

    pinned: PinnedEnvironment
    slice_name: str
    installer: bytes
    wheels: Mapping[str, Mapping[str, Blob]] = NO_WHEELS
    asked_by: str = ""
    mend: bool = True
    seal: bool = False
    sealed: tuple[SealedFile, ...] = ()

    @property
    def name(self) -> str:
        return f"environment {self.pinned.spec.name}"

    @property
    def sections(self) -> frozenset[Section]:
        """What costs a host more is asked only where it matters: interpreters are started, and so is sudo."""
        found = {Section.ENVS, Section.SPACE}
        if not self._brings_python:
            found.add(Section.PYTHONS)
        if self.pinned.spec.os_packages:
            found.add(Section.HOST)
        if self._hugepages is not None:
            found |= {Section.HOST, Section.KERNEL}
        return frozenset(found)

    @property
    def _hugepages(self) -> str | None:
        return self.pinned.spec.kernel.transparent_hugepages

    @property
    def _brings_python(self) -> bool:
        """Whether one Python alone is meant, which a host need not have."""
        own = archive_of(self.pinned) is not None or self.pinned.spec.unmanaged is not None
        return own and len(self.pinned.spec.python) == 1

    def plan(self, facts: FactsReply) -> Sequence[Operation] | Blocked:
        """An installation where it is not there as it was installed, and the settings of the kernel, which are
        gone after a reboot; Blocked where there is no Python for it, no room, or no root."""
        installing = self._plan_installation(facts)
        if isinstance(installing, Blocked):
            return installing
        setting = self._plan_kernel(facts)
        return setting if isinstance(setting, Blocked) else (*installing, *setting)

    def _plan_kernel(self, facts: FactsReply) -> Sequence[Operation] | Blocked:
        mode = self._hugepages
        if mode is None or facts.kernel is None or facts.kernel.transparent_hugepages == mode:
            return ()
        if facts.host is not None and not facts.host.root:
            if not self.mend:
                return ()  # a run is slower without, at worst
            told = f"{self.name} sets transparent hugepages, and {facts.host.user} is not root there"
            command = f"sudo sh -c 'echo {mode} > {HUGEPAGES_FILE}'"
            return Blocked(f"{told} nor may become it", f"as an administrator of the host: {command}")
        return [Operation("set_hugepages", f"setting transparent hugepages to {mode}", {"mode": mode})]

    def lacks(self, facts: FactsReply) -> bool:
        """Whether it has to be installed on this host, or what was changed there put back."""
        minor = self.minor(facts)
        found = self._find(facts, minor) if minor is not None else None
        return found is None or found.mark is None or bool(found.changed and self.mend)

    def _plan_installation(self, facts: FactsReply) -> Sequence[Operation] | Blocked:
        if not self.lacks(facts):
            return ()
        minor = self.minor(facts)
        if minor is None:
            known = ", ".join(self.pinned.spec.python)
            name = self.pinned.spec.name
            hint = f"tpuctl env lock {name}   # on a machine that is online: brings an interpreter along"
            return Blocked(f"{self.name} needs Python {known}, which this host has not", hint)
        foreign = missing_files(self.pinned, minor, facts.machine)
        if foreign:
            told = f"{self.name} has nothing for Python {minor} on {facts.machine} of: {', '.join(foreign)}"
            return Blocked(told, f"a slice whose hosts are {X86}: environments are locked for that")
        asked_of_root = dict(self.pinned.spec.os_packages)
        if asked_of_root and facts.host is not None and not facts.host.root:
            told = f"{self.name} has os_packages, and {facts.host.user} is not root there nor may become it"
            return Blocked(told, "sudo without a password for that user, or a file without os_packages")
        need, free = bytes_needed(self.pinned, minor), free_bytes(facts)
        if self.sealed:
            need = bytes_of_archive(self.sealed)
        if need and free is not None and free < need + SPARE_BYTES:
            told = f"has {free // MIB} MiB free, and {self.name} needs {(need + SPARE_BYTES) // MIB}"
            return Blocked(told, f"tpuctl env gc --on {self.slice_name}, or a larger boot disk")
        small = environment_files(
            self.pinned,
            minor,
            self.installer,
            machine=facts.machine,
            seal=self.seal,
            sealed=self.sealed,
        )
        files: dict[str, bytes | Blob] = {**small}
        if not self.sealed:
            files |= self.wheels.get(minor, {})
        title = f"installing {self.name}"
        asked = {"argv": ["python3", "-S", "env_install.py"], "permanent": IN_VAIN, "asked_by": self.asked_by}
        install = Operation("run", title, asked, files)
        if not asked_of_root:
            return [install]
        listed = ", ".join(sorted(asked_of_root))
        return [Operation("install_packages", f"installing {listed}", {"packages": asked_of_root}), install]

    def why(self, facts: FactsReply) -> str:
        """Why something has to be done on this host."""
        minor = self.minor(facts)
        found = self._find(facts, minor) if minor is not None else None
        if found is None or found.mark is None:
            return "it is not installed" if found is None else "an installation was not completed"
        if found.changed:
            return f"{', '.join(found.changed[:SHOWN_FILES])} changed"
        mode = facts.kernel.transparent_hugepages if facts.kernel is not None else ""
        return f"transparent hugepages are {mode}"

    def key(self, facts: FactsReply, minor: str) -> str:
        """Under which this host has it, installed with that Python."""
        return environment_key(self.pinned, minor, facts.machine)

    def _find(self, facts: FactsReply, minor: str) -> Environment | None:
        return find_environment(facts, self.key(facts, minor))

    def minor(self, facts: FactsReply) -> str | None:
        """The Python for it: one with which it is installed, else one that comes with the environment, else the
        first that the host has."""
        wanted = self.pinned.spec.python
        for minor in wanted:
            found = self._find(facts, minor)
            if found is not None and found.mark is not None and INTERPRETER not in found.changed:
                return minor
        return wanted[0] if self._brings_python else find_interpreter(facts, wanted)

    def row(self, facts: FactsReply) -> Mapping[str, str]:
        """The columns of the manifest that are the environment's."""
        minor = self.minor(facts)
        if minor is None:
            return {}
        return host_columns(facts, self.key(facts, minor))

    @property
    def shared(self) -> bool:
        """Whether it is made of wheels by uv, so that its files are the same everywhere."""
        return self.pinned.spec.unmanaged is None and self.pinned.spec.install_from is not InstallFrom.INDEX

    def has_room(self, facts: FactsReply, offer: Offer) -> bool:
        """Whether what is offered fits onto this host, as far as that is known."""
        free = free_bytes(facts)
        return free is None or free >= offer.bytes_needed

    def offer(self, facts: FactsReply, lacking: Sequence[FactsReply]) -> Offer | None:
        """What this host has sealed, where those that lack it have one and the same Python and machine."""
        sealed = self._sealed_on(facts, lacking)
        if not sealed:
            return None
        tree = render_tree(
            TreeFile(
                each.path if each.path == ARCHIVE else f"env/{each.path}",
                each.mode,
                Blob(each.sha256, each.size),
            )
            for each in sealed
        )
        need = sum(each.size for each in sealed) + bytes_of_archive(sealed) + SPARE_BYTES
        return Offer(tree, AREA, need)

    def _sealed_on(self, facts: FactsReply, lacking: Sequence[FactsReply]) -> tuple[SealedFile, ...]:
        pythons = {(self.minor(each), each.machine) for each in lacking}
        if len(pythons) != 1:
            return ()
        minor, machine = pythons.pop()
        return () if minor is None else find_sealed(facts, environment_key(self.pinned, minor, machine))

    def offering(self) -> EnvironmentKind:
        """The same for the host that is to seal it."""
        return replace(self, seal=True)

    def made_of(self, facts: FactsReply, lacking: Sequence[FactsReply]) -> EnvironmentKind:
        """The same for those that have what this host has sealed."""
        return replace(self, sealed=self._sealed_on(facts, lacking))


MIB = 1 << 20
SHOWN_FILES = 3
INTERPRETER = "bin/python"
"""Counts as changed in an environment whose interpreter is not on the host any more."""


def find_environment(facts: FactsReply, key: str) -> Environment | None:
    """The environment of that key on the host."""
    return next((each for each in facts.envs or () if each.key == key), None)


def find_sealed(facts: FactsReply, key: str) -> tuple[SealedFile, ...]:
    """What the host holds ready of that environment for others."""
    found = find_environment(facts, key)
    rows = (found.mark or {}).get("sealed") if found is not None and not found.changed else None
    return tuple(SealedFile(*row) for row in rows or ())


def find_interpreter(facts: FactsReply, wanted: Sequence[str]) -> str | None:
    """The version of those wanted that the host has: that of its python3 before others."""
    there = [each.minor for each in facts.pythons or ()]
    return next((minor for minor in there if minor in wanted), None)


def free_bytes(facts: FactsReply) -> int | None:
    """Free bytes where environments are; None where that is not known."""
    home = next(iter(facts.space or ()), None)  # it is told of first
    return home.free_bytes if home is not None and not home.error else None


def host_columns(facts: FactsReply, key: str) -> dict[str, str]:
    """What the installer and the interpreter said, one text a column."""
    found = find_environment(facts, key)
    mark: Mapping[str, Any] = (found.mark if found is not None else None) or {}
    packages = {str(name): str(version) for name, version in (mark.get("packages") or {}).items()}
    libtpu = mark.get("libtpu") or {}
    columns = {
        "environment_key": key,
        "packages_sha256": hashlib.sha256(json.dumps(packages, sort_keys=True).encode()).hexdigest(),
        "packages": " ".join(f"{name}=={version}" for name, version in sorted(packages.items())),
        "environment_python": str(mark.get("python", "")),
    }
    if libtpu:
        columns |= {f"libtpu_{name}": str(libtpu.get(name, "")) for name in ("path", "sha256", "pjrt")}
    if mark.get("effective"):
        columns["effective"] = json.dumps(mark["effective"], sort_keys=True)
    return columns
