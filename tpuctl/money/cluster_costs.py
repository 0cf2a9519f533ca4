"""What runs on clusters cost by the list. Pure.

Their nodes are in the bill of the cluster's project, whether a run uses them or not; here is what their chips
cost while it does.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from tpuctl.lib.text import counted
from tpuctl.lib.time import render_time
from tpuctl.model.accelerators import Catalog
from tpuctl.model.attempts import Attempt, AttemptPhase
from tpuctl.model.clusters import ClusterRun
from tpuctl.model.prices import chips_per_hour
from tpuctl.model.records import RunRecord


class ClusterCost(Struct, frozen=True):
    """What a run has of its cluster, as its last change that was seen left it. `usd_per_hour` is None where no
    price is known."""

    run: str
    cluster: str
    detail: str
    usd_per_hour: float | None
    changed: str | None


def cluster_price(catalog: Catalog, here: ClusterRun) -> float | None:
    """USD per hour of a run's chips; None where nothing tells the cluster's region, or the table has none."""
    return chips_per_hour(catalog, here.generation, here.chips, here.region, here.tier)


def cluster_costs(catalog: Catalog, runs: Iterable[RunRecord]) -> tuple[ClusterCost, ...]:
    """Of the runs that hold chips of a cluster."""
    return tuple(
        ClusterCost(
            run.id,
            str(run.cluster.place),
            f"{counted(run.cluster.chips, 'chip')} of {run.cluster.generation or '-'}, {run.cluster.tier}",
            cluster_price(catalog, run.cluster),
            render_time(max((entry.at for entry in attempt.timeline), default=attempt.created_at)),
        )
        for run in sorted(runs, key=lambda each: each.id)
        if run.cluster is not None and (attempt := _holding_attempt(run)) is not None
    )


def _holding_attempt(run: RunRecord) -> Attempt | None:
    """The attempt for which a run holds chips, as it does once a pod is on a node, or Kueue admitted it."""
    attempt = run.attempt
    open_ = attempt is not None and attempt.state is not AttemptPhase.ENDED and not run.state.final
    return attempt if open_ and attempt is not None and attempt.provisioned_at is not None else None
