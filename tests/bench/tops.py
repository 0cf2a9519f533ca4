"""What a look at all chips and hosts of a slice costs, beside one command on all of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import BinaryIO

from tests.bench.gcloud import must
from tests.bench.harness import Budget, Contender, Line, Plan, Report, compare, lines, scratch
from tests.bench.startup import TPUCTL, sim_environment
from tpuctl.sim.server import control
from tpuctl.sim.server.options import SimOptions

OURS, BARE = "tpuctl top --once", "tpuctl exec -- cat /proc/stat"
ONE, MANY = "one look", "eleven looks"
REFRESH = "one more look (a refresh)"
LOOKS = 11


def measure(plan: Plan) -> list[Report]:
    accelerator, hosts = ("v4-32", 4) if plan.quick else ("v4-256", 32)
    with scratch() as folder:
        info = control.up(folder / "sim", SimOptions(delays="instant"))
        try:
            ours = sim_environment(folder)
            must([TPUCTL, "up", accelerator, "big", "--spot", "--pay"], ours, folder)
            [node] = [each["name"].rsplit("/", 1)[-1] for each in control.state(info)["nodes"]]
            control.act(info, "load", node, fields={"duty": "90"})
            contenders = _contenders(ours, hosts)
            compare(contenders[:2], 1)  # host keys and the agent are put in place once
            found = compare(contenders, plan.rounds)
        finally:
            control.down(folder / "sim")
    more = {name: getattr(found[MANY], name) - getattr(found[ONE], name) for name in ("wall_s", "cpu_s")}
    refresh = Line(REFRESH, *(each / (LOOKS - 1) for each in more.values()), note="of the ten more")
    return [
        Report(
            title=f"A look at {hosts} hosts with {4 * hosts} chips",
            setting="simulated slice with process hosts; rates are measured over half a second of each look",
            baseline=BARE,
            lines=(*lines(contenders, found), refresh),
            budgets=(
                Budget("CPU of `top --once`, of the exec's", found[OURS].cpu_s / found[BARE].cpu_s, 4.0),
                Budget("CPU of a refresh, of the exec's", refresh.cpu_s / found[BARE].cpu_s, 1.0),
            ),
        )
    ]


def _contenders(env: dict[str, str], hosts: int) -> list[Contender]:
    def has_stat(out: BinaryIO) -> bool:
        return 1 <= out.read().count(b"procs_running") <= hosts  # lines that are alike are shown once

    def has_chips(out: BinaryIO) -> bool:
        return [len(each["chips"]) for each in json.load(out)["workers"]] == [4] * hosts

    def looks(name: str, count: int) -> Contender:
        words = [sys.executable, "-m", "tests.bench.clients.looks", "big", str(count)]
        in_here = {**env, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        return Contender(name, words, in_here, lambda out: out.read().split() == [b"%d" % (4 * hosts)] * count)

    return [
        Contender(BARE, [TPUCTL, "exec", "big", "--", "cat", "/proc/stat"], env, has_stat),
        Contender(OURS, [TPUCTL, "top", "big", "--once", "--json"], env, has_chips),
        looks(ONE, 1),
        looks(MANY, LOOKS),
    ]
