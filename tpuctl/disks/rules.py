"""What may be done with which disk: `manifests/tables/disks.yaml` applied to one case, with reasons."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from tpuctl.errors import UsageError
from tpuctl.lib.mount_paths import check_place
from tpuctl.lib.names import check_disk_name
from tpuctl.lib.text import counted
from tpuctl.model.disks import SHARED, DataDisk, DiskInfo, DiskMode
from tpuctl.model.hosts import Api
from tpuctl.model.shipped_files import load_other_prices


class Policy(StrEnum):
    ALLOW = "allow"
    WARN = "warn"
    DENY = "deny"


class RuleFinding(Struct, frozen=True):
    """A rule of the table that says something about a case. `firm`: the cloud refuses it, too, so nobody can
    allow it."""

    rule: str
    policy: Policy
    why: str
    hint: str = ""
    firm: bool = False


class DiskTarget(Struct, frozen=True):
    """A slice that is to have a disk: `hosts` machines of a generation. `disks` are the data disks of its
    `nodes` now; `node` is what they are called together. `others` are the hosts of other slices that have the
    disk in question in their specification, also those that are not there at the moment."""

    node: str
    zone: str
    generation: str
    hosts: int
    disks: tuple[DataDisk, ...] = ()
    nodes: tuple[str, ...] = ()
    others: int = 0
    api: Api = Api.TPU


class DiskRules:
    """The table. `allowed` are rules whose refusals the user has turned into warnings."""

    def __init__(self, table: Mapping[str, Any], allowed: Collection[str] = ()) -> None:
        self._table = table
        self._allowed = frozenset(allowed)
        unknown = sorted(self._allowed - set(table["rules"]))
        if unknown:
            raise UsageError(f"no rule {unknown[0]}", hint=f"one of: {', '.join(table['rules'])}")
        firm = sorted(each for each in self._allowed if table["rules"][each].get("firm"))
        if firm:
            why = f"{firm[0]} cannot be allowed: Compute Engine refuses it, too"
            raise UsageError(why, hint=f"without --allow {firm[0]}")

    def _found(self, rule: str, why: str, hint: str = "") -> RuleFinding:
        row = self._table["rules"][rule]
        policy = Policy(row["policy"])
        if policy is Policy.DENY and rule in self._allowed:
            policy = Policy.WARN
        return RuleFinding(rule, policy, why, hint, bool(row.get("firm")))

    def types(self, generation: str) -> Mapping[str, str]:
        """Disk type → policy, for what a generation can have; empty for one that is not known."""
        return dict(self._table["generations"].get(generation, {}).get("types", {}))

    def check_type(self, kind: str, generation: str) -> list[RuleFinding]:
        """Whether a disk of type `kind` goes with a generation."""
        types = self.types(generation)
        if not types:
            return []
        policy = types.get(kind, Policy.DENY)
        known = ", ".join(each for each in types if types[each] == Policy.ALLOW)
        if policy == Policy.DENY:
            return [self._found("type", f"{generation} has no {kind} disks", f"--type: one of {known}")]
        if policy == Policy.WARN:
            return [self._found("type-untested", f"{kind} on {generation} is not documented", known)]
        return []

    def check_attach(self, disk: DiskInfo, mode: DiskMode, place: DiskTarget) -> list[RuleFinding]:
        """Everything that the table says of attaching `disk` to the nodes of `place`."""
        found = [*self.check_type(disk.type, place.generation), *self._check_users(disk, mode, place)]
        if disk.zone != place.zone:
            goal = f" --for {place.generation}" if place.generation else ""
            hint = f"tpuctl disk clone {disk.name} --zone {place.zone}{goal}"
            found.append(
                self._found("zone", f"disk {disk.name} is in {disk.zone}, {place.node} in {place.zone}", hint)
            )
        if disk.status != "READY":
            found.append(
                self._found("not-ready", f"disk {disk.name} is {disk.status}", "try again when it is READY")
            )
        if mode is DiskMode.READ_WRITE and place.hosts > 1:
            why = f"{place.node} has {place.hosts} hosts, and one host alone can write to a disk"
            found.append(self._found("pod-read-only", why, f"tpuctl disk clone {disk.name} --to SLICE"))
        limit = self._table["generations"].get(place.generation, {}).get("disks", 128)
        if len(place.disks) + 2 > limit:
            many = counted(len(place.disks), "data disk")
            found.append(self._found("disks", f"{place.node} has {many}, its limit"))
        return [*found, *self._check_shared(disk, mode, place)]

    def _check_users(self, disk: DiskInfo, mode: DiskMode, place: DiskTarget) -> list[RuleFinding]:
        here = _entry_of(disk, place)
        if here is not None:
            if here.mode is mode:
                return []
            why = f"{place.node} has disk {disk.name} {here.mode.short}"
            return [self._found("both-modes", why, f"tpuctl disk detach {disk.name} first")]
        if disk.users and mode is DiskMode.READ_WRITE:
            why = f"disk {disk.name} is used by {disk.users[0]}, and who writes shares with nobody"
            return [self._found("one-writer", why, f"tpuctl disk detach {disk.name}, or clone it")]
        return []

    def _check_shared(self, disk: DiskInfo, mode: DiskMode, place: DiskTarget) -> list[RuleFinding]:
        row = self._table["types"].get(disk.type, {})
        copy = f"tpuctl disk clone {disk.name} --to SLICE"
        if mode is DiskMode.READ_WRITE:
            if disk.access_mode == SHARED:
                return [
                    self._found("access-mode", f"disk {disk.name} is read-only for good", "--rw makes a master")
                ]
            return []
        if mode not in row.get("modes", [mode]):
            return [self._found("read-only-type", f"{disk.type} disks cannot be attached read-only", copy)]
        found = []
        if row.get("access_mode") and disk.access_mode != SHARED:
            why = f"disk {disk.name} has access mode {disk.access_mode or 'none'}; read-only needs {SHARED}"
            found.append(self._found("access-mode", why, copy))
        limit, readers = row.get("readers"), _readers(disk, place)
        if limit is not None and readers > limit:
            why = f"{disk.type} is documented for {limit} hosts, here {readers}"
            found.append(
                self._found("readers", why, "users report more; hyperdisk-ml where the generation has it")
            )
        return [*found, *self.check_readers(disk, place)]

    def check_readers(self, disk: DiskInfo, place: DiskTarget) -> list[RuleFinding]:
        """Whether a disk whose throughput is set has enough for all known readers, those of `place` among
        them."""
        limits, readers = self._table["throughput"], _readers(disk, place)
        has = disk.throughput_mib_s
        if not self.has_throughput(disk.type) or has is None or readers <= limits["many_readers"]:
            return []
        needed = limits["per_reader"] * readers
        if has >= needed:
            return []
        why = f"{disk.name} has {has} MiB/s, and {readers} hosts that read it need {needed}"
        return [self._found("readers-throughput", why, f"tpuctl disk throughput {disk.name} {needed}")]

    def has_throughput(self, kind: str) -> bool:
        """Whether the throughput of disks of a type is set, and paid for."""
        return bool(self._table["types"].get(kind, {}).get("throughput"))

    @property
    def throughput_change_s(self) -> float:
        """The time between two changes of a disk's throughput."""
        return float(self._table["throughput"]["change_s"])

    def check_new(self, kind: str, size_gib: int, throughput: int | None) -> list[RuleFinding]:
        """Whether a disk can be made so."""
        row = self._table["types"].get(kind)
        if row is None:
            known = ", ".join(self._table["types"])
            return [self._found("type", f"no disk type {kind}", f"--type: one of {known}")]
        least, most = row["size"]
        found = []
        if not least <= size_gib <= most:
            found.append(
                self._found("size", f"{kind} disks have {least} to {most} GiB, not {size_gib}", "--size")
            )
        if throughput is not None and not self.has_throughput(kind):
            found.append(
                self._found("throughput", f"{kind} has no throughput to set", "leave --throughput out")
            )
        elif throughput is not None:
            low, high = self.throughput_range(size_gib)
            if not low <= throughput <= high:
                why = f"{kind} of {size_gib} GiB has {low} to {high} MiB/s, not {throughput}"
                found.append(self._found("throughput", why, f"--throughput {low}"))
        return found

    def check_master(self, kind: str) -> list[RuleFinding]:
        """Whether a disk of type `kind` that is made from another can be written."""
        row = self._table["types"].get(kind, {})
        if row.get("access_mode") and DiskMode.READ_ONLY in row.get("modes", ()):
            why = f"a {kind} disk that is made from another is read-only for good"
            return [self._found("access-mode", why, "--type hyperdisk-balanced")]
        return []

    def throughput_range(self, size_gib: int) -> tuple[int, int]:
        """MiB/s of a hyperdisk-ml."""
        limits = self._table["throughput"]
        low = max(limits["least"], round(limits["least_per_gib"] * size_gib))
        return low, min(limits["most_per_gib"] * size_gib, limits["most"])

    def throughput_for(self, kind: str, size_gib: int, readers: int) -> int | None:
        """The least that is asked for so many readers: what it gets by itself costs a fortune. None for types
        that have none to set."""
        if not self.has_throughput(kind):
            return None
        limits = self._table["throughput"]
        low, high = self.throughput_range(size_gib)
        wanted = limits["per_reader"] * readers if readers > limits["many_readers"] else 0
        return min(max(low, wanted), high)

    def access_mode_for(self, kind: str) -> str:
        """What a copy for many readers says at its birth; empty for types without access modes."""
        return SHARED if self._table["types"].get(kind, {}).get("access_mode") else ""

    def new_type(self, generation: str) -> str:
        """The type of a new disk for a generation, and where none is known."""
        return str(self._table["new_disk"].get(generation, "pd-balanced"))

    def shared_type(self, kind: str, generation: str) -> str | None:
        """The type of a read-only copy of a `kind` disk for a generation; None where there is none."""
        types = self.types(generation)
        for each in (kind, *self._table["shared_copy"]):
            modes = self._table["types"].get(each, {}).get("modes", ())
            if DiskMode.READ_ONLY in modes and (not types or types.get(each) == Policy.ALLOW):
                return str(each)
        return None

    def restore_minutes(self, size_gib: int) -> int:
        """About how long a disk of that size takes to be there from its snapshot."""
        return 1 + size_gib // int(self._table["restore"]["gib_per_minute"])

    def check_restore(
        self, name: str, zone: str, minutes: int, usd_per_month: float | None
    ) -> list[RuleFinding]:
        """Whether a clone may come to be in another zone without a person who says so."""
        limits = self._table["restore"]
        found = []
        if minutes > limits["most_minutes"]:
            why = f"restoring {name} in {zone} takes about {minutes} min, more than {limits['most_minutes']}"
            found.append(self._found("restore-time", why))
        most = limits["most_usd_per_month"]
        if usd_per_month is None or usd_per_month > most:
            price = "an unknown price" if usd_per_month is None else f"about ${usd_per_month:.2f} a month"
            found.append(self._found("restore-cost", f"{name} costs {price} in {zone}, more than ${most}"))
        return found

    @property
    def copy_rate(self) -> tuple[int, float]:
        """So many snapshots of a disk, within so many seconds."""
        limits = self._table["copies"]
        return int(limits["burst"]), float(limits["window_s"])

    def copy_wait_s(self, made_at: Sequence[float], now: float) -> float:
        """How long until one more copy may be made of a source, of which copies were made at those times."""
        burst, window_s = self.copy_rate
        recent = sorted(at for at in made_at if at > now - window_s)
        return recent[-burst] + window_s - now if len(recent) >= burst else 0.0


