"""`tpuctl collect`: all that hosts and this machine have of a run, in one file."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

from tpuctl.cli.context import AppContext
from tpuctl.cli.options import Overwrite, RunId
from tpuctl.errors import InterruptedByUserError, PartialError, UsageError
from tpuctl.lib.options import Flag, Option
from tpuctl.lib.text import counted, fold_workers, sized
from tpuctl.model.clusters import refuse_on_cluster
from tpuctl.model.requests import Workers

if TYPE_CHECKING:
    from pathlib import Path

    from tpuctl.collect.index import Index


def collect(
    context: AppContext,
    run_id: RunId = "last",
    output: Annotated[
        str | None,
        Option(
            "Where to; RUN-collected.tar here if left out.",
            flags=(Flag("--output"), Flag("--to")),
            short="-o",
            metavar="FILE",
        ),
    ] = None,
    worker: Workers = None,
    limit: Annotated[str, Option("How much at most.", metavar="SIZE")] = "2GiB",
    overwrite: Overwrite = False,
) -> None:
    """Bring dumps, logs and the state of hosts home, in one file.

    A tar with an index, INDEX.md, that says what is in it, what is missing and why, and how the run stands.
    Values of secrets are masked. It can be made while the run goes on, and after its end as long as the hosts
    live; of hosts that are gone it has what is on this machine. An earlier collection is replaced, any other
    file with --overwrite.
    """
    from tpuctl.cli.errors import follows_ctrl_c
    from tpuctl.collect.collect import begins_collection, collecting, parse_limit
    from tpuctl.lib.output_files import check_output
    from tpuctl.lib.text import parse_workers
    from tpuctl.state.repository import get_run

    run = get_run(context, run_id).record
    refuse_on_cluster(run.id, run.cluster, "collect")
    known = run.attempt.workers if run.attempt else ()
    try:
        chosen = None if worker is None else parse_workers(worker, max(known, default=0) + 1)
    except ValueError as error:
        raise UsageError(f"--worker: {error}", hint=f"tpuctl status {run.slice_name}") from error
    limit_bytes = parse_limit(limit)
    name = output or f"{run.id}-collected.tar"
    path = check_output(name, "-o", kind="collection", ours=begins_collection, overwrite=overwrite)
    stopped: BaseException | None = None
    with collecting(context, run, path, chosen, limit_bytes) as collection:
        try:
            collection.gather()
        except BaseException as error:
            if not follows_ctrl_c(error):
                raise
            stopped = error
            collection.stop()
        index = collection.write(path, "-o")
    if stopped is not None:
        again = shlex.join(["tpuctl", "collect", run.id, *(["-o", output] if output else [])])
        raise InterruptedByUserError(
            f"interrupted: what came until then is in {path}", hint=f"collect the rest: {again}"
        ) from stopped
    _say(context, index, path)


def _say(context: AppContext, index: Index, path: Path) -> None:
    from tpuctl.collect.gather import WHOLE
    from tpuctl.collect.index import INDEX_NAME, describe_cut, fold_items, render_data

    if context.console.json_mode:
        context.console.data({"file": str(path), "bytes": path.stat().st_size, **render_data(index)})
    else:
        size = f"{counted(sum(item.files for item in index.items), 'file')}, {sized(path.stat().st_size)}"
        context.console.sentence(f"wrote {path}: {size}")
        context.console.say(f"what is in it, and what is missing: `tar -xOf {path} {INDEX_NAME}`")
        for name, item in fold_items(index.items):
            if item.cut_files:
                context.console.caveat(f"{name} is{describe_cut(item)}")
    silent = [each for each in index.missing if each.what == WHOLE and each.worker is not None]
    if silent:
        workers = fold_workers([each.worker for each in silent if each.worker is not None])
        raise PartialError(
            f"worker {workers} did not answer, and {path} has nothing of it: {silent[0].why}",
            hint=f"tpuctl status {index.slice}",
            details={"workers": [each.worker for each in silent], "file": str(path)},
        )
