"""What a fleet file changes: what it wants beside what is recorded, one change for each slice and run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from tpuctl.lib.time import render_duration, render_moment
from tpuctl.model.records import Desired, RunRecord, SliceRecord, SliceState
from tpuctl.model.requests import ApplyRequest
from tpuctl.model.run_identity import fingerprint
from tpuctl.model.run_spec import RestartPolicy, RunSpec
from tpuctl.model.slice_spec import SliceSpec, option_of
from tpuctl.provenance.manifest import SettingSection
from tpuctl.runs.chips import claim_chips
from tpuctl.slices.lifetime import limit_differences
from tpuctl.slices.resolve import WantedSlice
from tpuctl.slices.things import THINGS, find_changes

if TYPE_CHECKING:
    from tpuctl.envs.pinned import PinnedEnvironment


class Change(StrEnum):
    """What `apply` does about one slice, run or mount."""

    NONE = "none"
    CREATE = "create"
    UPDATE = "update"
    REPLACE = "replace"
    CONFLICT = "conflict"
    REMOVE = "remove"
    UNLISTED = "unlisted"


CHANGE_NOTES: Mapping[Change, str] = {
    Change.NONE: "it is as the file says, or on its way there",
    Change.CREATE: "the slice is asked for, the run is submitted",
    Change.UPDATE: "in place: a run's policy; of a slice `pay`, `disk`, `mount`, `env` and limits",
    Change.REPLACE: "with `--replace`: taken down and asked for anew, or stopped and submitted anew",
    Change.CONFLICT: "it is there, but not as the file says; nothing is applied until that is settled",
    Change.REMOVE: "with `--prune`: no longer in the file; the slice is taken down, the run stopped, the bucket"
    " unmounted",
    Change.UNLISTED: "no longer in the file, and left alone without `--prune`",
}
"""What each change means, for the documents."""

_DESTRUCTIVE = frozenset({Change.REPLACE, Change.REMOVE})
IN_STEP = frozenset({Change.NONE, Change.UNLISTED})
"""Changes that are none: `diff` finds the fleet as it should be."""


class ItemKind(StrEnum):
    """What a change is about."""

    SLICE = "slice"
    RUN = "run"
    MOUNT = "mount"
    """A mount of a slice that is in the file, as `SLICE:/PATH`."""


class WantedRun(Struct, frozen=True):
    """A run of the file, resolved; `bundle` is the digest of its code as it is now."""

    name: str
    spec: RunSpec
    bundle: str
    environment: PinnedEnvironment | None = None

    def fingerprint(self, policy: RestartPolicy) -> str:
        """What the record of this run would have as fingerprint under `policy`."""
        return fingerprint(replace(self.spec, policy=policy), self.bundle)

    def is_same(self, run: RunRecord) -> bool:
        """Whether a recorded run is this one, whatever its policy."""
        return run.fingerprint == self.fingerprint(run.spec.policy)


class WantedFleet(Struct, frozen=True):
    """All that a file asks for, resolved and in its order."""

    name: str
    slices: tuple[WantedSlice, ...]
    runs: tuple[WantedRun, ...]
    configuration: Mapping[str, SettingSection] = field(default_factory=dict)
    """Settings, for the manifests of its runs."""


class FleetChange(Struct, frozen=True):
    """One line of a plan. `record` is the id of the run that is meant, or ended first, if there is one."""

    kind: ItemKind
    name: str
    change: Change
    why: str
    hint: str = ""
    differs: tuple[str, ...] = ()
    record: str = ""

    @property
    def subject(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def destroys(self) -> bool:
        """Whether something is lost by it; a bucket that is unmounted keeps its files."""
        return self.change in _DESTRUCTIVE and self.kind is not ItemKind.MOUNT


def plan_fleet(
    wanted: WantedFleet, slices: Sequence[SliceRecord], runs: Sequence[RunRecord], user: str, how: ApplyRequest
) -> tuple[FleetChange, ...]:
    """What to do about every slice and run of the file, and about slices, runs and mounts that are no longer in
    it."""
    known = {record.name: record for record in slices}
    changes = [_slice_change(wanted.name, item, known.get(item.name), user, how) for item in wanted.slices]
    going = {change.name for change in changes if change.change is Change.REPLACE}
    specs = {item.name: item.spec for item in wanted.slices}
    changes += [
        _run_change(wanted.name, item, specs.get(item.spec.slice_name), runs, going, how)
        for item in wanted.runs
    ]
    kept = {change.record for change in changes if change.record}
    stays = {change.name for change in changes if change.change in {Change.NONE, Change.UPDATE}}
    for item in wanted.slices:
        if item.name in stays and item.name in known:
            changes += _unlisted_mounts(wanted.name, item, known[item.name], user, how)
    return (*changes, *_unlisted(wanted, slices, runs, kept, user, how))


def _slice_change(
    fleet: str, item: WantedSlice, record: SliceRecord | None, user: str, how: ApplyRequest
) -> FleetChange:
    def change(what: Change, why: str, hint: str = "", differs: tuple[str, ...] = ()) -> FleetChange:
        return FleetChange(ItemKind.SLICE, item.name, what, why, hint, differs)

    if record is None or record.state is SliceState.GONE:
        return change(Change.CREATE, "it is not there")
    if record.desired is Desired.DOWN:
        return change(Change.CREATE, "it is being deleted, and asked for again when it is gone")
    foreign = record.owner != user and not how.all_users
    differs = record.differs_from(item.specs)
    if record.run_id is not None:
        return change(Change.CONFLICT, f"it goes with run {record.run_id}", f"tpuctl stop {record.run_id}")
    if record.fleet not in ("", fleet):
        return change(Change.CONFLICT, f"it is of fleet {record.fleet}", "give one of the two another name")
    if differs:
        keys = [option_of(name) for name in differs]
        reason = f"asked for with other {_words(keys)}: {_versus(record, item, differs[0])}"
        if foreign:
            reason = f"{reason}; it is {record.owner}'s"
            return change(Change.CONFLICT, reason, "--replace --all-users, or another name", differs)
        if record.by_hand:
            reason = f"{reason}; it was made by hand, and nothing but `down` ends it"
            return change(Change.CONFLICT, reason, f"tpuctl down {item.name}, or change the file back", differs)
        if how.replace:
            return change(Change.REPLACE, reason, differs=differs)
        again = f"{how.command} --replace (down, then up: {item.name} and its runs end)"
        return change(Change.CONFLICT, reason, f"change the file back, or {again}", differs)
    if record.state is SliceState.REMOVED:
        return change(Change.CREATE, "it was deleted outside tpuctl, and is still in the file")
    if record.state is SliceState.REFUSED:
        return change(Change.CREATE, f"the cloud refused it: {record.loss.detail if record.loss else ''}")
    in_place = _in_place(record, item)
    if not in_place:
        return change(Change.NONE, f"it is {record.state}")
    reason = "; ".join(in_place.values())
    if foreign:
        reason = f"{reason}; it is {record.owner}'s"
        return change(Change.CONFLICT, reason, "--all-users changes it, too", tuple(in_place))
    if record.by_hand and not set(in_place) <= {"pay", *(row.option for row in THINGS)}:
        why = "it was made by hand, and nothing but `down` ends it"
        return change(Change.CONFLICT, why, "leave ttl and stop_when_idle out", tuple(in_place))
    return change(Change.UPDATE, reason, differs=tuple(in_place))


def _in_place(record: SliceRecord, item: WantedSlice) -> dict[str, str]:
    """In what the slice is otherwise than in the file, but need not be another one; in words, by key."""
    found = {}
    if record.pay != item.pay:
        found["pay"] = f"the file {'agrees' if item.pay else 'no longer agrees'} to pay for it"
    for each in find_changes(record.spec, item.spec, item.without):
        found[each.option] = each.told
    for key in limit_differences(record.lifetime, item.limits):
        seconds = item.limits.ttl_s if key == "ttl" else item.limits.idle_s
        said = "no longer says" if seconds is None else f"says {render_duration(seconds)} as"
        found[key] = f"the file {said} {key}"
    return found


def _words(names: Sequence[str]) -> str:
    return ", ".join(name.replace("_", " ") for name in names)


def _versus(record: SliceRecord, item: WantedSlice, name: str) -> str:
    if name == "zone":
        return f"{' or '.join(record.requested_zones)} is there, {' or '.join(item.zones)} in the file"
    old, new = _said(name, getattr(record.spec, name)), _said(name, getattr(item.spec, name))
    return f"{old} is there, {new} in the file"


_CHOICES = {
    "queued": ("a node that was asked for directly", "a queued resource"),
    "external_ips": ("a slice without external addresses", "a slice with external addresses"),
}
"""What a no and a yes of a field mean."""


def _said(name: str, value: Any) -> str:
    """The value of a field of `SliceSpec` as the file would have it."""
    if name in _CHOICES:
        return _CHOICES[name][bool(value)]
    if value is None or value == () or value == {}:
        return "none"
    if name == "startup_script":
        return f"a script with the SHA-256 {value[:12]}…"
    if name == "valid_until":
        return render_moment(value)
    if name.endswith("_s"):
        return render_duration(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={text}" for key, text in value.items())
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _run_change(
    fleet: str,
    item: WantedRun,
    on: SliceSpec | None,
    runs: Sequence[RunRecord],
    going: Collection[str],
    how: ApplyRequest,
) -> FleetChange:
    def change(
        what: Change, why: str, hint: str = "", differs: tuple[str, ...] = (), record: str = ""
    ) -> FleetChange:
        return FleetChange(ItemKind.RUN, item.name, what, why, hint, differs, record)

    here = [run for run in runs if run.slice_name == item.spec.slice_name]
    there = [run for run in here if not run.state.final]
    active = next((run for run in there if item.is_same(run)), None)
    if active is not None:
        return _same_run(item, active, going, how)
    before = [run for run in there if run.fleet == fleet and run.fleet_run == item.name]
    active = next(iter([*before, *claim_chips(item.spec, on, there)[1]]), None)
    if active is not None:
        differs, ours = _run_differences(active, item), active in before
        reason = f"run {active.id} is {active.state} there, with other {_words(differs)}"
        if active.slice_name in going or (how.replace and ours):
            return change(Change.REPLACE, reason, differs=differs, record=active.id)
        hint = f"tpuctl stop {active.id}" + (f", or {how.command} --replace" if ours else "")
        return change(Change.CONFLICT, reason, hint, differs, active.id)
    mine = [run for run in runs if run.fleet == fleet and run.fleet_run == item.name]
    moved = next((run for run in mine if _is_live(run)), None)
    if moved is not None:
        reason = f"run {moved.id} is {moved.state} on slice {moved.slice_name}, not on {item.spec.slice_name}"
        if how.replace or moved.slice_name in going:
            return change(Change.REPLACE, reason, differs=("on",), record=moved.id)
        hint = f"tpuctl stop {moved.id}, or {how.command} --replace"
        return change(Change.CONFLICT, reason, hint, ("on",), moved.id)
    same = max((run for run in here if item.is_same(run)), key=lambda run: run.created_at, default=None)
    if same is None:
        return change(Change.CREATE, "it has changed since it last ran" if mine else "it has not run yet")
    if item.name in how.again:
        return change(Change.CREATE, f"run {same.id} has {same.state}; once more, as asked")
    hint = f"{how.command} --again {item.name} repeats it"
    return change(Change.NONE, f"run {same.id} has ended: {same.state}", hint, record=same.id)


def _is_live(run: RunRecord) -> bool:
    return not run.state.final and not run.stop_asked


def _same_run(item: WantedRun, active: RunRecord, going: Collection[str], how: ApplyRequest) -> FleetChange:
    """A run that is under way already: only its policy may differ."""

    def change(what: Change, why: str, hint: str = "", differs: tuple[str, ...] = ()) -> FleetChange:
        return FleetChange(ItemKind.RUN, item.name, what, why, hint, differs, active.id)

    if active.slice_name in going and item.name in how.again:
        return change(Change.REPLACE, f"run {active.id} ends with its slice; once more, as asked")
    if active.slice_name in going:
        hint = f"--again {item.name} submits it anew on the new slice"
        return change(Change.NONE, f"run {active.id} ends with its slice", hint)
    if active.spec.policy != item.spec.policy and not active.stop_asked:
        names = tuple(
            name
            for name in RestartPolicy.__struct_fields__
            if getattr(active.spec.policy, name) != getattr(item.spec.policy, name)
        )
        return change(Change.UPDATE, f"run {active.id} goes on with other {_words(names)}", differs=names)
    return change(Change.NONE, f"run {active.id} is {active.state}")


_NOT_OF_THE_FILE = frozenset({"slice_name", "policy", "owns_slice", "keep_slice", "checkpoint_per_run"})
"""Fields of a `RunSpec` that are compared elsewhere, or that no file says."""
_RUN_WORDS: Mapping[str, str] = {
    "argv": "command",
    "cwd": "directory",
    "allow_drift": "allowed drift",
    "allow_cpu": "whether it may compute on the CPU",
    "synthetic": "whether its data is made up",
    "join_limit": "limit for joining",
    "debug": "what is dumped or checked",
    "pull": "when its image is pulled",
    "privileged": "whether it has all rights on its hosts",
    "checkpoint_dir": "place of checkpoints",
    "no_checkpoint": "whether it keeps checkpoints",
    "stall_s": "stall",
    "first_step_limit_s": "limit for the first step",
}
"""What fields are called where their name does not say it."""


def _run_differences(run: RunRecord, item: WantedRun) -> tuple[str, ...]:
    """In what a recorded run is another one than the file's, as far as the record tells."""
    old, new = _compared(run.spec, run.code.bundle, run.id), _compared(item.spec, item.bundle, run.id)
    return tuple(_RUN_WORDS.get(name, name) for name in new if old[name] != new[name]) or ("settings",)


