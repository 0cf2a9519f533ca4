"""From the request of a sweep to its record: every row is checked before anything is written down."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.config.settings import Config
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, UsageError, with_field
from tpuctl.lib.codec import to_data
from tpuctl.lib.input_files import CONFIG_LIMIT, read_file
from tpuctl.lib.names import check_run_id
from tpuctl.lib.text import counted
from tpuctl.model.records import LifetimeLimits, SliceRecord
from tpuctl.model.requests import LaunchRequest
from tpuctl.model.run_spec import RunRequest
from tpuctl.model.slice_spec import SliceRequest, SliceSpec
from tpuctl.money.slice_costs import list_price
from tpuctl.runs.chips import ONE
from tpuctl.runs.matrix import MatrixRow, parse_matrix
from tpuctl.runs.rules import check_run
from tpuctl.runs.submit import Submission, freeze_code, freeze_run, own_slice_name, prepare_run
from tpuctl.runs.sweep import check_same_sweep
from tpuctl.runs.sweep_record import SweepRecord, SweepRow, find_sweep
from tpuctl.slices.bring_up import Price, resolve_wanted, store_for_hosts
from tpuctl.slices.choose import resolve_slice
from tpuctl.slices.resolve import WantedSlice
from tpuctl.state.repository import list_runs

GROUP_MAX = 40
"""Leaves room for the number behind it in the ids of runs and the names of slices."""


class PreparedSweep(Struct, frozen=True):
    """A sweep that was checked; nothing is written down."""

    submission: Submission
    """Of its first row."""
    rows: tuple[SweepRow, ...]
    group: str
    asked: str
    parallel: int
    slices: tuple[str, ...]
    chips: int

    specs: tuple[SliceSpec, ...]
    """Of a slice of it, in each zone in which that may be."""

    @property
    def price(self) -> str:
        """What is taken for it, and what that costs by the hour, in words."""
        count = len(self.slices)
        where = f"{count} x {self.specs[0].accelerator_type}"
        where = f"slice {self.slices[0]}" if self.submission.wanted is None else where
        runs = f"{counted(len(self.rows), 'run')} on {where}, at most {self.parallel} at the same time"
        return f"{runs}; {describe_hourly(list(map(list_price, self.specs)), count)}"


def describe_hourly(prices: Sequence[float | None], count: int) -> str:
    """What `count` slices cost by the hour, of which each may have one of these prices. How long a row takes
    nobody knows, so this is all that can be said."""
    known = [price * count for price in prices if price is not None]
    if len(known) < len(prices):
        return "the price per hour is unknown"
    low, high = f"{min(known):.2f}", f"{max(known):.2f}"
    span = f"${low}" if low == high else f"${low} to ${high}"
    return f"about {span} per hour by the list while {'all are' if count > 1 else 'it is'} there"


def read_matrix(directory: Path, path: Path) -> tuple[MatrixRow, ...]:
    """The rows of a file, whose path is relative to `directory`. Raises UsageError or BadConfigError."""
    try:
        text = read_file(directory / path, CONFIG_LIMIT).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError.of("matrix", f"--matrix {path}: {why}", "the path of a YAML file") from error
    return parse_matrix(text, str(path))


def prepare_sweep(
    services: Services,
    config: Config,
    request: RunRequest,
    launch: LaunchRequest,
    capacity: SliceRequest,
    directory: Path,
) -> PreparedSweep | SweepRecord:
    """A sweep with the code in `directory`; the one that is there, where that is the same. Changes nothing.

    Raises UsageError, ConflictError, and as `prepare_run`, `resolve_slice` and `resolve_wanted` do.
    """
    path = Path(launch.matrix or "")
    matrix = read_matrix(directory, path)
    group = _check_group(request.group or path.stem)
    request = replace(request, group=group)
    rows = tuple(_rows(request, matrix, group))
    code = freeze_code(config, request, directory)
    parts = (request, capacity, launch.up, launch.parallel, rows, code.sha256)
    asked = hashlib.sha256(json.dumps([to_data(part) for part in parts], sort_keys=True).encode()).hexdigest()
    there = find_sweep(services, group)
    if there is not None:
        return check_same_sweep(there, asked)
    taken = sorted({run.id for run in list_runs(services)} & {row.run_id for row in rows})
    if taken:
        hint = f"--group ANOTHER; `tpuctl status {taken[0]}` shows what has it"
        raise ConflictError(
            f"rows of group {group} need ids that other runs have: {', '.join(taken)}", hint=hint
        )
    target: SliceRecord | WantedSlice
    if launch.up is None:
        target = resolve_slice(services, request.on, flag="--on")
    else:
        own = capacity.of(launch.up)
        target = resolve_wanted(services, config, own, own_slice_name(services, own, f"{group}-s1"), directory)
        Price(services, target).check()
    first = _of_row(request, matrix[0])
    submission = prepare_run(services, config, first, code, directory, target)
    per_slice = target.spec.chips if request.chips == ONE else 1
    parallel = min(launch.parallel or per_slice, len(rows))
    names: tuple[str, ...] = (target.name,)
    if launch.up is not None:
        count = math.ceil(parallel / per_slice)
        names = tuple(own_slice_name(services, own, f"{group}-s{number}") for number in range(1, count + 1))
    specs = target.specs if isinstance(target, WantedSlice) else (target.spec,)
    return PreparedSweep(submission, rows, group, asked, parallel, names, target.spec.chips, specs)


def freeze_sweep(services: Services, prepared: PreparedSweep) -> SweepRecord:
    """Stores the code, and what hosts need, and returns the record that refers to them."""
    submission, wanted = prepared.submission, prepared.submission.wanted
    spec = submission.spec
    spec = replace(spec, owns_slice=False, checkpoint_per_run=spec.checkpoint_dir is not None)
    template = freeze_run(services, prepared.group, spec, submission.code, submission.environment)
    if wanted is not None:
        if wanted.script is not None:
            services.store.put_blob(wanted.script)
        store_for_hosts(services, wanted)
    return SweepRecord(
        prepared.group,
        prepared.asked,
        template,
        prepared.rows,
        prepared.parallel,
        prepared.slices,
        specs=wanted.specs if wanted is not None else (),
        chips=prepared.chips,
        pay=wanted is not None and wanted.pay,
        limits=wanted.limits if wanted is not None else LifetimeLimits(),
        configuration=submission.configuration,
    )


def _rows(request: RunRequest, matrix: Sequence[MatrixRow], group: str) -> list[SweepRow]:
    """Each with what it runs. Raises UsageError for the first that cannot be a run."""
    width = len(str(len(matrix)))
    found = []
    for number, row in enumerate(matrix, 1):
        own = _of_row(request, row)
        try:
            argv = check_run(own)
        except UsageError as error:
            raise UsageError.of("matrix", f"row {number}: {error.message}", error.hint) from error
        run_id = f"{group}-{number:0{width}d}"
        found.append(SweepRow(run_id, argv, own.var, tuple(sorted(own.tag))))
    return found


def _of_row(request: RunRequest, row: MatrixRow) -> RunRequest:
    """The request of one row. An argument goes behind those that all have."""
    words = {"command": (*request.command, *row.args)} if request.command else {}
    words = words or {"args": (*request.args, *row.args)}
    return replace(request, var={**request.var, **row.variables}, tag=(*request.tag, *row.tags), **words)


def _check_group(group: str) -> str:
    """It begins the ids of runs. Raises UsageError."""
    with_field("group", lambda: check_run_id(group))
    if len(group) > GROUP_MAX:
        raise UsageError.of("group", f"--group {group} has {len(group)} characters", f"at most {GROUP_MAX}")
    return group
