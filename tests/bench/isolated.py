"""How long isolated hosts of the simulator take to come up, and to go."""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import replace
from statistics import median

from tests.bench.harness import Budget, Line, Plan, Report, scratch, unmeasured
from tpuctl.errors import UsageError
from tpuctl.sim.hosts.backend import HostSpec
from tpuctl.sim.hosts.isolated.backend import IsolatedHosts
from tpuctl.sim.hosts.isolated.requirements import check_possible

SIZES = (32, 64)
WALL_LIMITS_S = (10.0, 20.0)
NODE = "bench/1"


def measure(plan: Plan) -> list[Report]:
    """Up: from the request until every sshd shows its banner. Down: until no process, link or file is left."""
    report = Report("Isolated hosts", "made and removed by one process, namespaces and sshd each", "", ())
    try:
        check_possible()
    except UsageError as error:
        return [unmeasured(report.title, report.setting, error.message, plan)]
    rows, budgets = [], []
    for size, limit_s in zip(SIZES, WALL_LIMITS_S, strict=True):
        count = plan.hosts(size)
        rounds = [_boot(count) for _ in range(plan.rounds)]
        for index, what in enumerate(("up", "down")):
            wall_s, cpu_s = (median(each[index][kind] for each in rounds) for kind in (0, 1))
            rows.append(Line(f"{count} hosts {what}", wall_s, cpu_s))
            if what == "up":
                budgets.append(Budget(f"{count} hosts up", wall_s, limit_s, unit="s"))
    return [replace(report, baseline=rows[0].name, lines=tuple(rows), budgets=tuple(budgets))]


def _boot(count: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """(wall, CPU) of the way up and of the way down. CPU without that of the hosts, which live on."""
    with scratch() as folder:
        marks = [_now()]
        hosts = IsolatedHosts(folder, world_id=f"bench-{os.getpid()}")
        try:
            hosts.create([HostSpec(NODE, worker, f"host-{worker}", dict, dict) for worker in range(count)])
            marks.append(_now())
        finally:
            hosts.close()
        marks.append(_now())
    up, down = ((later[0] - former[0], later[1] - former[1]) for former, later in itertools.pairwise(marks))
    return up, down


def _now() -> tuple[float, float]:
    used = os.times()
    return time.monotonic(), used.user + used.system + used.children_user + used.children_system
