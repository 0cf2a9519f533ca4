"""Options that several commands share: one definition, one help text."""

from __future__ import annotations

from typing import Annotated

import typer

from tpuctl.cli.completion import slice_names
from tpuctl.cli.invocation import invocation
from tpuctl.lib.options import Flag, Option, argument


def _set(ctx: typer.Context, option: typer.CallbackParam, value: bool) -> bool:
    if value:
        setattr(invocation(ctx), str(option.name), True)
    return value


def json_and_quiet(
    json: Annotated[
        bool,
        typer.Option("--json", callback=_set, is_eager=True, help="Print the result, or the error, as JSON."),
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", callback=_set, is_eager=True, help="Print results and errors only."),
    ] = False,
) -> None:
    """Options that say how a command prints. The registry says which command has them; they go to its
    `Invocation` and to no function."""


MountPoint = Annotated[str, argument("PATH", "Where it is mounted.")]
DryRun = Annotated[bool, Option("Print what would be done and why; change nothing.")]
Overwrite = Annotated[bool, Option("Replace a file that is there, whatever it is.")]
Force = Annotated[bool, Option("Delete even where hosts cannot save what they wrote on disks and mounts.")]
Yes = Annotated[bool, Option("Do not ask.", short="-y")]
SliceOrRun = Annotated[
    str | None,
    argument("[NAME]", "The slice or run; optional if you have just one slice.", complete=slice_names),
]
OnSlice = Annotated[str | None, Option("The slice; optional if you have just one.", metavar="NAME")]
RunId = Annotated[str, argument("[RUN]", "Id of the run; the newest if left out.")]
AllUsers = Annotated[bool, Option("Also what other users made; asks you to type the project id.")]
Confirm = Annotated[
    str | None,
    Option(
        "Project id for --all-users where there is no terminal.", flags=(Flag("--confirm"),), metavar="PROJECT"
    ),
]


def _seconds(word: str) -> float:
    """Of `5m`, or of a plain number, which is seconds already. Raises UsageError."""
    from tpuctl.lib.time import LONGEST_S, parse_duration

    plain = word.replace(".", "", 1)
    if plain.isascii() and plain.isdigit() and float(word) <= LONGEST_S:
        return float(word)
    return parse_duration(f"{word}s" if plain.isdigit() else word, "--timeout")


Timeout = Annotated[
    float | None, Option("Give up after this long: 90s, 5m, 1h30m.", metavar="TIME", parse=_seconds)
]
