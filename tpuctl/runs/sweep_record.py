"""Sweeps as they are stored. What steps them imports all ways to hosts, and most passes meet none."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from tpuctl.engine.services import Services
from tpuctl.model.records import LifetimeLimits, RunRecord
from tpuctl.model.run_identity import fingerprint
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.provenance.manifest import SettingSection
from tpuctl.runs.chips import ONE
from tpuctl.state.repository import Repository


class SweepRow(Struct, frozen=True):
    """One run of a sweep: what it has beside what all have."""

    run_id: str
    argv: tuple[str, ...]
    variables: Mapping[str, str]
    tags: tuple[str, ...]


class SweepRecord(Struct, frozen=True):
    """One sweep. `template` is the run that each row is, but for what the row says and for its slice."""

    group: str
    asked: str
    """Digest of all that was asked for: the same command again means this sweep."""
    template: RunRecord
    rows: tuple[SweepRow, ...]
    parallel: int
    """How many of its runs are under way at the same time."""
    slices: tuple[str, ...]
    """On which they are: one that was there, or with `specs` those that are brought up for them."""
    specs: tuple[SliceSpec, ...] = ()
    """One for each zone in which these may be."""
    chips: int = 1
    """Of each slice."""
    pay: bool = False
    limits: LifetimeLimits = LifetimeLimits()
    configuration: Mapping[str, SettingSection] = field(default_factory=dict)
    stopped: bool = False
    over: bool = False
    lacks: str = ""
    """What kept more rows from beginning when that was last written down."""

    @property
    def key(self) -> str:
        return f"sweeps/{self.group}"

    @property
    def mark(self) -> str:
        """What its slices are known by: a later sweep of the same group is another."""
        return f"{self.group}@{self.template.created_at}"

    @property
    def per_slice(self) -> int:
        """How many of its runs a slice takes at once."""
        return self.chips if self.template.spec.chips == ONE else 1

    def run_of(self, row: SweepRow, slice_name: str) -> RunRecord:
        """A row as a run on that slice."""
        own = {"argv": row.argv, "variables": row.variables, "tags": row.tags}
        spec = replace(self.template.spec, slice_name=slice_name, **own)
        print_of = fingerprint(spec, self.template.code.bundle)
        return replace(self.template, id=row.run_id, spec=spec, fingerprint=print_of)


SWEEPS = Repository(SweepRecord, "sweeps")


def find_sweep(services: Services, group: str) -> SweepRecord | None:
    return SWEEPS.record(services, group)


def open_sweeps(services: Services) -> list[str]:
    """The groups of those that are not over."""
    return [sweep.group for sweep in SWEEPS.readable(services)[0] if not sweep.over]
