"""`python -m tests.bench`: measures, prints, and writes docs/develop/benchmarks.md after a full run."""

from __future__ import annotations

import argparse
import compileall
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

import tpuctl
from tests.bench import (
    cold,
    compiles,
    copying,
    datasets,
    developing,
    disks,
    environments,
    gcloud,
    holds,
    isolated,
    linting,
    log_collection,
    metrics,
    mounts,
    pages,
    passes,
    recovery,
    startup,
    streaming,
    tops,
    years,
)
from tests.bench.harness import Measurement, Plan, Report
from tests.bench.report import PAGE, render_page, render_text

MEASUREMENTS: Mapping[str, Measurement] = {
    "interpreter": startup.measure_interpreter,
    "startup": startup.measure,
    "disk": startup.measure_disk,
    "cold": cold.measure,
    "sshd": cold.measure_sshd,
    "gcloud": gcloud.measure,
    "streaming": streaming.measure,
    "logs": log_collection.measure,
    "metrics": metrics.measure,
    "compiles": compiles.measure,
    "copying": copying.measure,
    "developing": developing.measure,
    "datasets": datasets.measure,
    "linting": linting.measure,
    "passes": passes.measure,
    "blind": passes.measure_blind,
    "ui": pages.measure,
    "years": years.measure,
    "top": tops.measure,
    "recovery": recovery.measure,
    "environments": environments.measure,
    "disks": disks.measure,
    "holds": holds.measure,
    "mounts": mounts.measure,
    "isolated": isolated.measure,
}


def run(names: Sequence[str], plan: Plan) -> list[Report]:
    """Measures and prints one report after the other."""
    reports = []
    for name in names:
        for report in MEASUREMENTS[name](plan):
            print(render_text(report), flush=True)
            reports.append(report)
    return reports


def compile_tpuctl() -> None:
    """As pip does with what it installs. A checkout may have no compiled modules, and where
    PYTHONDONTWRITEBYTECODE is set never gets any: then all of tpuctl would be compiled at every start."""
    for folder in (Path(tpuctl.__file__).parent, sysconfig.get_path("purelib")):
        compileall.compile_dir(folder, quiet=2)


def main(argv: Sequence[str]) -> int:
    """0 when every budget was met, 1 when not; a quick look is never judged."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, few hosts, nothing judged or written")
    parser.add_argument(
        "--rounds", type=int, default=5, metavar="N", help="rounds per comparison (%(default)s)"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(MEASUREMENTS)}")
    options = parser.parse_args(argv)
    unknown = set(options.names) - set(MEASUREMENTS)
    if unknown:
        parser.error(f"no measurement called {', '.join(sorted(unknown))}; there are {', '.join(MEASUREMENTS)}")
    compile_tpuctl()
    plan = Plan(rounds=1 if options.quick else options.rounds, quick=options.quick)
    reports = run(options.names or list(MEASUREMENTS), plan)
    if plan.quick:
        return 0
    if not options.names:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(render_page(reports), encoding="utf-8")
        print(f"wrote {PAGE}")
    return 0 if all(budget.met for report in reports for budget in report.budgets) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
