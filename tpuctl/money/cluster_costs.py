"""What runs on clusters cost by the list. Pure.

Their nodes are in the bill of the cluster's project, whether a run uses them or not; here is what their chips
cost while it does.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from tpuctl.lib.text import counted
from tpuctl.model.accelerators import Catalog
from tpuctl.model.clusters import ClusterRun
from tpuctl.model.prices import chips_per_hour
from tpuctl.model.records import AttemptPhase, RunRecord


class ClusterCost(Struct, frozen=True):
    """What a run has of its cluster now. `usd_per_hour` is None where no price is known."""

    run: str
    cluster: str
    detail: str
    usd_per_hour: float | None


def cluster_price(catalog: Catalog, here: ClusterRun) -> float | None:
    """USD per hour of a run's chips; None where nothing tells the cluster's region, or the table has none."""
    return chips_per_hour(catalog, here.generation, here.chips, here.region, here.tier)


def cluster_costs(catalog: Catalog, runs: Iterable[RunRecord]) -> tuple[ClusterCost, ...]:
    """Of the runs that have pods on a cluster."""
    found = [(run, run.cluster) for run in runs if run.cluster is not None and _has_pods(run)]
    return tuple(
        ClusterCost(
            run.id,
            str(here.place),
            f"{counted(here.chips, 'chip')} of {here.generation}, {here.tier}",
            cluster_price(catalog, here),
        )
        for run, here in sorted(found, key=lambda pair: pair[0].id)
    )


def _has_pods(run: RunRecord) -> bool:
    attempt = run.attempt
    return not run.state.final and attempt is not None and attempt.state is not AttemptPhase.ENDED
