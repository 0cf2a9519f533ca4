"""Reports as text for a terminal of 80 columns and as the page in the docs."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.bench.harness import Budget, Line, Report
from tests.bench.peers import find_tool, peers_folder
from tests.support import measured

WIDTH = 80
NAME_WIDTH = 33
PAGE = Path(__file__).parents[2] / "docs" / "develop" / "benchmarks.md"
PACKAGES = ("typer", "google-cloud-tpu", "google-cloud-compute", "paramiko", "cryptography", "asyncssh")

INTRODUCTION = """\
# Benchmarks

Written by `make bench`. CPU is user and system time of the whole process tree, interpreter start and imports
included; memory is the peak of the process, in MB, and a dash where the work is spread over many. Every number
is a median of interleaved rounds; "x" columns say how many times less than the first line of the table. Hosts
are on the loopback interface of the same machine: compare ratios, not seconds. Each section says when it was
measured, and at which load, which is how many processors were busy before it began; machine and versions are
those of the last full run.
`benchmarks.jsonl` has all figures, `make bench-diff` says what got slower.
"""
NOTE = "<!-- by hand -->"
"""What follows in a section is written by people."""
BUSY = " The machine was busy: only rows of this table can be compared."


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


def replace_section(page: str, report: Report, began: Mapping[str, Any], rounds: int) -> str:
    """The page with what was measured anew. What people wrote below the tables stays; a new section is last."""
    parts = re.split(r"^(?=## )", page, flags=re.MULTILINE)
    titles = [part.partition("\n")[0] for part in parts]
    fresh = _section(report, began, rounds) + "\n"
    if f"## {report.title}" not in titles:
        return "".join([*parts, "" if page.endswith("\n\n") else "\n", fresh]).rstrip("\n") + "\n"
    at = titles.index(f"## {report.title}")
    _, mark, note = parts[at].partition(NOTE)
    parts[at] = fresh + (mark + note if mark else "")
    return "".join(parts).rstrip("\n") + "\n"


def replace_head(page: str) -> str:
    """The page with the machine and the versions of today."""
    _, mark, sections = page.partition("\n## ")
    return f"{INTRODUCTION}\n{_circumstances()}{mark}{sections}"


def _measured(began: Mapping[str, Any], rounds: int) -> str:
    told = f"Measured on {began['date']} at {began['revision'] or 'no revision'}"
    return f"{told}: rounds {rounds}, load {began['load']}." + BUSY * (began["load"] > measured.BUSY_LOAD)


def _section(report: Report, began: Mapping[str, Any], rounds: int) -> str:
    base = next(line for line in report.lines if line.name == report.baseline)
    rows = [f"## {report.title}", "", f"{report.setting}.", "", _measured(began, rounds), ""]
    rows += ["| | wall s | CPU s | MB | wall x | CPU x |", "|---|---:|---:|---:|---:|---:|"]
    rows += [f"| {line.name} | {' | '.join(c.strip() for c in _cells(line, base))} |" for line in report.lines]
    if report.budgets:
        rows += ["", "| budget | measured | verdict |", "|---|---|---|"]
        rows += [f"| {each.text} | {_figure(each)} | {_verdict(each)} |" for each in report.budgets]
    rows += ["", *(f"Not measured: {text}." for text in report.missing)] if report.missing else []
    return "\n".join(rows) + "\n"


def versions() -> dict[str, str]:
    """Of what is measured besides tpuctl."""
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}}


def _circumstances() -> str:
    facts = {
        "Last full run": measured.today(),
        "Machine": f"{_processor()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "Libraries": ", ".join(f"{name} {version}" for name, version in versions().items() if name != "python"),
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
