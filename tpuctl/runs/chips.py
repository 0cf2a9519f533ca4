"""Which chips a run has: several runs may share a slice of one host, each with chips of its own.

A run has its chips from when its record is written, under the lease of its slice, until that says that it is
over. One chip and all of them are known to start; other sets fail on some hosts when their links come up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tpuctl.errors import UsageError
from tpuctl.lib.text import counted
from tpuctl.model.processes import TOPOLOGY
from tpuctl.model.records import RunRecord
from tpuctl.model.run_spec import RunOptions
from tpuctl.model.slice_spec import SliceSpec

ONE, ALL = "1", "all"
_BOXES = {2, 4}
"""So many chips beside one and all make a box, which is how libtpu is told of them."""


def check_chips(asked: RunOptions, variables: Collection[str], spec: SliceSpec) -> None:
    """Raises UsageError for chips that a run cannot have on a slice, and for variables that would give it
    others."""
    chips = parse_chips(asked)
    if chips == ():
        return
    own = sorted(TOPOLOGY.intersection(variables))
    if own:
        why = f"--var {own[0]} chooses chips, and so do --chips and --chip"
        raise UsageError.of("var", why, "keep one of them")
    flag = "chips" if chips is None else "chip"
    if spec.hosts > 1 or spec.slices > 1:
        why = f"--{flag} is for slices of one host, and this one has {counted(spec.hosts, 'host')}"
        raise UsageError.of(flag, why, f"leave --{flag} out: a run has all chips of its slice")
    wrong = [chip for chip in chips or () if chip >= spec.chips]
    if wrong:
        why = f"--chip {wrong[0]}: {spec.accelerator_type} has {counted(spec.chips, 'chip')}"
        raise UsageError.of("chip", why, f"--chip 0 to {spec.chips - 1}" if spec.chips > 1 else "--chip 0")
    count = len(chips or (0,))
    if count not in {1, spec.chips} and not (asked.unproven and count in _BOXES):
        why = f"--chip {asked.chip}: only one chip or all of them are known to start"
        try_it = ", or add --unproven to try it" if count in _BOXES else ""
        raise UsageError.of("chip", why, f"--chip {(chips or (0,))[0]}, or --chips all{try_it}")


def check_room(asked: Mapping[str, RunOptions], spec: SliceSpec) -> None:
    """Raises UsageError for runs that are to be on a slice at the same time, each with chips of its own, where
    it has too few: one of them would not begin before another ends."""
    chips = {name: parse_chips(each) for name, each in asked.items()}
    count = len({chip for each in chips.values() for chip in each or ()}) + list(chips.values()).count(None)
    if count > spec.chips:
        why = f"{counted(len(asked), 'run')} want {count} chips of a slice that has {spec.chips}"
        raise UsageError.of(
            "chips", why, "another slice for some of them, or a sweep: tpuctl run --matrix FILE"
        )


def parse_chips(asked: RunOptions) -> tuple[int, ...] | None:
    """The chips that are named, in order; None for any one, empty for all. Raises UsageError."""
    if asked.chips not in {ONE, ALL}:
        raise UsageError.of("chips", f"--chips {asked.chips!r} is unknown", "1 or all; --chip 2 names one")
    if asked.chip is None:
        return None if asked.chips == ONE else ()
    if asked.chips == ONE:
        raise UsageError.of("chip", "--chips and --chip exclude each other", "keep one of them")
    words = [word.strip() for word in asked.chip.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) < 4 for word in words):
        raise UsageError.of("chip", f"--chip {asked.chip!r} is no number of a chip", "--chip 2")
    return tuple(sorted({int(word) for word in words}))


def claim_chips(
    asked: RunOptions, spec: SliceSpec | None, others: Sequence[RunRecord]
) -> tuple[tuple[int, ...], list[RunRecord]]:
    """The chips that a run gets beside the others on its slice, empty for all; and those of the others that are
    in its way."""
    every = range(max(1, spec.chips if spec is not None else 1))
    taken = {chip: run for run in others for chip in _chips_of(run) or every}
    wanted = parse_chips(asked)
    if wanted is None:
        free = next((chip for chip in every if chip not in taken), None)
        wanted = tuple(every) if free is None else (free,)
    chips = wanted or tuple(every)
    in_the_way = {taken[chip].id: taken[chip] for chip in chips if chip in taken}
    return (() if len(chips) == len(every) else chips), list(in_the_way.values())


def _chips_of(run: RunRecord) -> tuple[int, ...]:
    """Those that it has; empty for all, as where its slice goes with it."""
    return () if run.spec.owns_slice and not run.spec.keep_slice else run.chips


def are_shared(one: RunRecord, other: RunRecord) -> bool:
    """Whether two runs on a slice may each have their own chips of it at the same time."""
    return bool(one.chips and other.chips) and not set(one.chips) & set(other.chips)


def describe_chips(chips: Sequence[int]) -> str:
    """`chip 2`, `chips 0 and 2`, or nothing for all."""
    if not chips:
        return ""
    first = ", ".join(map(str, chips[:-1]))
    return f"chips {first} and {chips[-1]}" if first else f"chip {chips[-1]}"
