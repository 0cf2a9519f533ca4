"""Read the fleet file for `apply` and `diff`: check it, resolve it, find out what it would change and cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec import Struct

from tpuctl.config.file import file_error, joined
from tpuctl.config.load import find_project_file, read_text
from tpuctl.config.schema import Problem
from tpuctl.config.settings import PROJECT_FILE, Config
from tpuctl.config.yaml_positions import Marked, MarkedMapping, parse_marked
from tpuctl.engine.events import Note
from tpuctl.engine.services import Services
from tpuctl.envs.load import check_environment
from tpuctl.errors import (
    BadConfigError,
    LeaseHeldError,
    NotFoundError,
    StaleRecordError,
    TpuctlError,
    UsageError,
)
from tpuctl.fleet.file import FleetFile, parse_fleet_file, slice_of
from tpuctl.fleet.plan import Change, FleetChange, ItemKind, WantedFleet, WantedRun, plan_fleet
from tpuctl.model.disks import DiskMode
from tpuctl.model.hosts import Api
from tpuctl.model.requests import ApplyRequest
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.model.slice_spec import SliceRequest, SliceSpec
from tpuctl.money.coverage import list_grants
from tpuctl.money.quota_report import check_side_quotas
from tpuctl.runs.chips import check_chips, check_room
from tpuctl.runs.code_check import check_code
from tpuctl.runs.data import find_data
from tpuctl.runs.preset import with_preset
from tpuctl.runs.reconcile import find_end
from tpuctl.runs.submit import (
    check_alone,
    check_launcher,
    check_request,
    freeze_code,
    frozen_environment,
    recorded_settings,
    resolve_run,
)
from tpuctl.slices.bring_up import Price, resolve_wanted
from tpuctl.slices.resolve import WantedSlice, find_accelerator, resolve_limits, split_types
from tpuctl.state.repository import list_runs, list_slices
from tpuctl.transfer.bundle import CodeBundle
from tpuctl.transfer.own_output import describe_own_output

FLEET_MAX = 2000
"""Slices, and runs, of one file: each is checked by itself, and nobody has so many."""


class LoadedFleet(Struct, frozen=True):
    """A fleet file, resolved against settings and tables. `code` is by run."""

    file: FleetFile
    wanted: WantedFleet
    code: dict[str, CodeBundle]

    def slice_changes(self, changes: Sequence[FleetChange], *kinds: Change) -> list[WantedSlice]:
        """The slices of which one of these changes is planned."""
        names = {c.name for c in changes if c.kind is ItemKind.SLICE and c.change in kinds}
        return [item for item in self.wanted.slices if item.name in names]


def find_fleet_file(file: Path | None) -> Path:
    """`file`, else the nearest `tpuctl.yaml`. Raises UsageError."""
    path = file or find_project_file(Path.cwd(), Path.home())
    if path is None:
        raise UsageError(f"there is no {PROJECT_FILE} here or above", hint="tpuctl apply -f FILE")
    if not path.is_file():
        raise UsageError(f"there is no file {path}", hint="tpuctl apply -f FILE")
    return path


def load_fleet(services: Services, path: Path, read_config: Callable[[], Config]) -> LoadedFleet:
    """The file, checked as far as can be without asking the cloud. Raises one error for all problems."""
    found, config = _parse(path, read_config)
    problems: list[Problem] = []
    code: dict[str, CodeBundle] = {}
    slices = _resolve_slices(services, config, found, problems)
    runs: list[WantedRun] = []
    for name in found.fleet.runs:

        def resolve(name: str = name) -> None:
            runs.append(_resolve_run(services, config, found, name, slices, code))

        _collect(found, problems, ("runs", name), resolve)
    _check_room(found, slices, runs, problems)
    _raise_problems(found.path, problems)
    if own := [each for frozen in code.values() for each in frozen.own_output]:
        services.emit(Note("", describe_own_output(own)))
    settings = recorded_settings(config)
    return LoadedFleet(
        found, WantedFleet(found.fleet.name, tuple(slices.values()), tuple(runs), settings), code
    )


def _check_room(
    file: FleetFile, slices: Mapping[str, WantedSlice], runs: Sequence[WantedRun], problems: list[Problem]
) -> None:
    """Runs that share a slice of the file have room there together."""
    for name, item in slices.items():
        asked = {run.name: run.spec for run in runs if run.spec.slice_name == name}
        _collect(file, problems, ("slices", name), partial(check_room, asked, item.spec))


def _parse(path: Path, read_config: Callable[[], Config]) -> tuple[FleetFile, Config]:
    """The file by itself, and the settings. Raises BadConfigError with all that is wrong in both."""
    errors, config, found = [], None, None
    try:
        config = read_config()
    except BadConfigError as error:
        errors.append(error)
    try:
        found = _read_fleet(path, alone=bool(errors))
    except BadConfigError as error:
        errors.append(error)
    if errors or config is None:
        raise joined(errors) from errors[0]
    if found is None:
        raise UsageError(f"{path} holds no fleet", hint="fleet: {name: lab, slices: {…}}")
    return found, config


def _read_fleet(path: Path, *, alone: bool) -> FleetFile | None:
    """The fleet in a file; beside mistakes in it, types are checked here, so that all is told at once. `alone`:
    settings cannot be read; that there is no fleet is told another time, because one of those mistakes may be
    the reason."""
    marked = parse_marked(read_text(path) or "", str(path))
    if alone and not (isinstance(marked, MarkedMapping) and "fleet" in marked.entries):
        return None
    _check_size(marked, path)
    found, problems = parse_fleet_file(marked, str(path))
    if found is not None and (alone or problems):
        _check_types(found, problems)
    _raise_problems(str(path), problems)
    return found


def _check_size(marked: Marked | None, path: Path) -> None:
    """Before each of thousands of entries is looked at."""
    fleet = marked.entries.get("fleet") if isinstance(marked, MarkedMapping) else None
    for key in ("slices", "runs"):
        rows = fleet.entries.get(key) if isinstance(fleet, MarkedMapping) else None
        if isinstance(rows, MarkedMapping) and len(rows.entries) > FLEET_MAX:
            why = f"{path}: fleet.{key} has {len(rows.entries)} entries, more than {FLEET_MAX}"
            raise BadConfigError(why, hint="several files, each with a fleet.name of its own")


def _check_types(file: FleetFile, problems: list[Problem]) -> None:
    for name, request in file.fleet.slices.items():
        if request.accelerator is not None:
            for kind in split_types(request.accelerator):
                named = partial(find_accelerator, load_accelerators(), kind, request.topology)
                _collect(file, problems, ("slices", name), named)
        _collect(file, problems, ("slices", name), partial(resolve_limits, request))


def _raise_problems(path: str, problems: Sequence[Problem]) -> None:
    if problems:
        raise file_error(path, problems)


def _collect(
    file: FleetFile, problems: list[Problem], keys: tuple[str, ...], work: Callable[[], object]
) -> None:
    """Runs a check of the item below `keys`; bad input becomes a problem with its place, all else is raised."""
    try:
        work()
    except TpuctlError as error:
        if error.exit_code != UsageError.exit_code:
            raise
        problems.append(file.problem(error, *keys))


def _resolve_slices(
    services: Services, config: Config, file: FleetFile, problems: list[Problem]
) -> dict[str, WantedSlice]:
    grants = list_grants(services)
    directory = Path(file.path).absolute().parent
    slices: dict[str, WantedSlice] = {}
    for name, request in file.fleet.slices.items():

        def resolve(name: str = name, request: SliceRequest = request) -> None:
            fleet = file.fleet.name
            slices[name] = resolve_wanted(services, config, request, name, directory, grants, fleet)

        _collect(file, problems, ("slices", name), resolve)
    _check_writers(file, slices, problems)
    return slices


def _check_writers(file: FleetFile, slices: Mapping[str, WantedSlice], problems: list[Problem]) -> None:
    """One slice of a file alone writes to a disk."""
    writers: dict[str, str] = {}
    for name, item in slices.items():
        for ref in item.spec.disks:
            first = writers.setdefault(ref.name, name) if ref.mode is DiskMode.READ_WRITE else name
            if first != name:
                why = f"disk {ref.name} is written by slice {first}"
                error = UsageError.of("disk", why, f"a clone of it: tpuctl disk clone {ref.name}")
                problems.append(file.problem(error, "slices", name))


def _resolve_run(
    services: Services,
    config: Config,
    file: FleetFile,
    name: str,
    slices: dict[str, WantedSlice],
    code: dict[str, CodeBundle],
) -> WantedRun:
    request, path = file.fleet.runs[name], Path(file.path)
    directory = path.absolute().parent
    on = slice_of(file.fleet, request) or ""
    hosts = slices[on].spec.hosts if on in slices else None
    frozen = freeze_code(config, request, directory, without=path)
    try:
        environment = frozen_environment(services, config, request, directory, slices.get(on))
    except NotFoundError as error:
        raise UsageError.of("env", error.message, error.hint) from error
    if environment is not None and on in slices:
        check_environment(services, environment, slices[on].spec.accelerator_type)
    request = with_preset(request, environment)
    check_launcher(request, environment)
    check_code(services, request, directory, environment)
    data = find_data(services, config, request)
    spec = resolve_run(request, config, on, hosts, frozen.directory, environment, data)
    check_alone(spec)
    if on in slices:
        check_chips(request, request.var, slices[on].spec)
    code[name] = frozen
    return WantedRun(name, spec, frozen.sha256, environment)


def plan_changes(
    services: Services, loaded: LoadedFleet, how: ApplyRequest
) -> tuple[tuple[FleetChange, ...], dict[str, str]]:
    """The changes, once it is known that they are paid for; and what each new slice costs, by name.

    Reads only. Raises UsageError for a run to repeat that is not in the file.
    """
    names = [run.name for run in loaded.wanted.runs]
    for name in set(how.again) - set(names):
        raise UsageError(
            f"--again {name}: there is no such run in {loaded.file.path}",
            hint=f"one of: {', '.join(names)}" if names else "list it below fleet.runs",
        )
    changes = observe_and_plan(services, loaded.wanted, how)
    new = loaded.slice_changes(changes, Change.CREATE, Change.REPLACE)
    beside: dict[str, SliceSpec] = {}
    costs: dict[str, str] = {}
    problems: list[Problem] = []
    for item in loaded.wanted.slices:
        if item in new:
            price = Price(services, item, beside)
            costs[item.name] = price.line
            _collect(loaded.file, problems, ("slices", item.name), price.check)
        beside[item.name] = item.spec
    _raise_problems(loaded.file.path, problems)
    return changes, costs


def observe_and_plan(services: Services, wanted: WantedFleet, how: ApplyRequest) -> tuple[FleetChange, ...]:
    """What the file changes, as things stand in the store. A run that is in the way is looked at on its hosts:
    it may have ended while nobody looked, which is noted."""

    def plan() -> tuple[FleetChange, ...]:
        return plan_fleet(wanted, list_slices(services), list_runs(services), services.user, how)

    changes = plan()
    in_the_way = [
        c.record for c in changes if c.change is Change.CONFLICT and c.kind is ItemKind.RUN and c.record
    ]
    for run_id in in_the_way:
        with suppress(LeaseHeldError, StaleRecordError):  # whoever has it looks at it
            find_end(services, run_id)
    return plan() if in_the_way else changes


def check_new(services: Services, loaded: LoadedFleet, changes: Sequence[FleetChange]) -> None:
    """What new slices and runs need outside of the file: secrets, buckets for checkpoints, and quotas for all
    new slices together, before any is requested. Raises UsageError, NotFoundError or QuotaError."""
    new = {c.name for c in changes if c.kind is ItemKind.RUN and c.change in {Change.CREATE, Change.REPLACE}}
    problems: list[Problem] = []
    zones = {item.name: item.zones for item in loaded.wanted.slices}
    for run in loaded.wanted.runs:
        if run.name in new:
            check = partial(check_request, services, run.spec, zones.get(run.spec.slice_name, ()))
            _collect(loaded.file, problems, ("runs", run.name), check)
    _raise_problems(loaded.file.path, problems)
    _check_quotas(services, loaded.slice_changes(changes, Change.CREATE))


def _check_quotas(services: Services, new: Sequence[WantedSlice]) -> None:
    """Compares all new slices of a zone together with the quotas; a race with its places."""
    together: dict[tuple[str, bool, Api], list[SliceSpec]] = {}
    for item in new:
        spec = item.spec
        if spec.race:
            check_side_quotas(services, item.name, [[place] for place in item.specs])
        else:
            together.setdefault((spec.zone, spec.external_ips, spec.api), []).append(spec)
    for (zone, _, _), specs in together.items():
        check_side_quotas(services, f"what is new in {zone}", [specs])
