"""`apply`, `diff`: the fleet file."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli.capacity import read_script
from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext, open_context
from tpuctl.cli.options import DryRun, Json, Quiet, Timeout, Yes
from tpuctl.cli.slice import SliceOffer, confirm, settle_slice
from tpuctl.errors import BadConfigError, NotFoundError, TpuctlError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpuctl.code_bundle import CodeBundle
    from tpuctl.core.fleet_file import FleetFile
    from tpuctl.core.plan_fleet import FleetChange, How, WantedFleet, WantedRun, WantedSlice
    from tpuctl.core.records import SliceSpec
    from tpuctl.core.shape import Problem
    from tpuctl.core.wishes import SliceWish

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


def apply(
    ctx: typer.Context,
    file: File = None,
    replace_: Annotated[
        bool, typer.Option("--replace", help="Take down and ask anew for what is there in another form.")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove what came from this file and is no longer in it.")
    ] = False,
    again: Annotated[
        list[str] | None,
        typer.Option("--again", metavar="RUN", help="Repeat this run though it has ended; repeatable."),
    ] = None,
    all_users: Annotated[
        bool, typer.Option("--all-users", help="Also change, --replace and --prune other users' slices.")
    ] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Ask for everything and return at once.")] = False,
    timeout: Timeout = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,  # noqa: ARG001 - acts through its callback
    quiet: Quiet = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Create and change what the fleet file describes.

    Requests slices, submits runs, and waits until they are there. The same file again changes nothing. What
    is there in another form is a conflict, and then nothing is applied. A run that has ended is not repeated.
    """
    from tpuctl.core.plan_fleet import How

    with open_context(ctx) as context:
        loaded = _load(context, file)
        how = How(replace=replace_, prune=prune, all_users=all_users, again=_known(loaded, again))
        planned, costs = _plan(context, loaded, how)
        changes = _with_file(planned, file)
        if dry_run:
            _show(context, changes, costs)
            return
        _carry_out(context, loaded, changes, yes=yes, wait=not no_wait, timeout=timeout)


