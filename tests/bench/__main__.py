"""`python -m tests.bench [NAME …]`: measures, prints, and writes docs/develop/benchmarks.md.

All sections without a name, else these alone. One that fails is named at the end; `--resume` then measures
what is missing.
"""

from __future__ import annotations

import argparse
import compileall
import subprocess
import sys
import sysconfig
import time
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
    pods,
    recovery,
    requests,
    startup,
    streaming,
    tops,
    years,
)
from tests.bench.harness import Measurement, Plan
from tests.bench.history import HISTORY, entry_of
from tests.bench.report import PAGE, render_text, replace_head, replace_section
from tests.support import measured

MEASUREMENTS: Mapping[str, Measurement] = {
    "interpreter": startup.measure_interpreter,
    "startup": startup.measure,
    "disk": startup.measure_disk,
    "cold": cold.measure,
    "sshd": cold.measure_sshd,
    "requests": requests.measure,
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
    "long-logs": years.measure_logs,
    "top": tops.measure,
    "recovery": recovery.measure,
    "pods": pods.measure,
    "environments": environments.measure,
    "disks": disks.measure,
    "holds": holds.measure,
    "mounts": mounts.measure,
    "isolated": isolated.measure,
}


NOT_MET = 3
"""The exit status of a section that was measured and has a budget that is not met; 1 is a crash."""
SETTLE_S = 180.0


def measure(name: str, plan: Plan) -> bool:
    """Measures one section, prints it and, unless it is a quick look, keeps it; whether all budgets are met."""
    began = {"revision": measured.revision(), "date": measured.today(), "load": measured.load()}
    reports = MEASUREMENTS[name](plan)
    load = [began["load"], measured.load()]
    for report in reports:
        print(render_text(report), flush=True)
        if not plan.quick:
            measured.append_entry(HISTORY, entry_of(name, report, {**began, "load": load}, plan.rounds))
            PAGE.write_text(replace_section(PAGE.read_text(), report, began, plan.rounds), encoding="utf-8")
    return plan.quick or all(budget.met for report in reports for budget in report.budgets)


def measure_apart(names: Sequence[str], options: Sequence[str]) -> dict[str, int]:
    """Each in a process of its own, so that one that fails ends no other; the exit status of those that did."""
    statuses = {}
    for name in names:
        _settle()
        print(f"{name} …", flush=True)
        start = time.monotonic()
        statuses[name] = subprocess.run([sys.executable, "-m", "tests.bench", *options, name]).returncode
        print(f"{name}: {(time.monotonic() - start) / 60:.1f} min\n", flush=True)
    return {name: status for name, status in statuses.items() if status}


def _settle() -> None:
    """What the section before left the machine to do is not this one's."""
    end = time.monotonic() + SETTLE_S
    while measured.load() > measured.BUSY_LOAD and time.monotonic() < end:
        time.sleep(5.0)


def compile_tpuctl() -> None:
    """As pip does with what it installs. A checkout may have no compiled modules, and where
    PYTHONDONTWRITEBYTECODE is set never gets any: then all of tpuctl would be compiled at every start."""
    for folder in (Path(tpuctl.__file__).parent, sysconfig.get_path("purelib")):
        compileall.compile_dir(folder, quiet=2)


def main(argv: Sequence[str]) -> int:
    """0 when every budget was met; a quick look is never judged."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, few hosts, nothing judged or written")
    parser.add_argument("--resume", action="store_true", help="only what this revision does not have yet")
    parser.add_argument(
        "--rounds", type=int, default=5, metavar="N", help="rounds per comparison (%(default)s)"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(MEASUREMENTS)}")
    options = parser.parse_args(argv)
    unknown = set(options.names) - set(MEASUREMENTS)
    if unknown:
        parser.error(f"no measurement called {', '.join(sorted(unknown))}; there are {', '.join(MEASUREMENTS)}")
    names = options.names or list(MEASUREMENTS)
    if options.resume:
        entries, at = measured.read_entries(HISTORY), measured.revision()
        names = [name for name in names if not measured.is_done(entries, name, at)]
    compile_tpuctl()
    if len(names) == 1:
        plan = Plan(rounds=1 if options.quick else options.rounds, quick=options.quick)
        return 0 if measure(names[0], plan) else NOT_MET
    if not options.names and not options.quick:
        PAGE.write_text(replace_head(PAGE.read_text()), encoding="utf-8")
    ended = measure_apart(names, ["--quick"] if options.quick else ["--rounds", str(options.rounds)])
    for name, status in ended.items():
        print(f"{name}: {'a budget is not met' if status == NOT_MET else f'failed with {status}'}")
    return 1 if ended else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