def _compared(spec: RunSpec, bundle: str, run_id: str) -> dict[str, Any]:
    values = {name: getattr(spec, name) for name in RunSpec.__struct_fields__ if name not in _NOT_OF_THE_FILE}
    environment = values.pop("environment")
    return {
        "argv": spec.argv,
        "code": bundle,
        **values,
        "environment": environment and environment.name,
        "content of the environment": environment and environment.spec,
        "checkpoint_dir": spec.checkpoint_place(run_id),
    }


def _unlisted(
    wanted: WantedFleet,
    slices: Sequence[SliceRecord],
    runs: Sequence[RunRecord],
    kept: Collection[str],
    user: str,
    how: ApplyRequest,
) -> list[FleetChange]:
    """What this file asked for when it was applied before, and does not list any more."""
    listed = {item.name for item in wanted.slices}
    named = {item.name for item in wanted.runs}
    found = []
    for record in slices:
        if record.fleet != wanted.name or record.name in listed or record.state is SliceState.GONE:
            continue
        if record.desired is Desired.DOWN:
            found.append(FleetChange(ItemKind.SLICE, record.name, Change.NONE, "it is being deleted"))
            continue
        found.append(_gone_from_file(ItemKind.SLICE, record.name, record.owner, user, how))
    for run in runs:
        stale = run.fleet == wanted.name and run.fleet_run not in named and run.id not in kept
        if stale and not run.state.final and run.stop_asked:
            # Perhaps by an `apply` that was cut off: somebody has to see it to its end.
            found.append(FleetChange(ItemKind.RUN, run.id, Change.NONE, "it is being stopped", record=run.id))
        elif stale and not run.state.final:
            found.append(_gone_from_file(ItemKind.RUN, run.id, run.owner, user, how, run.id))
    return found


