"""`tpuctl report`: one page about a run, as a file."""

from __future__ import annotations

from typing import Annotated

from tpuctl.cli.context import AppContext
from tpuctl.cli.options import Overwrite
from tpuctl.lib.options import Flag, Option, argument
from tpuctl.transfer.own_output import REPORT_MARK


def report(
    context: AppContext,
    source: Annotated[
        str, argument("[RUN]", "Id of the run, or a file with a manifest; the newest run if left out.")
    ] = "last",
    output: Annotated[
        str | None,
        Option(
            "Where to; RUN.html here if left out.",
            flags=(Flag("--output"), Flag("--to")),
            short="-o",
            metavar="FILE",
        ),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a page about a run: what happened, what it cost.

    One HTML file without scripts, which asks nothing of any server: timeline, phases and cost as pictures,
    hosts, the failure with what to do, the ends of its logs as far as they are on this machine, and its
    manifest. It can be made while the run goes on. An earlier page is replaced, any other file with
    --overwrite alone.
    """
    from tpuctl.lib.output_files import check_output, write_output_text
    from tpuctl.views.report import make_report

    made = make_report(context, source)
    path = check_output(
        output or f"{made.run_id}.html", "-o", kind="report", ours=_is_report, overwrite=overwrite
    )
    write_output_text(path, "-o", made.html)
    facts = {"run": made.run_id, "file": str(path), "bytes": path.stat().st_size}
    context.console.sentence(f"wrote {path}: open it in a browser", facts)


def _is_report(head: bytes) -> bool:
    return REPORT_MARK in head
