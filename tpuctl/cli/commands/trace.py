"""`tpuctl trace`: a profile of a run, of all its hosts at once."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tpuctl.cli.context import AppContext
from tpuctl.cli.options import RunId
from tpuctl.cli.workers import choose_of_run
from tpuctl.errors import NotFoundError, PartialError, TpuctlError
from tpuctl.lib.options import Flag, Option
from tpuctl.lib.text import counted, fold_label, sized
from tpuctl.model.clusters import refuse_on_cluster
from tpuctl.model.requests import Workers

if TYPE_CHECKING:
    from tpuctl.model.records import RunRecord
    from tpuctl.runs.trace_plan import WorkerTrace

VIEWERS = ("xprof", "tensorboard")


def trace(
    context: AppContext,
    run_id: RunId = "last",
    worker: Workers = None,
    seconds: Annotated[float, Option("For how long.", metavar="SECONDS", minimum=0.1, maximum=600.0)] = 5.0,
    to: Annotated[
        str | None, Option("Log directory for the viewer; traces/RUN if left out.", metavar="DIR")
    ] = None,
    open_: Annotated[bool, Option("Then start xprof or TensorBoard.", flags=(Flag("--open"),))] = False,
    max_size: Annotated[
        int, Option("What one host may send; it needs that much room.", metavar="MIB", minimum=1)
    ] = 1024,
    port: Annotated[
        int | None,
        Option("Use the program's profiler server there.", metavar="PORT", minimum=1, maximum=65535),
    ] = None,
    python: Annotated[bool, Option("Also trace Python functions, which slows the program down.")] = False,
) -> None:
    """Trace a run for some seconds, at the same moment on its hosts.

    Programs need not be prepared: JAX and PyTorch/XLA are asked to trace themselves. The traces of all hosts
    become one session, as xprof and TensorBoard open it.
    """
    from tpuctl.hosts.agent import HostAgent
    from tpuctl.runs.trace import TraceRequest, trace_run
    from tpuctl.runs.trace_plan import with_unfetched
    from tpuctl.state.repository import get_run
    from tpuctl.workers.copy_from import fetch_traces, session_folder

    record = get_run(context, run_id).record
    refuse_on_cluster(record.id, record.cluster, "trace")
    viewer = _find_viewer() if open_ else VIEWERS[0]
    directory = Path(to) if to is not None else Path("traces") / record.id
    request = TraceRequest(seconds, choose_of_run(record, worker), port, python, max_size << 20)
    files: Sequence[Path] = ()
    with (
        context.interruptible("hosts stop by themselves and keep nothing; the same again takes a new trace"),
        trace_run(context, record.id, request) as tracing,
    ):
        rows = tracing.rows()
        place = session_folder(directory, tracing.session)
        if targets := tracing.targets(rows):
            agent = HostAgent(context.remote, context.agent_source)
            emit = tracing.keeping(context.emit)
            results, files = fetch_traces(agent, targets, tracing.path, place, clock=context.clock, emit=emit)
            rows = with_unfetched(rows, results)
    command = [viewer, "--logdir", str(directory)]
    _tell(context, record, rows, place, files, command)
    if open_:
        context.close()
        os.execvp(command[0], command)  # noqa: S606 - a list, no shell; our process becomes the viewer


def _find_viewer() -> str:
    found = next((name for name in VIEWERS if shutil.which(name)), None)
    if found is None:
        raise NotFoundError(
            "neither xprof nor tensorboard is installed here", hint="pip install xprof, or leave --open out"
        )
    return found


def _tell(
    context: AppContext,
    run: RunRecord,
    rows: Sequence[WorkerTrace],
    place: Path,
    files: Sequence[Path],
    command: Sequence[str],
) -> None:
    """What there is, and why not more. Raises PartialError where some workers have no trace, and TpuctlError
    where none has."""
    from tpuctl.lib.codec import to_data
    from tpuctl.runs.trace_plan import group_troubles, spread_of

    spread, good = spread_of(rows), [row for row in rows if row.size_bytes]
    said: dict[str, Any] = {
        "directory": command[-1],
        "session": place.name,
        "files": [str(path) for path in files],
        "spread_seconds": spread,
        "workers": [to_data(row) for row in rows],
        "open": shlex.join(command),
    }
    troubles = [
        f"{fold_label(run.slice_name, workers)}: {why}" for why, workers in group_troubles(rows).items()
    ]
    if good:
        apart = f", begun within {spread * 1000:.0f} ms" if spread is not None else ""
        size = sized(sum(row.size_bytes for row in good))
        whose = f"{len(good)} of {counted(len(rows), 'worker')}"
        context.console.say(f"{whose} traced{apart}: {size} in {place}")
        context.console.say(f"open it: {shlex.join(command)} (pip install xprof)")
    if len(good) == len(rows):
        for each in troubles:
            context.console.caveat(each)
        if context.console.json_mode:
            context.console.data(said)
        return
    kind = PartialError if good else TpuctlError
    raise kind("; ".join(troubles[:4]), hint=f"tpuctl status {run.id}", details=said)
