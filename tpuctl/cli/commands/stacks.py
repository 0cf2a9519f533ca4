"""`tpuctl stacks`: what the processes of a run are doing."""

from __future__ import annotations

from tpuctl.cli.context import AppContext
from tpuctl.cli.options import RunId
from tpuctl.cli.workers import choose_of_run
from tpuctl.errors import PartialError
from tpuctl.model.clusters import refuse_on_cluster
from tpuctl.model.requests import Workers


def stacks(context: AppContext, run_id: RunId = "last", worker: Workers = None) -> None:
    """Show what the processes of a run do, and whom they wait for.

    By py-spy where hosts have it; else Python's own faulthandler; else what the kernel tells. With it what
    their chips execute, where libtpu tells that.
    """
    from tpuctl.runs.stacks import describe_ended, describe_silent, find_evidence, render_cores, render_stacks
    from tpuctl.state.repository import get_run

    record = get_run(context, run_id).record
    refuse_on_cluster(record.id, record.cluster, "stacks")
    evidence = find_evidence(context, record.id, choose_of_run(record, worker))
    found, cause = evidence.stacks, evidence.cause
    if context.console.json_mode:
        context.console.data(evidence.rows())
    else:
        for each in found:
            told = render_stacks(each) + render_cores(each.worker, evidence.cores, ())
            for line in told.splitlines():
                context.console.line(f"{record.slice_name}-{each.worker} │ {line}")
        for line in (*describe_silent(evidence.silent), *describe_ended(found, record.id)):
            context.console.say(line)
        if cause is not None:
            context.console.say(f"at this moment {cause.said}")
    silent = [each for each in found if each.error]
    if silent:
        names = ", ".join(str(each.worker) for each in silent)
        raise PartialError(
            f"worker {names} did not say what runs there: {silent[0].error}",
            hint=f"tpuctl status {record.id}",
            details={"workers": [each.worker for each in silent]},
        )
