"""The root command: which commands exist, where they live, and the one place where errors become exit codes.

`tpuctl --help` must stay cheap, so commands are listed from `COMMANDS` and their modules are imported when one
is used. Nothing here decides anything about slices or runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar

import typer
from typer.core import TyperGroup

from tpuctl import __version__
from tpuctl.cli.help import HelpfulCommand
from tpuctl.cli.invocation import Invocation, invocation
from tpuctl.cli.starting import end_start
from tpuctl.cli.typer_lazy import spare, spared


class Entry(NamedTuple):
    """One command: `cli/commands/NAME.py` has a function of its name, or what `target` says, function or Typer;
    `summary` is its line in the root help, and it has the options --json and --quiet where that is said."""

    name: str
    summary: str
    target: str = ""
    json: bool = False
    quiet: bool = False

    @property
    def module(self) -> str:
        return self.name.replace("-", "_")


DAILY = "Every day"
GROUPS: Mapping[str, tuple[Entry, ...]] = {
    DAILY: (
        Entry("up", "Bring a slice up and wait until every host answers.", json=True, quiet=True),
        Entry("run", "Run a script, module or command on every worker.", json=True, quiet=True),
        Entry("ls", "List the slices and all other TPUs of the project.", json=True),
        Entry("status", "Show one slice or run in full.", json=True),
        Entry("logs", "Print the output of a run.", json=True),
        Entry("exec", "Run one command on the workers of a slice.", target="exec_", json=True),
        Entry("ssh", "Open a shell on one worker."),
        Entry("cp", "Copy files to and from the workers of a slice."),
        Entry("dev", "Develop on a slice: your files, a program and ports follow you.", quiet=True),
        Entry("down", "Delete slices, and wait until nothing is left in the cloud.", json=True, quiet=True),
    ),
    "Runs": (
        Entry("runs", "List runs, newest first, or show one.", json=True),
        Entry("attach", "Follow a run that was started earlier.", json=True, quiet=True),
        Entry("stop", "Stop a run.", json=True, quiet=True),
        Entry("stacks", "Show what the processes of a run are doing.", json=True),
        Entry(
            "trace", "Trace a run on all its hosts at once, for xprof and TensorBoard.", json=True, quiet=True
        ),
        Entry("ui", "Show slices, runs, costs and capacity in a browser."),
        Entry("metrics", "Show the numbers that the program of a run printed.", json=True),
        Entry("top", "Show what the chips and hosts of a slice or run do.", json=True),
        Entry("collect", "Bring dumps, logs and the state of hosts home, in one file.", json=True, quiet=True),
        Entry("env", "Pin the packages of runs, the same on every host.", target="app"),
        Entry("manifest", "Show, compare, verify what a run ran, where, with which versions.", target="app"),
        Entry("report", "Write a page about a run: what happened, what it cost.", json=True),
        Entry("rerun", "Do a run again, from its manifest.", json=True, quiet=True),
        Entry("export", "Write a run as a JobSet for a cluster of GKE.", json=True, quiet=True),
        Entry("keep", "Keep the logs and disks of a run."),
    ),
    "Before a run": (
        Entry("lint", "Find what a program does that TPUs punish.", json=True),
        Entry("fits", "Compile a training step for slices, and say which it fits.", json=True, quiet=True),
        Entry("check", "Check the weights of a model or checkpoint.", target="app"),
    ),
    "Slices": (
        Entry("why", "Show the decisions about a slice or run, and their reasons.", json=True),
        Entry("smoke", "Test every chip of a slice.", json=True, quiet=True),
        Entry("disk", "Develop on a disk, clone it, train on all hosts.", target="app"),
        Entry("mount", "Mount buckets as folders on every worker.", target="app"),
        Entry("data", "Bring data into buckets, and write receipts of it.", target="app"),
        Entry("forward", "Forward a local port to a worker."),
        Entry("ssh-config", "Print ssh config entries for the workers of a slice."),
        Entry("adopt", "Take over a TPU that was created without tpuctl.", json=True, quiet=True),
        Entry("reap", "Delete TPUs of yours that no slice uses any more.", json=True, quiet=True),
    ),
    "Keep it up": (
        Entry("watch", "Let a watchdog restore slices and runs.", target="app"),
        Entry("pause", "Pause all watchdogs of this fleet."),
        Entry("resume", "End a pause of the watchdogs."),
        Entry("apply", "Create and change what the fleet file describes.", json=True, quiet=True),
        Entry("diff", "Show what `apply` would change, and why.", json=True),
    ),
    "Capacity and money": (
        Entry("types", "List accelerator types: chips, hosts, zones, prices.", json=True),
        Entry("capacity", "Show where there was capacity, how soon and for how long.", json=True),
        Entry("quota", "Show quotas, who uses them, grants, and the cost per hour.", json=True, quiet=True),
        Entry("grant", "Record what you may use without --pay.", target="app"),
        Entry("bill", "List everything in the project that can cost money.", json=True),
    ),
    "Set up and try": (
        Entry("doctor", "Check the set-up, and print the fix of each problem.", json=True),
        Entry("config", "Show settings and where each came from; share the store.", target="app"),
        Entry("store", "Clean up the store, and manage its machines.", target="app"),
        Entry("sim", "Start and control the simulated cloud.", target="app"),
        Entry("demo", "Show a training run that survives a preemption."),
    ),
}
"""Every command, in the order in which people come to need them."""
COMMANDS: tuple[Entry, ...] = tuple(entry for group in GROUPS.values() for entry in group)


class RootGroup(TyperGroup):
    """Lists commands from `COMMANDS`, loads one when it is used, and turns errors into exit codes."""

    def get_params(self, ctx: Any) -> Any:
        return spared(super().get_params(ctx))

    def list_commands(self, _ctx: Any) -> list[str]:
        return [entry.name for entry in COMMANDS]

    def get_command(self, _ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            entry = next((entry for entry in COMMANDS if entry.name == cmd_name), None)
            if entry is None:
                return None
            self.commands[cmd_name] = load_command(entry)
        return self.commands[cmd_name]

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        width = max(len(entry.name) for entry in COMMANDS)
        for title, entries in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(entry.name.ljust(width), entry.summary) for entry in entries])

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Commands first: they are what people look for."""
        self.format_commands(ctx, formatter)
        with formatter.section("Options, before the command"):
            records = [param.get_help_record(ctx) for param in self.get_params(ctx)]
            formatter.write_dl([record for record in records if record is not None])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.obj = Invocation(arguments=list(args))
        if not args and not ctx.resilient_parsing:
            typer.echo(_first_help())
            raise typer.Exit(0)
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        from tpuctl.cli.errors import check_arguments, guarded

        def parse() -> list[str]:
            check_arguments(ctx.obj)
            return super(RootGroup, self).parse_args(ctx, args)

        return guarded(ctx.obj, parse)

    def invoke(self, ctx: Any) -> Any:
        from tpuctl.cli.errors import guarded

        return guarded(ctx.obj, lambda: super(RootGroup, self).invoke(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        from tpuctl.cli.errors import unknown_command

        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            raise unknown_command(name, [entry.name for entry in COMMANDS])
        found = super().resolve_command(ctx, args)
        end_start()
        return found


class SubGroup(TyperGroup):
    """A noun with verbs; an unknown verb gets a suggestion."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        from tpuctl.cli.errors import unknown_command

        name = args[0]
        if not name.startswith("-") and name not in self.commands and not ctx.resilient_parsing:
            raise unknown_command(name, list(self.commands), group=str(ctx.info_name))
        return super().resolve_command(ctx, args)


class ShowGroup(SubGroup):
    """A noun whose verb `show` may be left out: `manifest RUN` is `manifest show RUN`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = args[0] if args else ""
        named = first in self.commands or first in ctx.help_option_names
        return super().parse_args(ctx, args if named else ["show", *args])


Verb = TypeVar("Verb", bound=Callable[..., Any])


class Noun(typer.Typer):
    """A group whose verbs have the same help as other commands."""

    label = ""

    def command(  # type: ignore[override]
        self, name: str, *, json: bool = False, quiet: bool = False
    ) -> Callable[[Verb], Verb]:
        from tpuctl.cli.request_options import with_requests

        made = super().command(name, cls=command_class(json=json, quiet=quiet))

        def register(verb: Verb) -> Verb:
            made(with_requests(verb, label=self.label))
            return verb

        return register


def _first_help() -> str:
    """What `tpuctl` alone prints: enough to begin with, on one screen."""
    rows = [f"  {entry.name:<8}{entry.summary}" for entry in GROUPS[DAILY]]
    return "\n".join((FIRST_HELP, *rows, "", MORE_HELP))


FIRST_HELP = """\
Bring Cloud TPU slices up, keep them up through preemptions, and run training
on every worker.

  tpuctl demo               see it all on a simulated cloud, without an account
  tpuctl doctor             find what is missing to use your project
  tpuctl up v4-32 --spot    bring a slice up
"""
MORE_HELP = "`tpuctl --help` shows all commands, `tpuctl up --help` one of them."


def new_group(help_text: str, cls: type[SubGroup] = SubGroup, *, label: str = "") -> Noun:
    """A noun for other modules to hang their verbs on; `label` marks what those print that need no profile."""
    noun = Noun(
        cls=cls,
        help=help_text,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        no_args_is_help=cls is SubGroup,
    )
    noun.label = label
    noun.callback()(lambda: None)  # else a noun with one verb would be a command
    return noun


@cache
def command_class(*, json: bool, quiet: bool) -> type[HelpfulCommand]:
    """The class of commands that have these of the options that go to no function."""
    names = [name for name, chosen in (("json", json), ("quiet", quiet)) if chosen]

    class Command(HelpfulCommand):
        def __init__(self, *, params: list[Any], **values: Any) -> None:
            super().__init__(params=[*params, *(_printing_options()[name] for name in names)], **values)

    return Command


@cache
def _printing_options() -> Mapping[str, Any]:
    from tpuctl.cli.options import json_and_quiet

    made = typer.Typer(add_completion=False)
    made.command()(json_and_quiet)
    params = {param.name: param for param in typer.main.get_command(made).params}
    for param in params.values():
        param.expose_value = False
    return params


def load_command(entry: Entry) -> Any:
    """Imports the command's module and builds the command."""
    module = importlib.import_module(f"tpuctl.cli.commands.{entry.module}")
    target = getattr(module, entry.target or entry.module)
    if isinstance(target, typer.Typer):
        return spare(typer.main.get_command(target))
    single = Noun(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    single.command(entry.name, json=entry.json, quiet=entry.quiet)(target)
    return spare(typer.main.get_command(single))


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"tpuctl {__version__}")
        raise typer.Exit(0)


app = typer.Typer(
    name="tpuctl",
    cls=RootGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


@app.callback()
def root(
    ctx: typer.Context,
    profile: Annotated[
        str | None, typer.Option(metavar="NAME", help="Use this profile (`sim` is the simulated cloud).")
    ] = None,
    project: Annotated[str | None, typer.Option(metavar="ID", help="Google Cloud project.")] = None,
    internal_ip: Annotated[
        bool, typer.Option("--internal-ip", help="Reach hosts at their internal addresses.")
    ] = False,
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, show_default=False, help="Print more (-vv: all).")
    ] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors only.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print results and errors as JSON.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Bring Cloud TPU slices up, keep them up through preemptions, and run training on every worker."""
    del version  # it acts through its callback
    shared = invocation(ctx)
    shared.profile, shared.project, shared.internal_ip = profile, project, internal_ip
    shared.verbosity, shared.quiet = verbose, quiet
    shared.json = shared.json or json
