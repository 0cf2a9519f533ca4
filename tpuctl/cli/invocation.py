"""What one command line said to all commands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import typer


class Invocation:
    """What one command line said to all commands.

    A plain class: help is shown without the import of msgspec.
    """

    profile: str | None = None
    project: str | None = None
    project_file: Path | None = None
    """The fleet file that was named instead of the nearest tpuctl.yaml."""
    internal_ip: bool = False
    verbosity: int = 0
    quiet: bool = False
    json: bool = False
    gcloud_first: str = ""
    """What a shell needs before commands of gcloud in hints reach the cloud of this profile."""
    start_server: str = ""
    """The command that starts the server of this profile, see `Config`."""
    unattended: bool = False
    """A pass: see `render.Renderer`."""

    def __init__(self, arguments: Sequence[str] = ()) -> None:
        self.arguments = list(arguments)

    def split(self, words: Sequence[str]) -> tuple[list[str], list[str]]:
        """The words before and behind the first `--` of the command line: Typer drops it without a trace."""
        if "--" not in self.arguments:
            return list(words), []
        behind = self.arguments[self.arguments.index("--") + 1 :]
        return list(words[: len(words) - len(behind)]), behind

    @property
    def typed(self) -> str:
        """The command line as it was typed, for hints that say to type it again."""
        return shlex.join(["tpuctl", *self.arguments])


def invocation(ctx: typer.Context) -> Invocation:
    """The one object that a command line shares."""
    return ctx.find_root().ensure_object(Invocation)
