"""`tpuctl run --on gke:CONTEXT`: a run that JobSet starts and keeps up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tpuctl.cli.context import AppContext
from tpuctl.cli.following import follow_or_leave

if TYPE_CHECKING:
    from tpuctl.model.records import RunRecord
    from tpuctl.model.requests import ClusterRequest, LaunchRequest
    from tpuctl.model.run_spec import RunRequest
    from tpuctl.model.slice_spec import SliceRequest


def run_on_cluster(
    context: AppContext,
    request: RunRequest,
    launch: LaunchRequest,
    capacity: SliceRequest,
    cluster: ClusterRequest,
    *,
    timeout: float | None,
    dry_run: bool,
) -> None:
    """Has the cluster check the run, writes it down, applies it, and follows it or leaves it."""
    from tpuctl.kube.client import connect
    from tpuctl.kube.jobset import documents
    from tpuctl.kube.prepare import preparing, publish
    from tpuctl.kube.render import head_of, render_yaml
    from tpuctl.kube.source import source_of_script
    from tpuctl.kube.submit import check_cluster, check_launch, cluster_fingerprint, submit_to_cluster
    from tpuctl.kube.target import resolve_target
    from tpuctl.model.clusters import parse_cluster
    from tpuctl.runs.reconcile import check_new_id, choose_run_id, find_same
    from tpuctl.state.repository import active_runs

    check_launch(launch, request, cluster)
    there = connect(parse_cluster(str(request.on)))
    run_id = choose_run_id(context, launch.name)
    wanted, plain = capacity.of(launch.up), replace(request, on=None)
    target = resolve_target(context, wanted, cluster, run_id, there.namespace)
    source = source_of_script(context, context.config, plain, target, run_id, Path.cwd())
    digest, named = cluster_fingerprint(source, there.place, cluster, wanted), launch.name is not None
    record = find_same(active_runs(context, str(there.place)), run_id, digest, named=named)
    if record is None:
        check_new_id(context, run_id, again=False)
    if record is None or dry_run:
        with preparing(context, source, target, cluster) as prepared:
            region = check_cluster(context, there, prepared.job) if record is None else ""
            if dry_run:
                text = render_yaml(documents(prepared.job), head_of(prepared.job, "FILE"))
                context.console.line(text.rstrip("\n"))
                return
            publish(context, prepared)
            record = submit_to_cluster(context, there.place, source, prepared, digest, region, named=named)
    context.console.say(f"run {record.id} on {record.slice_name}{_cost(record)}")
    follow_or_leave(context, record, detach=launch.detach, timeout=timeout)


def _cost(record: RunRecord) -> str:
    """What its chips cost, as the line about a slice says it."""
    from tpuctl.model.shipped_files import load_accelerators
    from tpuctl.money.cluster_costs import cluster_price

    price = cluster_price(load_accelerators(), record.cluster) if record.cluster is not None else None
    return "" if price is None else f": about ${price:.2f} per hour"
