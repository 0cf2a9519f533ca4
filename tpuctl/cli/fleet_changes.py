"""The fleet file as `apply` and `diff` read it: checked, resolved, and what it would change."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct
from msgspec.structs import replace

from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.cli.slice_options import read_script
from tpuctl.cli.slice_request import SliceOffer, settle_slice
from tpuctl.errors import BadConfigError, NotFoundError, TpuctlError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpuctl.config.schema import Problem
    from tpuctl.fleet.file import FleetFile
    from tpuctl.fleet.plan import FleetChange, How, WantedFleet, WantedRun, WantedSlice
    from tpuctl.model.records import SliceSpec
    from tpuctl.slices.options import SliceWish
    from tpuctl.transfer.bundle import CodeBundle


EXIT_CHANGES = 10
"""`diff` and `apply --dry-run` found something to change; see `errors.EXIT_MEANINGS`."""


COLUMNS = (
    Column("item", "ITEM", give=1),
    Column("change", "CHANGE"),
    Column("why", "WHY", give=2),
)


File = Annotated[
    Path | None,
    typer.Option("--file", "-f", metavar="FILE", help="The fleet file; the nearest tpuctl.yaml if left out."),
]


def with_file(changes: Sequence[FleetChange], file: Path | None) -> list[FleetChange]:
    """The changes with hints that can be pasted: of another file than the nearest, they name it."""
    if file is None:
        return list(changes)
    named = f"tpuctl apply -f {shlex.quote(str(file))}"
    return [replace(change, hint=change.hint.replace("tpuctl apply", named)) for change in changes]


class LoadedFleet(Struct, frozen=True):
    """A fleet file, settled against settings and tables. `code` is by run."""

    file: FleetFile
    wanted: WantedFleet
    code: dict[str, CodeBundle]


def load_fleet(context: AppContext, file: Path | None) -> LoadedFleet:
    """The file, checked as far as can be without asking the cloud. Raises one error for all problems."""
    from tpuctl.fleet.plan import WantedFleet

    path = _find(file)
    context.shared.project_file = path
    found = _parse(context, path)
    problems: list[Problem] = []
    code: dict[str, CodeBundle] = {}
    slices = _settle_slices(context, found, problems)
    runs = _settle_runs(context, found, slices, code, problems)
    raise_problems(found.path, problems)
    return LoadedFleet(found, WantedFleet(found.fleet.name, tuple(slices.values()), tuple(runs)), code)


def _find(file: Path | None) -> Path:
    from tpuctl.config.load import find_project_file
    from tpuctl.config.settings import PROJECT_FILE

    path = file or find_project_file(Path.cwd(), Path.home())
    if path is None:
        raise UsageError(f"there is no {PROJECT_FILE} here or above", hint="tpuctl apply -f FILE")
    if not path.is_file():
        raise UsageError(f"there is no file {path}", hint="tpuctl apply -f FILE")
    return path


def _parse(context: AppContext, path: Path) -> FleetFile:
    """The file by itself. Raises BadConfigError with all that is wrong in it, and in all settings."""
    from tpuctl.config.file import joined

    errors = []
    try:
        _ = context.config
    except BadConfigError as error:
        errors.append(error)
    try:
        found = _read_fleet(path, alone=bool(errors))
    except BadConfigError as error:
        errors.append(error)
    if errors:
        raise joined(errors) from errors[0]
    if found is None:
        raise UsageError(f"{path} holds no fleet", hint="fleet: {name: lab, slices: {…}}")
    return found


def _read_fleet(path: Path, *, alone: bool) -> FleetFile | None:
    """The fleet in a file; beside mistakes in it, types are checked here, so that all is told at once. `alone`:
    settings cannot be read; that there is no fleet is told another time, because one of those mistakes may be
    the reason."""
    from tpuctl.config.load import read_text
    from tpuctl.config.yaml_positions import MarkedMapping, parse_marked
    from tpuctl.fleet.file import parse_fleet_file

    marked = parse_marked(read_text(path) or "", str(path))
    if alone and not (isinstance(marked, MarkedMapping) and "fleet" in marked.entries):
        return None
    found, problems = parse_fleet_file(marked, str(path))
    if found is not None and (alone or problems):
        _check_types(found, problems)
    raise_problems(str(path), problems)
    return found


def _check_types(file: FleetFile, problems: list[Problem]) -> None:
    from tpuctl.model.data import load_accelerators
    from tpuctl.slices.options import limits_of
    from tpuctl.slices.resolve import find_accelerator

    for name, wish in file.fleet.slices.items():
        if wish.accelerator is not None:
            named = partial(find_accelerator, load_accelerators(), wish.accelerator, wish.topology)
            collect_problems(file, problems, ("slices", name), named)
        collect_problems(file, problems, ("slices", name), partial(limits_of, wish))


def raise_problems(path: str, problems: Sequence[Problem]) -> None:
    from tpuctl.config.file import file_error

    if problems:
        raise file_error(path, problems)


def collect_problems(
    file: FleetFile, problems: list[Problem], keys: tuple[str, ...], work: Callable[[], object]
) -> None:
    """Runs a check of the item below `keys`; bad input becomes a problem with its place, all else is raised."""
    try:
        work()
    except TpuctlError as error:
        if error.exit_code != UsageError.exit_code:
            raise
        problems.append(file.problem(error, *keys))


def _settle_slices(context: AppContext, file: FleetFile, problems: list[Problem]) -> dict[str, WantedSlice]:
    from tpuctl.fleet.plan import WantedSlice
    from tpuctl.money.coverage import list_grants
    from tpuctl.slices.options import limits_of

    grants = list_grants(context)
    slices: dict[str, WantedSlice] = {}
    for name, wish in file.fleet.slices.items():

        def settle(name: str = name, wish: SliceWish = wish) -> None:
            script = read_script(wish, Path(file.path).absolute().parent)
            choice = settle_slice(context, wish, grants, script)
            slices[name] = WantedSlice(name, choice.spec, choice.zones, wish.pay, script, limits_of(wish))

        collect_problems(file, problems, ("slices", name), settle)
    return slices


def _settle_runs(
    context: AppContext,
    file: FleetFile,
    slices: dict[str, WantedSlice],
    code: dict[str, CodeBundle],
    problems: list[Problem],
) -> list[WantedRun]:
    runs: list[WantedRun] = []
    for name in file.fleet.runs:

        def settle(name: str = name) -> None:
            runs.append(_settle_run(context, file, name, slices, code))

        collect_problems(file, problems, ("runs", name), settle)
    return runs


def _settle_run(
    context: AppContext,
    file: FleetFile,
    name: str,
    slices: dict[str, WantedSlice],
    code: dict[str, CodeBundle],
) -> WantedRun:
    from tpuctl.cli.run_code import environment_of, freeze_code
    from tpuctl.fleet.file import slice_of
    from tpuctl.fleet.plan import WantedRun
    from tpuctl.runs.submit import build_request, check_alone

    wish, path = file.fleet.runs[name], Path(file.path)
    on = slice_of(file.fleet, wish) or ""
    hosts = slices[on].spec.hosts if on in slices else None
    frozen = freeze_code(context, path.absolute().parent, wish, without=path)
    try:
        environment = environment_of(context, wish, path.absolute().parent)
    except NotFoundError as error:
        raise UsageError(error.message, hint=error.hint, details={"key": "env"}) from error
    request = build_request(wish, context.config, on, hosts, frozen.directory, environment)
    check_alone(request)
    code[name] = frozen
    return WantedRun(name, request, frozen.sha256)


def runs_to_repeat(loaded: LoadedFleet, again: list[str] | None) -> frozenset[str]:
    names = [run.name for run in loaded.wanted.runs]
    for name in again or []:
        if name not in names:
            raise UsageError(
                f"--again {name}: there is no such run in {loaded.file.path}",
                hint=f"one of: {', '.join(names)}" if names else "list it below fleet.runs",
            )
    return frozenset(again or [])


def plan_changes(
    context: AppContext, loaded: LoadedFleet, how: How
) -> tuple[tuple[FleetChange, ...], dict[str, str]]:
    """The changes, once it is known that they are paid for; and what each new slice costs, by name."""
    from tpuctl.fleet.apply import observe_and_plan
    from tpuctl.fleet.plan import Change, Kind

    changes = observe_and_plan(context, loaded.wanted, how)
    new = {c.name for c in changes if c.kind is Kind.SLICE and c.change in {Change.CREATE, Change.REPLACE}}
    beside: dict[str, SliceSpec] = {}
    costs: dict[str, str] = {}
    problems: list[Problem] = []
    for item in loaded.wanted.slices:
        if item.name in new:
            offer = offer_slice(context, item, beside)
            costs[item.name] = offer.line
            collect_problems(loaded.file, problems, ("slices", item.name), offer.check)
        beside[item.name] = item.spec
    raise_problems(loaded.file.path, problems)
    return changes, costs


def offer_slice(
    context: AppContext, item: WantedSlice, beside: dict[str, SliceSpec] | None = None
) -> SliceOffer:
    from tpuctl.slices.resolve import SliceChoice

    choice = SliceChoice(item.spec, item.zones)
    return SliceOffer(context, item.name, choice, pay=item.pay, script=item.script, beside=beside)


def show_changes(context: AppContext, changes: Sequence[FleetChange], costs: Mapping[str, str]) -> None:
    """What would change and what it costs, as a table, or everything as JSON. Exits with 10 if there is
    something."""
    from tpuctl.fleet.plan import SETTLED, Change, Kind

    shown = [c for c in changes if c.change is not Change.NONE or context.console.json_mode]
    rows = [
        {**change_row(change), "cost": costs.get(change.name) if change.kind is Kind.SLICE else None}
        for change in shown
    ]
    context.console.table(rows, COLUMNS, empty="nothing to change")
    for line in costs.values():
        context.console.say(line)
    for change in shown:
        if change.hint:
            context.console.say(f"{change.subject}: {change.hint}")
    if any(change.change not in SETTLED for change in changes):
        raise typer.Exit(EXIT_CHANGES)


def change_row(change: FleetChange) -> dict[str, object]:
    return {
        "item": change.subject,
        "kind": str(change.kind),
        "name": change.name,
        "change": str(change.change),
        "why": change.why,
        "differs": list(change.differs),
        "hint": change.hint or None,
        "run": change.record or None,
    }
