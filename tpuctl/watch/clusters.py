"""Passes look at runs on clusters: they write down attempts, ends and output, and change nothing there.

What JobSet keeps up needs no watchdog; but JobSets are removed some days after their end, and pods before that.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from tpuctl.engine.services import Services
from tpuctl.model.records import RunRecord
from tpuctl.watch.heartbeat import PassLine, PassResult
from tpuctl.watch.pass_lines import guarded


def look_at_clusters(services: Services, runs: Iterable[RunRecord]) -> list[PassLine]:
    """A line for each of these runs, as a look at its cluster shows it."""
    return [guarded(run.id, partial(_look, services, run)) for run in runs if run.cluster is not None]


def _look(services: Services, run: RunRecord) -> PassLine:
    from tpuctl.kube.reconcile import look_again

    seen = look_again(services, run)
    acted = seen.state is not run.state
    if seen.state.final:
        return PassLine(run.id, PassResult.DONE, seen.reason, acted)
    return PassLine(run.id, PassResult.WAITING, seen.reason or str(seen.state), acted)