def diff(
    ctx: typer.Context,
    file: File = None,
    json: Json = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Show what `apply` would change, and why.

    Exits with 10 if there is something, with 0 if not.
    """
    from tpuctl.core.plan_fleet import How

    with open_context(ctx) as context:
        planned, costs = _plan(context, _load(context, file), How())
        _show(context, _with_file(planned, file), costs)


def _with_file(changes: Sequence[FleetChange], file: Path | None) -> list[FleetChange]:
    """The changes with hints that can be pasted: of another file than the nearest, they name it."""
    if file is None:
        return list(changes)
    named = f"tpuctl apply -f {shlex.quote(str(file))}"
    return [replace(change, hint=change.hint.replace("tpuctl apply", named)) for change in changes]


@dataclass(frozen=True)
class _Loaded:
    """A fleet file, settled against settings and tables. `code` is by run."""

    file: FleetFile
    wanted: WantedFleet
    code: dict[str, CodeBundle]


def _load(context: AppContext, file: Path | None) -> _Loaded:
    """The file, checked as far as can be without asking the cloud. Raises one error for all problems."""
    from tpuctl.core.plan_fleet import WantedFleet

    path = _find(file)
    context.shared.project_file = path
    found = _parse(context, path)
    problems: list[Problem] = []
    code: dict[str, CodeBundle] = {}
    slices = _settle_slices(context, found, problems)
    runs = _settle_runs(context, found, slices, code, problems)
    _raise(found.path, problems)
    return _Loaded(found, WantedFleet(found.fleet.name, tuple(slices.values()), tuple(runs)), code)


def _find(file: Path | None) -> Path:
    from tpuctl.config import find_project_file
    from tpuctl.core.settings import PROJECT_FILE

    path = file or find_project_file(Path.cwd(), Path.home())
    if path is None:
        raise UsageError(f"there is no {PROJECT_FILE} here or above", hint="tpuctl apply -f FILE")
    if not path.is_file():
        raise UsageError(f"there is no file {path}", hint="tpuctl apply -f FILE")
    return path


def _parse(context: AppContext, path: Path) -> FleetFile:
    """The file by itself. Raises BadConfigError with all that is wrong in it, and in all settings."""
    from tpuctl.core.config_file import joined

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
    """The fleet in a file. `alone`: settings cannot be read; what needs none is checked here, and that there is
    no fleet is told another time, because one of those mistakes may be the reason."""
    from tpuctl.config import read_text
    from tpuctl.core.fleet_file import parse_fleet_file
    from tpuctl.core.marked import MarkedMapping, parse_marked

    marked = parse_marked(read_text(path) or "", str(path))
    if alone and not (isinstance(marked, MarkedMapping) and "fleet" in marked.entries):
        return None
    found, problems = parse_fleet_file(marked, str(path))
    if found is not None and alone:
        _check_types(found, problems)
    _raise(str(path), problems)
    return found


def _check_types(file: FleetFile, problems: list[Problem]) -> None:
    from tpuctl.core.acquisition import find_accelerator
    from tpuctl.core.wishes import limits_of
    from tpuctl.resources import load_accelerators

    for name, wish in file.fleet.slices.items():
        if wish.accelerator is not None:
            named = partial(find_accelerator, load_accelerators(), wish.accelerator, wish.topology)
            _collect(file, problems, ("slices", name), named)
        _collect(file, problems, ("slices", name), partial(limits_of, wish))


def _raise(path: str, problems: Sequence[Problem]) -> None:
    from tpuctl.core.config_file import file_error

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


def _settle_slices(context: AppContext, file: FleetFile, problems: list[Problem]) -> dict[str, WantedSlice]:
    from tpuctl.core.plan_fleet import WantedSlice
    from tpuctl.core.wishes import limits_of
    from tpuctl.workflows.payment import list_grants

    grants = list_grants(context)
    slices: dict[str, WantedSlice] = {}
    for name, wish in file.fleet.slices.items():

        def settle(name: str = name, wish: SliceWish = wish) -> None:
            script = read_script(wish, Path(file.path).absolute().parent)
            choice = settle_slice(context, wish, grants, script)
            slices[name] = WantedSlice(name, choice.spec, choice.zones, wish.pay, script, limits_of(wish))

        _collect(file, problems, ("slices", name), settle)
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

        _collect(file, problems, ("runs", name), settle)
    return runs


def _settle_run(
    context: AppContext,
    file: FleetFile,
    name: str,
    slices: dict[str, WantedSlice],
    code: dict[str, CodeBundle],
) -> WantedRun:
    from tpuctl.cli.run import environment_of, freeze_code
    from tpuctl.core.fleet_file import slice_of
    from tpuctl.core.plan_fleet import WantedRun
    from tpuctl.workflows.submit import build_request, check_alone

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


def _known(loaded: _Loaded, again: list[str] | None) -> frozenset[str]:
    names = [run.name for run in loaded.wanted.runs]
    for name in again or []:
        if name not in names:
            raise UsageError(
                f"--again {name}: there is no such run in {loaded.file.path}",
                hint=f"one of: {', '.join(names)}" if names else "list it below fleet.runs",
            )
    return frozenset(again or [])


def _plan(context: AppContext, loaded: _Loaded, how: How) -> tuple[tuple[FleetChange, ...], dict[str, str]]:
    """The changes, once it is known that they are paid for; and what each new slice costs, by name."""
    from tpuctl.core.plan_fleet import Change, Kind
    from tpuctl.workflows.apply import observe_and_plan

    changes = observe_and_plan(context, loaded.wanted, how)
    new = {c.name for c in changes if c.kind is Kind.SLICE and c.change in {Change.CREATE, Change.REPLACE}}
    beside: dict[str, SliceSpec] = {}
    costs: dict[str, str] = {}
    problems: list[Problem] = []
    for item in loaded.wanted.slices:
        if item.name in new:
            offer = _offer(context, item, beside)
            costs[item.name] = offer.line
            _collect(loaded.file, problems, ("slices", item.name), offer.check)
        beside[item.name] = item.spec
    _raise(loaded.file.path, problems)
    return changes, costs


def _offer(context: AppContext, item: WantedSlice, beside: dict[str, SliceSpec] | None = None) -> SliceOffer:
    from tpuctl.core.acquisition import SliceChoice

    choice = SliceChoice(item.spec, item.zones)
    return SliceOffer(context, item.name, choice, pay=item.pay, script=item.script, beside=beside)


def _check_quotas(context: AppContext, loaded: _Loaded, changes: Sequence[FleetChange]) -> None:
    """Compares all new slices of a zone with the side quotas before any is asked for. Raises QuotaError."""
    from tpuctl.core.plan_fleet import Change, Kind
    from tpuctl.workflows.quotas import check_side_quotas

    new = {c.name for c in changes if c.kind is Kind.SLICE and c.change is Change.CREATE}
    together: dict[tuple[str, bool], SliceSpec] = {}
    for item in loaded.wanted.slices:
        place = (item.spec.zone, item.spec.external_ips)
        if item.name in new and place in together:
            sum_ = together[place]
            hosts, slices = sum_.hosts + item.spec.hosts, sum_.slices + item.spec.slices
            together[place] = replace(sum_, hosts=hosts, slices=slices)
        elif item.name in new:
            together[place] = item.spec
    for (zone, _), spec in together.items():
        check_side_quotas(context, f"what is new in {zone}", [spec])


def _show(context: AppContext, changes: Sequence[FleetChange], costs: Mapping[str, str]) -> None:
    """What would change and what it costs, as a table, or everything as JSON. Exits with 10 if there is
    something."""
    from tpuctl.core.plan_fleet import SETTLED, Change, Kind

    shown = [c for c in changes if c.change is not Change.NONE or context.console.json_mode]
    rows = [
        {**_row(change), "cost": costs.get(change.name) if change.kind is Kind.SLICE else None}
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


def _row(change: FleetChange) -> dict[str, object]:
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


def _carry_out(
    context: AppContext,
    loaded: _Loaded,
    changes: Sequence[FleetChange],
    *,
    yes: bool,
    wait: bool,
    timeout: float | None,
) -> None:
    from tpuctl.cli.follow import warn_if_unwatched
    from tpuctl.cli.run import frozen_code
    from tpuctl.core.plan_fleet import DESTRUCTIVE, Change
    from tpuctl.workflows.apply import Order, apply_fleet, refuse_conflicts

    def permit(item: WantedSlice) -> None:
        offer = _offer(context, item)
        offer.check()
        offer.accept()

    refuse_conflicts(changes)
    _check_runs(context, loaded, changes)
    _check_quotas(context, loaded, changes)
    _ = context.credentials
    for change in changes:
        if change.change is not Change.NONE or change.hint:
            context.console.say(f"{change.subject}: {change.change} ({change.why})")
    destroyed = [f"{c.change} {c.subject}" for c in changes if c.change in DESTRUCTIVE]
    if destroyed:
        confirm(context, f"{', '.join(destroyed)}, and lose everything on the hosts?", yes=yes)
    context.shared.if_interrupted = (
        "what was asked for stands and may cost money: `tpuctl apply` goes on, `tpuctl ls` shows it"
    )
    order = Order(loaded.wanted, {name: frozen_code(code) for name, code in loaded.code.items()}, permit)
    deadline = None if timeout is None else context.clock.now() + timeout
    context.emit.show_only(())  # what runs wrote is for `tpuctl logs`
    apply_fleet(context, order, changes, wait=wait, deadline=deadline)
    context.emit.close()
    if loaded.wanted.slices or loaded.wanted.runs:
        warn_if_unwatched(context, f"fleet {loaded.wanted.name}", detached=True)
    _conclude(context, loaded, changes, wait=wait)


def _check_runs(context: AppContext, loaded: _Loaded, changes: Sequence[FleetChange]) -> None:
    """What a new run needs outside of the file: secrets, and the bucket for its checkpoints."""
    from tpuctl.core.plan_fleet import Change, Kind
    from tpuctl.workflows.submit import check_request

    new = {c.name for c in changes if c.kind is Kind.RUN and c.change in {Change.CREATE, Change.REPLACE}}
    problems: list[Problem] = []
    zones = {each.name: each.zones or (each.spec.zone,) for each in loaded.wanted.slices}
    for run in loaded.wanted.runs:
        if run.name in new:

            def check(run: WantedRun = run) -> None:
                check_request(context, run.request, zones.get(run.request.slice_name, ()))

            _collect(loaded.file, problems, ("runs", run.name), check)
    _raise(loaded.file.path, problems)


def _conclude(context: AppContext, loaded: _Loaded, changes: Sequence[FleetChange], *, wait: bool) -> None:
    if context.console.json_mode:
        context.console.data({"fleet": loaded.wanted.name, "changes": [_row(change) for change in changes]})
        return
    slices, runs = len(loaded.wanted.slices), len(loaded.wanted.runs)
    counted = f"{slices} slice{'s' * (slices != 1)}, {runs} run{'s' * (runs != 1)}"
    state = "is as the file says" if wait else "is on its way; `tpuctl watch once` keeps it going"
    context.console.say(f"fleet {loaded.wanted.name} {state}: {counted}")
