"""`tpuctl report`: one page about a run, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpuctl.cli.completion import run_ids
from tpuctl.cli.context import open_context
from tpuctl.cli.options import Json
from tpuctl.errors import TpuctlError, UsageError

OURS = b'<meta name="generator" content="tpuctl '
HEAD_BYTES = 4096


def report(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="[RUN]",
            help="Id of the run, or a file with a manifest; the newest run if left out.",
            autocompletion=run_ids,
        ),
    ] = "last",
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to; RUN.html here if left out."),
    ] = None,
    json: Json = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Write a page about a run: what happened, what it cost.

    One HTML file without scripts, which asks nothing of any server: timeline, phases and cost as pictures,
    hosts, the failure with what to do, the ends of its logs as far as they are on this machine, and its
    manifest. It can be made while the run goes on.
    """
    from tpuctl.lib.files import write_private
    from tpuctl.views.report import make_report

    with open_context(ctx) as context:
        made = make_report(context, source)
        path = Path(output or f"{made.run_id}.html")
        _check_target(path)
        content = made.html.encode("utf-8", "replace")
        try:
            write_private(path, content, mode=0o644)
        except OSError as error:
            raise TpuctlError(f"{path} cannot be written: {error.strerror}", hint="-o FILE") from error
        if context.console.json_mode:
            context.console.data({"run": made.run_id, "file": str(path), "bytes": len(content)})
        else:
            context.console.sentence(f"wrote {path}: open it in a browser")


def _check_target(path: Path) -> None:
    """A page of an earlier time is replaced, nothing else. Raises UsageError."""
    if path.is_dir():
        raise UsageError(f"{path} is a directory", hint=f"-o {path / 'report.html'}")
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="-o FILE") from error
    if head and OURS not in head:
        raise UsageError(f"{path} is there and is no report", hint="-o another file")
