"""A bucket mounted on all hosts of a slice by the real gcsfuse: 32 hosts beside two, and asked for again."""

from __future__ import annotations

from statistics import median

import pytest

from tests.bench.harness import Budget, Contender, Line, Plan, Report, Sample, execute, unmeasured
from tests.support.require import require_gcsfuse, require_isolated_hosts
from tests.support.session import TPUCTL, Session, open_session

TITLE = "A bucket mounted"
WIDE, FEW = ("v4-256", 32), ("v4-16", 2)
SLOW_S = 1.0
PATH = "/mnt/data"


def measure(plan: Plan) -> list[Report]:
    """Needs gcsfuse, and isolated hosts, which take root."""
    wide, few = ("v4-32", 4) if plan.quick else WIDE, FEW
    setting = f"isolated hosts with gcsfuse in place; each read of the bucket takes {SLOW_S:.0f} s"
    try:
        require_isolated_hosts()
        program = require_gcsfuse()
    except pytest.skip.Exception as why:
        return [unmeasured(TITLE, setting, str(why), plan)]
    with open_session("--instant", "--hosts", "isolated") as session:
        session.environ["TPUCTL_GCSFUSE"] = program
        for name, (accelerator, _) in (("wide", wide), ("few", few)):
            spec = f"gs://sim-bucket/first:/mnt/first-{name}"
            words = ("--spot", "--pay", "--zone", "us-central2-b", "--mount", spec)
            session.type("up", accelerator, name, *words, within_s=600)
        session.type("sim", "fault", "storage-slow-reads", "--set", f"seconds={SLOW_S}")
        found: dict[str, list[Sample]] = {}
        for _ in range(max(1, plan.rounds // 2)):
            for name, (_, hosts) in (("few", few), ("wide", wide)):
                found.setdefault(f"tpuctl mount add, {hosts} hosts", []).append(_add(session, name))
                found.setdefault(f"the same again, {hosts} hosts", []).append(_add(session, name))
                session.type("mount", "rm", PATH, "--on", name)
    rows = tuple(
        Line(name, median(each.wall_s for each in samples), median(each.cpu_s for each in samples))
        for name, samples in found.items()
    )
    wall = {row.name: row.wall_s for row in rows}
    ratio = wall[f"tpuctl mount add, {wide[1]} hosts"] / wall[f"tpuctl mount add, {few[1]} hosts"]
    budget = Budget(f"wall on {wide[1]} hosts, of that on {few[1]}", ratio, 4.0)
    return [Report(TITLE, setting, rows[0].name, rows, (budget,))]


def _add(session: Session, name: str) -> Sample:
    words = [TPUCTL, "mount", "add", f"gs://sim-bucket/data:{PATH}:checkpoint", "--on", name]
    return execute(Contender(name, ["env", "-C", str(session.work), *words], session.environ))
