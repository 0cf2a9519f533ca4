"""`tpuctl smoke`: a short test of every chip of a slice."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tpuctl.cli.context import open_context
from tpuctl.cli.following import goes_on
from tpuctl.cli.invocation import invocation
from tpuctl.cli.options import DryRun, Json, Quiet
from tpuctl.errors import PartialError

LIMIT_S = 120.0


def smoke(
    ctx: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The slice, if you have several.")
    ] = None,
    env: Annotated[
        str | None, typer.Option("--env", metavar="NAME", help="The environment; else that of the slice.")
    ] = None,
    limit: Annotated[
        float, typer.Option("--limit", metavar="SECONDS", min=1, help="Stop what takes longer.")
    ] = LIMIT_S,
    dry_run: DryRun = False,
    json: Json = False,  # noqa: ARG001 - acts through its callback
    quiet: Quiet = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Test every chip of a slice.

    A run of JAX on all workers: a matrix product on each device, and one collective over all processes. Names
    the workers that are missing, slow, short of devices, or on the CPU. It waits for a slice that is busy.
    """
    from tpuctl.cli.console import Column
    from tpuctl.lib.names import check_run_id
    from tpuctl.lib.text import counted
    from tpuctl.runs.smoke import SmokeReport, judge_smoke
    from tpuctl.runs.smoke_run import prepare_smoke, run_smoke
    from tpuctl.slices.choose import resolve_slice

    shared = invocation(ctx)
    with open_context(ctx) as context:
        target = resolve_slice(context, name)
        test = prepare_smoke(context, context.config, target, env, Path.cwd())
        run_id = check_run_id(f"smoke-{context.ids.new_id()}")
        if dry_run:
            workers = counted(target.spec.hosts, "worker")
            context.console.sentence(f"would test {workers} of {target.name} on {test.backend}")
            return
        shared.if_interrupted = goes_on(run_id)
        context.emit.show_only(())  # reports are for the table
        ended, reports = run_smoke(context, test, run_id, limit)
        context.emit.close()
        found = judge_smoke(reports, backend=test.backend, devices=test.devices)
        rows: list[dict[str, Any]] = []
        for worker, report in sorted(reports.items()):
            wrong = "; ".join(each.what for each in found if each.worker == worker)
            known = report if isinstance(report, SmokeReport) else None
            rows.append(
                {
                    "worker": worker,
                    "backend": known.backend if known else None,
                    "devices": known.devices if known else None,
                    "matmul_s": known.matmul_s if known else None,
                    "collective_s": known.collective_s if known else None,
                    "finding": wrong or "ok",
                }
            )
        if found:
            sick = sorted({each.worker for each in found})
            silent = not any(reports.values())  # it never got so far that a worker wrote something
            first = ended.reason if silent else f"worker {found[0].worker} {found[0].what}"
            raise PartialError(
                f"{len(sick)} of {counted(len(reports), 'worker')} of {target.name} failed: {first}",
                hint=f"tpuctl logs {run_id}",
                details={"workers": rows},
            )
        columns = (
            Column("worker", "WORKER", right=True),
            Column("backend", "BACKEND"),
            Column("devices", "DEVICES", right=True),
            Column("matmul_s", "MATMUL S", right=True),
            Column("collective_s", "COLLECTIVE S", right=True),
            Column("finding", "FINDING", give=1),
        )
        context.console.table(rows, columns)
