"""The root command: which commands exist, where they live, and the one place where errors become exit codes.

`tpuctl --help` must stay cheap, so commands are listed from `COMMANDS` and their modules are imported when one
is used. Nothing here decides anything about slices or runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tpuctl import __version__
from tpuctl.cli.help import HelpfulCommand
from tpuctl.cli.invocation import Invocation, invocation
from tpuctl.cli.registry import COMMANDS, DAILY, GROUPS, Entry
from tpuctl.cli.starting import end_start
from tpuctl.cli.typer_lazy import spare, spared


class EntryGroup(TyperGroup):
    """A group whose commands are listed without being imported; one is loaded when it is used."""

    _lists = False

    def entries(self) -> Sequence[Entry]:
        """What the registry has of it."""
        return COMMANDS

    def load(self, entry: Entry) -> Any:
        """The command of an entry."""
        return load_command(entry)

    def get_params(self, ctx: Any) -> Any:
        return spared(super().get_params(ctx))

    def list_commands(self, _ctx: Any) -> list[str]:
        return [entry.name for entry in self.entries()]

    def get_command(self, _ctx: Any, cmd_name: str) -> Any:
        entry = next((entry for entry in self.entries() if entry.name == cmd_name), None)
        if entry is None:
            return None
        if self._lists:
            return TyperCommand(cmd_name, help=entry.summary, rich_markup_mode=None)
        if cmd_name not in self.commands:
            self.commands[cmd_name] = self.load(entry)
        return self.commands[cmd_name]

    @contextmanager
    def _listing(self) -> Iterator[None]:
        """Meanwhile commands are nothing but names and summaries."""
        self._lists = True
        try:
            yield
        finally:
            self._lists = False

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with self._listing():
            super().format_commands(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        with self._listing():
            return super().shell_complete(ctx, incomplete)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        from tpuctl.cli.errors import unknown_command

        name, names = args[0], self.list_commands(ctx)
        if not name.startswith("-") and name not in names and not ctx.resilient_parsing:
            raise unknown_command(name, names, group=str(ctx.info_name) if ctx.parent else "")
        found = super().resolve_command(ctx, args)
        if not isinstance(found[1], EntryGroup):
            end_start()
        return found


class RootGroup(EntryGroup):
    """Lists all commands in their groups, and turns errors into exit codes."""

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


class Noun(EntryGroup):
    """A noun with its verbs."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(
            name=entry.name,
            help=entry.help or entry.summary,
            no_args_is_help=not entry.default_verb,
            rich_markup_mode=None,
        )
        self.entry = entry

    def entries(self) -> Sequence[Entry]:
        return self.entry.verbs

    def load(self, entry: Entry) -> Any:
        return load_command(entry._replace(module=entry.module or self.entry.name), label=self.entry.label)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        default, first = self.entry.default_verb, args[0] if args else ""
        named = first in self.list_commands(ctx) or first in ctx.help_option_names
        return super().parse_args(ctx, [default, *args] if default and not named else args)


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


def load_command(entry: Entry, *, label: str = "") -> Any:
    """Imports what is behind an entry and builds the command; a noun has its verbs loaded one by one."""
    if entry.verbs:
        return Noun(entry)
    from tpuctl.cli.request_options import with_requests

    module, function = entry.code
    target = getattr(importlib.import_module(f"tpuctl.cli.commands.{module}"), function)
    single = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    register = single.command(entry.name, cls=command_class(json=entry.json, quiet=entry.quiet))
    register(with_requests(target, label=label))
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
