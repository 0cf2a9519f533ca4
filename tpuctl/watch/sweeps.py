"""What a pass does for sweeps: the next rows begin, and slices that no row needs go."""

from __future__ import annotations

from tpuctl.engine.services import Services
from tpuctl.runs.sweep import advance_sweep, open_sweeps
from tpuctl.watch.heartbeat import PassLine
from tpuctl.watch.pass_lines import guarded, line_of


def advance_sweeps(services: Services) -> list[PassLine]:
    """One turn of each sweep that is not over."""
    lines = []
    for group in open_sweeps(services):

        def work(group: str = group) -> PassLine:
            outcome = advance_sweep(services, group)
            return line_of(f"sweep {group}", outcome, outcome.acted)

        lines.append(guarded(f"sweep {group}", work))
    return lines