def _unlisted_mounts(
    fleet: str, item: WantedSlice, record: SliceRecord, user: str, how: ApplyRequest
) -> list[FleetChange]:
    """Those that this file asked for, and nobody since by hand."""
    listed = {each.path for each in item.spec.mounts}
    return [
        _gone_from_file(ItemKind.MOUNT, f"{record.name}:{each.path}", record.owner, user, how)
        for each in record.spec.mounts
        if each.fleet == fleet and each.path not in listed
    ]


def _gone_from_file(
    kind: ItemKind, name: str, owner: str, user: str, how: ApplyRequest, record: str = ""
) -> FleetChange:
    why = "no longer in the file"
    if owner != user and not how.all_users:
        hint = "--prune --all-users removes it, too"
        return FleetChange(kind, name, Change.UNLISTED, f"{why}; it is {owner}'s", hint, record=record)
    if how.prune:
        return FleetChange(kind, name, Change.REMOVE, why, record=record)
    return FleetChange(kind, name, Change.UNLISTED, why, "--prune removes it", record=record)


def run_id_of(item: WantedRun, taken: Collection[str]) -> str:
    """The id of a new run of the file: the same for the same run, with a number from the second time on."""
    base = f"{item.name}-{item.fingerprint(RestartPolicy())[:8]}"
    number = 1
    while (found := base if number == 1 else f"{base}-{number}") in taken:
        number += 1
    return found
