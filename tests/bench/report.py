"""Reports as text for a terminal of 80 columns and as the page in the docs."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from tests.bench.harness import Budget, Line, Report
from tests.bench.peers import find_tool, peers_folder

WIDTH = 80
NAME_WIDTH = 33
PAGE = Path(__file__).parents[2] / "docs" / "develop" / "benchmarks.md"
PACKAGES = ("typer", "google-cloud-tpu", "google-cloud-compute", "paramiko", "cryptography", "asyncssh")

INTRODUCTION = """\
# Benchmarks

Written by `make bench`. CPU is user and system time of the whole process tree, interpreter start and imports
included; memory is the peak of the process, in MB, and a dash where the work is spread over many. Every number
is a median of interleaved rounds; "x" columns say how many times less than the first line of the table. Hosts
are on the loopback interface of the same machine: compare ratios, not seconds.
"""


def render_text(report: Report) -> str:
    """The report in at most 80 columns."""
    base = next(line for line in report.lines if line.name == report.baseline)
    found = [report.title, f"  {report.setting}"]
    found.append(f"  {'':{NAME_WIDTH}}  {'wall s':>7}  {'CPU s':>7}  {'MB':>5}  {'wall x':>6}  {'CPU x':>6}")
    found += [
        f"  {line.name:{NAME_WIDTH}.{NAME_WIDTH}}  {'  '.join(_cells(line, base))}" for line in report.lines
    ]
    found += [f"  {_verdict(budget):8} {budget.text}: {_figure(budget)}" for budget in report.budgets]
    found += [f"  not measured: {text}" for text in report.missing]
    return "\n".join(found) + "\n"


def _cells(line: Line, base: Line) -> list[str]:
    peak = "-" if line.peak_mb is None else f"{line.peak_mb:.0f}"
    return [
        f"{line.wall_s:7.3f}",
        f"{line.cpu_s:7.3f}",
        f"{peak:>5}",
        f"{base.wall_s / line.wall_s:6.2f}",
        f"{base.cpu_s / line.cpu_s:6.2f}",
    ]


def _verdict(budget: Budget) -> str:
    return "met" if budget.met else "NOT met"


def _figure(budget: Budget) -> str:
    limit = f"{'at least' if budget.at_least else 'at most'} {budget.limit:g}"
    return f"{budget.value:.2f} ({limit}{'' if budget.unit == 'x' else ' ' + budget.unit})"


def render_page(reports: Sequence[Report]) -> str:
    """The whole page of the docs."""
    return "\n".join([INTRODUCTION, _circumstances(), *(_section(report) for report in reports)])


def _section(report: Report) -> str:
    base = next(line for line in report.lines if line.name == report.baseline)
    rows = [f"## {report.title}", "", report.setting, ""]
    rows += ["| | wall s | CPU s | MB | wall x | CPU x |", "|---|---:|---:|---:|---:|---:|"]
    rows += [f"| {line.name} | {' | '.join(c.strip() for c in _cells(line, base))} |" for line in report.lines]
    if report.budgets:
        rows += ["", "| budget | measured | verdict |", "|---|---|---|"]
        rows += [f"| {each.text} | {_figure(each)} | {_verdict(each)} |" for each in report.budgets]
    rows += ["", *(f"Not measured: {text}." for text in report.missing)] if report.missing else []
    return "\n".join(rows) + "\n"


def _circumstances() -> str:
    facts = {
        "Date": time.strftime("%Y-%m-%d", time.gmtime()),
        "Machine": f"{_processor()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "Libraries": ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES),
        "OpenSSH": _said(["ssh", "-V"]),
        "Peers": ", ".join(filter(None, _peers())),
        "gcloud": _said(["gcloud", "version"]).removeprefix("Google Cloud SDK "),
    }
    return "".join(f"- {name}: {value}\n" for name, value in facts.items() if value)


def _peers() -> list[str]:
    """Versions as the tools say them; those that are absent say nothing."""
    ask = "from importlib.metadata import version as v; print('parallel-ssh', v('parallel-ssh'))"
    return [
        _said([find_tool("pdsh") or "pdsh", "-V"]).partition(" ")[0],
        _said([find_tool("clush") or "clush", "--version"]),
        _said([str(peers_folder() / "bin/python"), "-c", ask]),
        _said([find_tool("ansible") or "ansible", "--version"]),
    ]


def _processor() -> str:
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.machine()


def _said(argv: list[str]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    except OSError:
        return ""
    return next(iter((done.stdout or done.stderr).strip().splitlines()), "") if done.returncode == 0 else ""
