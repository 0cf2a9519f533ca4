"""Questions before something is lost."""

from __future__ import annotations

import typer

from tpuctl.cli.context import AppContext
from tpuctl.errors import InterruptedByUserError, UsageError

_ANSWERS = {"y": True, "yes": True, "n": False, "no": False, "": False}


def _answer(question: str) -> str:
    return str(typer.prompt(question, default="", show_default=False, err=True)).strip().lower()


def confirm(context: AppContext, question: str, *, yes: bool) -> None:
    """Asks on a terminal; without one, refuses unless --yes was given."""
    if yes:
        return
    if context.console.json_mode or not context.console.interactive:
        raise UsageError(f"no terminal to ask on: {question}", hint="add --yes")
    while (said := _answer(f"{context.console.mark}{question} [y/N]")) not in _ANSWERS:
        typer.echo(f"error: {said!r} is no answer: type y or n (usage)", err=True)
    if not _ANSWERS[said]:
        raise InterruptedByUserError("declined; nothing was changed")


def confirm_all_users(context: AppContext, typed: str | None) -> None:
    """Other people's work is at stake: the project id is typed, or given with --confirm. Raises UsageError."""
    project = context.config.require_project()
    if typed is None:
        if context.console.json_mode or not context.console.interactive:
            raise UsageError(
                f"--all-users acts on the TPUs of all users in {project}: confirm it with the project id",
                hint=f"--all-users --confirm {project}",
            )
        question = f"{context.console.mark}this acts on other people's TPUs; type the project id to go on"
        typed = str(typer.prompt(question, err=True))
    if typed.strip() != project:
        raise UsageError(f"{typed!r} is not this project; nothing was changed", hint="tpuctl config show")