def _entry_of(disk: DiskInfo, place: DiskTarget) -> DataDisk | None:
    """How the place has the disk already."""
    return next((each for each in place.disks if (each.zone, each.name) == (disk.zone, disk.name)), None)


def _readers(disk: DiskInfo, place: DiskTarget) -> int:
    """All hosts that read a disk when the place has it: who has it now, and who asks for it."""
    there = len(disk.users) + (0 if _entry_of(disk, place) is not None else place.hosts)
    return max(there, place.hosts + place.others)


def refuse(findings: Sequence[RuleFinding], instead: str = "") -> None:
    """Raises UsageError with the first refusal among them; a command without --allow says what to type
    `instead`."""
    denied = next((each for each in findings if each.policy is Policy.DENY), None)
    if denied is not None and denied.firm:
        raise UsageError(denied.why, hint=denied.hint or None, details={"rule": denied.rule})
    if denied is not None:
        words = f"{instead} --allow {denied.rule}".strip()
        allow = f"or, at your own risk, {words}"
        raise UsageError(
            denied.why, hint=f"{denied.hint}; {allow}" if denied.hint else allow, details={"rule": denied.rule}
        )


def warnings(findings: Sequence[RuleFinding]) -> list[str]:
    return [each.why for each in findings if each.policy is Policy.WARN]


def monthly_cost(kind: str, size_gib: int, throughput: int | None, iops: int | None = None) -> float | None:
    """USD; None for a type without a known price."""
    return load_other_prices().disk_month(kind, size_gib, throughput, iops)


_FORM = re.compile(r"(?P<name>[^:]*)(:(?P<mode>ro|rw))?(:(?P<path>/.*))?\Z")
_MODES = {"ro": DiskMode.READ_ONLY, "rw": DiskMode.READ_WRITE}


class DiskUse(Struct, frozen=True):
    """None and empty: what follows from the disk and the slice."""

    name: str
    mode: DiskMode | None
    path: str


def parse_disk(text: str) -> DiskUse:
    """Raises UsageError for what is no disk, or a place where hosts have something else."""
    match = _FORM.match(text)
    if match is None:
        raise UsageError.of("disk", f"{text!r} is not NAME[:ro|rw][:/PATH]", "--disk data:/mnt/data")
    path = match["path"] or ""
    if path:
        check_place(path, field="disk", what="disk", hint=f"--disk {match['name']}:/mnt/data")
    return DiskUse(check_disk_name(match["name"]), _MODES.get(match["mode"] or ""), path)
