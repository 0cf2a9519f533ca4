"""Runs contenders side by side and compares medians: CPU of the whole process tree, wall time, peak memory.

Rounds are interleaved, so that whatever else the machine does hits every contender alike. A contender whose
output is wrong is an error, not a fast one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import BinaryIO

TIMEOUT_S = 300.0
LAUNCHER = """
import os, sys, time
began = time.monotonic()
pid = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, used = os.wait4(pid, 0)
wall_s, cpu_s = time.monotonic() - began, used.ru_utime + used.ru_stime
with open(int(sys.argv[1]), "w") as report:
    print(os.waitstatus_to_exitcode(status), wall_s, cpu_s, used.ru_maxrss / 1024, file=report)
"""
"""Starts a contender. The peak of a process begins with that of the one that starts it (exec_mmap in fs/exec.c
of Linux): that has to be a small one, and not this one with all of its libraries."""

Span = tuple[float, float]
Check = Callable[[BinaryIO], bool]


class BenchError(Exception):
    """A contender failed or answered wrongly; its figures would mean nothing."""


@dataclass(frozen=True)
class Contender:
    """One way of doing the job. `check` reads its stdout and says whether the job was done."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    check: Check = lambda _: True
    single_process: bool = True
    """Peak memory is that of the largest process; it says nothing about many of them."""


@dataclass(frozen=True)
class Sample:
    """One execution, or the median of several, with the least and the most of them as spans. `peak_mb` is the
    peak of the largest process."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    wall_s_span: Span | None = None
    cpu_s_span: Span | None = None


@dataclass(frozen=True)
class Plan:
    """How thoroughly to measure. `scale` shrinks host counts and volumes of a quick look."""

    rounds: int = 5
    quick: bool = False

    def hosts(self, count: int) -> int:
        return max(2, count // 16) if self.quick else count


@dataclass(frozen=True)
class Budget:
    """A promise: `value` at most (or at least) `limit`. Not judged after a quick look."""

    text: str
    value: float
    limit: float
    at_least: bool = False
    unit: str = "x"

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(frozen=True)
class Line:
    """One contender's medians, and its cost relative to the report's baseline."""

    name: str
    wall_s: float
    cpu_s: float
    peak_mb: float | None = None
    note: str = ""
    wall_s_span: Span | None = None
    cpu_s_span: Span | None = None


@dataclass(frozen=True)
class Report:
    """One comparison. Ratios in the table are those of `baseline` to each line: above 1 is better than it."""

    title: str
    setting: str
    baseline: str
    lines: tuple[Line, ...]
    budgets: tuple[Budget, ...] = ()
    missing: tuple[str, ...] = ()


Measurement = Callable[[Plan], list[Report]]


def execute(contender: Contender) -> Sample:
    """Runs it once to its end. Raises BenchError."""
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        tempfile.TemporaryFile("r+") as report,
    ):
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", LAUNCHER, str(report.fileno()), *contender.argv],
            env={**os.environ, **contender.env},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            pass_fds=[report.fileno()],
            start_new_session=True,
        )
        watchdog = threading.Timer(TIMEOUT_S, _kill_group, [process.pid])
        watchdog.start()
        try:
            process.wait()
        finally:
            watchdog.cancel()
        out.seek(0)
        report.seek(0)
        status, *figures = report.read().split() or [str(process.returncode)]
        if status != "0" or not contender.check(out):
            err.seek(0)
            said = err.read().decode(errors="replace").strip()[-600:]
            raise BenchError(f"{contender.name}: exit status {status}, or a wrong answer: {said}")
    wall_s, cpu_s, peak_mb = map(float, figures)
    return Sample(wall_s, cpu_s, peak_mb)


def _kill_group(leader: int) -> None:
    os.killpg(leader, signal.SIGKILL)


def compare(contenders: Sequence[Contender], rounds: int) -> dict[str, Sample]:
    """Medians by name; round by round, each contender once."""
    samples: dict[str, list[Sample]] = {contender.name: [] for contender in contenders}
    for _ in range(rounds):
        for contender in contenders:
            samples[contender.name].append(execute(contender))
    return {name: _median(found) for name, found in samples.items()}


def _median(samples: Sequence[Sample]) -> Sample:
    return Sample(
        median(sample.wall_s for sample in samples),
        median(sample.cpu_s for sample in samples),
        median(sample.peak_mb for sample in samples),
        _span([sample.wall_s for sample in samples]),
        _span([sample.cpu_s for sample in samples]),
    )


def _span(values: Sequence[float]) -> Span:
    return min(values), max(values)


def lines(contenders: Sequence[Contender], medians: Mapping[str, Sample]) -> tuple[Line, ...]:
    """The rows of a report, in the order of `contenders`."""
    return tuple(
        Line(
            each.name,
            medians[each.name].wall_s,
            medians[each.name].cpu_s,
            medians[each.name].peak_mb if each.single_process else None,
            wall_s_span=medians[each.name].wall_s_span,
            cpu_s_span=medians[each.name].cpu_s_span,
        )
        for each in contenders
    )


def unmeasured(title: str, setting: str, why: str, plan: Plan) -> Report:
    """What stands in the place of a report that this machine cannot make."""
    floor = Contender("python -c pass", [sys.executable, "-c", "pass"])
    shown = lines([floor], compare([floor], plan.rounds))
    return Report(title, setting, floor.name, shown, missing=(why,))


@contextmanager
def pinned(cpu: int) -> Iterator[None]:
    """Processes started meanwhile run on this CPU only, where the system can do that."""
    if not hasattr(os, "sched_setaffinity") or cpu >= (os.cpu_count() or 1):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


MEMORY = Path("/dev/shm")


@contextmanager
def scratch(*, in_memory: bool = False) -> Iterator[Path]:
    """A directory for one measurement; short, because socket paths are limited to 108 bytes (unix(7)).

    With `in_memory` where the system can: of many hosts whose files lie on one disk, its file system would be
    measured. Where thousands of files were just removed, ext4 searches long for a place for a new one.
    """
    parent = MEMORY if in_memory and os.access(MEMORY, os.W_OK) else Path("/tmp")
    with tempfile.TemporaryDirectory(prefix="tb-", dir=parent) as folder:
        yield Path(folder)


def cpu_of_tree(top: int) -> float:
    """What a process, those below it, and those that ended there have used, in seconds: proc(5)."""
    children: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        children.setdefault(int(fields[1]), []).append(int(name))
        used[int(name)] = sum(map(int, fields[11:15]))
    total, pending = 0, [top]
    while pending:
        pid = pending.pop()
        total += used.get(pid, 0)
        pending += children.get(pid, [])
    return total / os.sysconf("SC_CLK_TCK")
