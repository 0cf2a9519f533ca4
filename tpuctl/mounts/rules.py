"""What may be mounted how: `manifests/tables/mounts.yaml` and the options of each version of gcsfuse. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from tpuctl.errors import UsageError
from tpuctl.lib.codec import from_data
from tpuctl.lib.names import region_of
from tpuctl.lib.text import suggest
from tpuctl.model.facts import BucketPlace
from tpuctl.model.refs import MountRef
from tpuctl.mounts.spec import typed_as

_NUMBERS = {
    "int": re.compile(r"-?\d{1,12}"),
    "octal": re.compile(r"[0-7]{3,4}"),
    "bool": re.compile("true|false"),
}
_NUMBERS |= {"float64": re.compile(r"-?\d+(\.\d+)?"), "duration": re.compile(r"(\d+(\.\d+)?(ms|s|m|h))+")}
_EXAMPLES = {"int": "60", "octal": "644", "bool": "true", "float64": "0.5", "duration": "30s"}
_OURS = frozenset({"foreground", "disable-autoconfig", "only-dir", "app-name", "profile", "machine-type"})
"""Options that tpuctl itself needs to be as they are."""


class MountProfile(Struct, frozen=True, rename={"purpose": "for"}):
    """A row of the table. `options` are values as their keys have them."""

    name: str
    purpose: str
    options: Mapping[str, Any]
    consistency: str
    cost: str
    read_only: bool = False
    cache: bool = False
    hierarchical: bool = False
    """A bucket that is made for it has a hierarchical namespace, in which folders are renamed at once."""


class MountRules:
    """The table, with the options of each version: key → flag and type."""

    def __init__(self, table: Mapping[str, Any], flags: Mapping[str, Any]) -> None:
        self._table = table
        self._flags: Mapping[str, Mapping[str, tuple[str, str]]] = flags["versions"]

    @property
    def pinned(self) -> str:
        """The version of gcsfuse that hosts get."""
        return str(self._table["gcsfuse"]["pinned"])

    @property
    def default(self) -> str:
        return str(self._table["default"])

    @property
    def profiles(self) -> tuple[str, ...]:
        return tuple(self._table["profiles"])

    @property
    def common(self) -> Mapping[str, Any]:
        """What is under every profile."""
        return dict(self._table["common"])

    @property
    def cache(self) -> tuple[str, int]:
        """Folder and size in MiB of a file cache of which nobody says more."""
        return self._table["cache"]["dir"], self._table["cache"]["size_mib"]

    def profile(self, name: str) -> MountProfile:
        return from_data(MountProfile, {"name": name, **self._table["profiles"][name]})

    def keys(self, version: str) -> Mapping[str, tuple[str, str]]:
        """Key → flag and type. Raises UsageError for a version whose options are not known."""
        try:
            return self._flags[version]
        except KeyError:
            raise UsageError(
                f"the options of gcsfuse {version} are not known here", hint=f"one of: {', '.join(self._flags)}"
            ) from None

    def check_version(self, version: str) -> None:
        """Raises UsageError for a version with known defects."""
        for row in self._table["gcsfuse"]["bad"]:
            if _parts(row["from"]) <= _parts(version) <= _parts(row["to"]):
                raise UsageError(f"gcsfuse {version} is not used: {row['why']}", hint=f"gcsfuse {self.pinned}")

    def check_option(self, key: str, value: str, version: str, *, flag: bool = False) -> None:
        """Raises UsageError for an option that gcsfuse does not have, or a value that is none. `flag`: it was
        typed as one, and not behind a profile."""
        known = self.keys(version)
        if key not in known:
            near = suggest(key, list(known))
            hint = typed_as(near, "…", flag=flag) if near else "gcsfuse --help has the list"
            raise UsageError.of("opt", f"gcsfuse {version} has no option {key}", hint)
        if key in _OURS:
            raise UsageError.of("opt", f"{key} is tpuctl's own to set", f"leave out {key}")
        kind = known[key][1]
        form = _NUMBERS.get(kind)
        if form is not None and not form.fullmatch(value):
            hint = typed_as(key, _EXAMPLES[kind], flag=flag)
            raise UsageError.of("opt", f"{key}={value}: not a value of type {kind}", hint)

    def check_location(self, ref: MountRef, place: BucketPlace, zone: str) -> str:
        """What reading from the bucket costs there, in words; empty for nothing. Raises UsageError for another
        region, unless that is meant."""
        prices = self._table["prices"]
        where, region = place.location.upper(), region_of(zone)
        if not place.is_near(zone):
            cost = f"{prices['other_region_tb']} USD or more per TB read"
            if not ref.cross_region:
                raise UsageError.of(
                    "mount",
                    f"bucket gs://{ref.bucket} is in {where}, the slice in {region}: slow, and {cost}",
                    f"a bucket in {region}, or {ref.source}:{ref.path}:{ref.profile},cross-region",
                )
            return f"gs://{ref.bucket} is in {where}, away from {region}: {cost}"
        if place.location.lower() == region:
            return ""
        kind = place.kind if place.kind in prices["read_tb"] else "multi-region"
        read, class_a = prices["read_tb"][kind], prices["operations"][kind]["class_a"]
        cost = f"{read} USD per TB read" if read else "reading costs nothing"
        return (
            f"gs://{ref.bucket} is in the {kind} {where}, which contains {region}: {cost},"
            f" {class_a:g} USD per 1,000 listings and writes (in {region} alone: nothing, and"
            f" {prices['operations']['region']['class_a']:g} USD)"
        )

    @property
    def prices(self) -> Mapping[str, Any]:
        return dict(self._table["prices"])


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in version.split("."))
