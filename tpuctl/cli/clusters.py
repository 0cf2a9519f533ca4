"""Clusters on the command line: the queues that `tpuctl quota --on gke:CONTEXT` shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.errors import TpuctlError

if TYPE_CHECKING:
    from tpuctl.kube.quota import QueueReport
    from tpuctl.model.records import RunRecord

FLAVORS = (
    Column("cluster_queue", "CLUSTER QUEUE"),
    Column("flavor", "FLAVOR", give=1),
    Column("quota", "CHIPS", right=True),
    Column("used", "USED", right=True),
    Column("free", "FREE", right=True),
    Column("queues_said", "FROM LOCAL QUEUES", give=2),
)
WAITING = (
    Column("position", "WAITS AS", right=True),
    Column("name", "WORKLOAD", give=1),
    Column("queue", "QUEUE"),
    Column("chips", "CHIPS", right=True),
    Column("age", "SINCE", right=True),
    Column("reason", "BECAUSE", give=3),
)


def show_queues(context: AppContext, on: str) -> None:
    """The queues of a cluster: chips by flavour, and who waits why."""
    from tpuctl.kube.client import connect
    from tpuctl.kube.quota import queue_report
    from tpuctl.model.clusters import parse_cluster

    cluster = connect(parse_cluster(on))
    report = queue_report(cluster)
    console, now = context.console, context.clock.now()
    if console.json_mode:
        unread = [{"what": each.what, "why": each.why} for each in report.unread]
        rows = {"queues": _flavors(report), "waiting": _waiting(report, now), "unread": unread}
        console.data({"cluster": str(cluster.place), **rows})
        return
    flavors = [{**row, "queues_said": ", ".join(row["queues"])} for row in _flavors(report)]
    console.table(flavors, FLAVORS, empty=f"no queue of {cluster.place.context} has chips")
    if report.waiting:
        console.line()
        console.table(_ages(_waiting(report, now)), WAITING)
    for row in report.flavors:
        if row.stopped:
            console.warn(f"queue {row.cluster_queue} admits nothing: {row.stopped}")
    for each in report.unread:
        console.caveat(f"not read: {each.what}: {each.why}")


def seen_now(context: AppContext, run: RunRecord) -> RunRecord:
    """A run on a cluster as that shows it now, and any other as it is. Where the cluster cannot be asked, as it
    was seen last, which is said."""
    if run.cluster is None or run.state.final:
        return run
    from tpuctl.kube.reconcile import look_again

    context.emit.show_only(())  # what it wrote is for `tpuctl logs`
    try:
        return look_again(context, run)
    except TpuctlError as error:
        context.console.caveat(f"this is what was recorded last: {error.message}")
        return run
    finally:
        context.emit.show_only(None)


def _flavors(report: QueueReport) -> list[dict[str, Any]]:
    return [
        {
            "cluster_queue": row.cluster_queue,
            "flavor": row.flavor,
            "quota": row.quota,
            "used": row.used,
            "free": row.free,
            "borrowed": row.borrowed,
            "queues": list(row.queues),
            "stopped": row.stopped or None,
        }
        for row in report.flavors
    ]


def _waiting(report: QueueReport, now: float) -> list[dict[str, Any]]:
    return [
        {
            "namespace": row.namespace,
            "name": row.name,
            "queue": row.queue,
            "position": row.position,
            "chips": row.chips,
            "waits_s": None if row.since is None else round(max(0.0, now - row.since)),
            "reason": row.reason,
        }
        for row in report.waiting
    ]


def _ages(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    from tpuctl.lib.time import render_age

    return [{**row, "age": None if row["waits_s"] is None else render_age(row["waits_s"])} for row in rows]
