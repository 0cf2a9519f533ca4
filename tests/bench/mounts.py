"""A bucket mounted on all hosts of a slice by the real gcsfuse: 32 hosts beside two, and asked for again.

Once with a bucket that answers at once, where 32 hosts on this machine's few cores cost CPU and nothing else,
and once with one that takes its time: all hosts are to wait for it together, not one after the other.
"""

from __future__ import annotations

from statistics import median

import pytest

from tests.bench.harness import Budget, Contender, Line, Plan, Report, Sample, execute, unmeasured
from tests.support.require import require_gcsfuse, require_isolated_hosts
from tests.support.session import TPUCTL, Session, open_session

TITLE, TITLE_SLOW = "A bucket mounted", "A bucket mounted that answers slowly"
WIDE, FEW = ("v4-256", 32), ("v4-16", 2)
SLOW_S = 10.0
PATH = "/mnt/data"
SETTING = "isolated hosts with gcsfuse in place"
AT_ONCE = f"{SETTING}; a bucket without delays: what is left is the CPU of hosts that share this machine"
SLOWLY = f"{SETTING}; each read of the bucket takes {SLOW_S:.0f} s, for a host as for the command"


def measure(plan: Plan) -> list[Report]:
    """Needs gcsfuse, and isolated hosts, which take root."""
    wide, few = ("v4-32", 4) if plan.quick else WIDE, FEW
    try:
        require_isolated_hosts()
        program = require_gcsfuse()
    except pytest.skip.Exception as why:
        return [unmeasured(TITLE, AT_ONCE, str(why), plan), unmeasured(TITLE_SLOW, SLOWLY, str(why), plan)]
    names = {"few": few[1], "wide": wide[1]}
    with open_session("--instant", "--hosts", "isolated") as session:
        session.environ["TPUCTL_GCSFUSE"] = program
        for name, (accelerator, _) in (("wide", wide), ("few", few)):
            spec = f"gs://sim-bucket/first:/mnt/first-{name}"
            words = ("--spot", "--pay", "--zone", "us-central2-b", "--mount", spec)
            session.type("up", accelerator, name, *words, within_s=600)
        rounds = max(1, plan.rounds // 2)
        at_once = _rounds(session, names, rounds, again=True)
        session.type("sim", "fault", "storage-slow-reads", "--set", f"seconds={SLOW_S}")
        slowly = _rounds(session, names, 1, again=False)
    further_s = (at_once["wide"].cpu_s - at_once["few"].cpu_s) / (wide[1] - few[1])
    cost = Budget("CPU of the command per further host", 1000 * further_s, 60.0, unit="ms")
    ratio = slowly["wide"].wall_s / slowly["few"].wall_s
    added = {name: slowly[name].wall_s - at_once[name].wall_s for name in names}
    waiting = added["wide"] / added["few"]
    together = (
        Budget(f"wall on {wide[1]} hosts, of that on {few[1]}", ratio, 1.5),
        Budget(f"what the delay adds on {wide[1]} hosts, of that on {few[1]}", waiting, 1.5),
    )
    return [
        Report(TITLE, AT_ONCE, at_once["few"].name, tuple(at_once.values()), (cost,)),
        Report(TITLE_SLOW, SLOWLY, slowly["few"].name, tuple(slowly.values()), together),
    ]


def _rounds(session: Session, names: dict[str, int], rounds: int, *, again: bool) -> dict[str, Line]:
    """Medians by slice, and by slice and `again`."""
    found: dict[str, list[Sample]] = {}
    for _ in range(rounds):
        for name in names:
            found.setdefault(name, []).append(_add(session, name))
            if again:
                found.setdefault(f"{name} again", []).append(_add(session, name))
            session.type("mount", "rm", PATH, "--on", name, within_s=300)
    return {name: _line(name, names, samples) for name, samples in found.items()}


def _line(name: str, names: dict[str, int], samples: list[Sample]) -> Line:
    slice_, _, again = name.partition(" ")
    what = "the same again" if again else "tpuctl mount add"
    walls, cpus = [each.wall_s for each in samples], [each.cpu_s for each in samples]
    return Line(f"{what}, {names[slice_]} hosts", median(walls), median(cpus))


def _add(session: Session, name: str) -> Sample:
    words = [TPUCTL, "mount", "add", f"gs://sim-bucket/data:{PATH}:checkpoint", "--on", name]
    return execute(Contender(name, ["env", "-C", str(session.work), *words], session.environ))
