"""What the hosts of a slice, their chips and the run on them do just now, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from msgspec import Struct

from tpuctl.engine.services import Services
from tpuctl.hosts.protocol import HostUsage, WorkerState
from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.lib.codec import to_data
from tpuctl.lib.text import common_cause, fold_workers
from tpuctl.lib.time import render_time
from tpuctl.model.clusters import refuse_on_cluster
from tpuctl.model.records import RunRecord, SliceRecord
from tpuctl.runs.compiles import describe_compiles, describe_compiling, find_troubles
from tpuctl.runs.failure import describe_end
from tpuctl.runs.hang import step_rate
from tpuctl.slices.choose import resolve_slice, run_called
from tpuctl.state.repository import active_runs, find_run, get_slice
from tpuctl.telemetry.observe import HostSample, Observer
from tpuctl.telemetry.prometheus import FIGURES
from tpuctl.telemetry.sample import ChipSample
from tpuctl.telemetry.summary import FigureRow, find_slowest, spread

NO_PLACE = -1
"""Of a row that is about no chip."""


class TopFrame(Struct, frozen=True):
    """One look: of a slice and, where there is one, of a run on it."""

    slice: SliceRecord
    run: RunRecord | None
    at: float
    hosts: list[HostSample]
    others: int = 0
    """Further runs on the slice, whose steps are not shown."""


def take_frame(services: Services, observer: Observer, name: str | None) -> TopFrame:
    """The slice or run called `name`, as it is now: first a run, unless it is over; of several runs on a slice
    the newest. Raises NotFoundError, and TpuctlError where it has no hosts."""
    found = None if name is None else find_run(services, name)
    run = found.record if found is not None and not found.record.state.final else None
    if run is None and name is not None:
        run = run_called(services, name)
    if run is not None:
        refuse_on_cluster(run.id, run.cluster, "top")
    record = resolve_slice(services, name) if run is None else get_slice(services, run.slice_name).record
    active = active_runs(services, record.name)
    run = run or max(active, key=lambda each: each.created_at, default=None)
    others = sum(each.id != run.id for each in active) if run is not None else 0
    attempt = run.attempt if run is not None else None
    hosts = observer.look(record, run.id if run is not None else "", attempt)
    return TopFrame(record, run, services.clock.now(), hosts, others)


def run_said(frame: TopFrame) -> str:
    """The run and how it stands; its hosts know before anybody else that its programs have ended."""
    run = frame.run
    if run is None:
        return "no run"
    attempt = None if run.state.final else run.attempt
    if attempt is None or attempt.cause is not None:
        return f"run {run.id} ({run.state})"
    workers = [host.status for host in frame.hosts if host.worker in attempt.workers]
    ends = {describe_end(each) for each in workers if each is not None and each.state is WorkerState.EXITED}
    if not ends or any(each is None or each.state is not WorkerState.EXITED for each in workers):
        return f"run {run.id} ({run.state})"
    return f"run {run.id} ended ({', '.join(sorted(ends))}), not taken note of: tpuctl attach {run.id}"


def frame_facts(frame: TopFrame) -> dict[str, Any]:
    """For `--json`: nothing is folded, and what is not known is null."""
    chips, hosts = chip_rows(frame.hosts), host_rows(frame)
    slowest = slowest_of(frame.hosts)
    return {
        "slice": frame.slice.name,
        "state": str(frame.slice.state),
        "run": None if frame.run is None else frame.run.id,
        "run_state": None if frame.run is None else str(frame.run.state),
        "at": render_time(frame.at),
        "workers": [_worker(each) for each in frame.hosts],
        "spread": {name: to_data(each) for name, each in {**spread(chips), **spread(hosts)}.items()},
        "slowest": None if slowest is None else to_data(slowest),
        **program_facts(frame),
    }


def program_facts(frame: TopFrame) -> dict[str, Any]:
    """What the programs of the run compiled, do compile, and what slows them down from inside."""
    workers = [host.status for host in frame.hosts if host.status is not None]
    return {
        "compiled": describe_compiles(workers) or None,
        "compiling": describe_compiling(workers) or None,
        "troubles": [] if frame.run is None else [each.said for each in find_troubles(frame.run, workers)],
    }


def _worker(host: HostSample) -> dict[str, Any]:
    step, usage = _steps(host.status), host.usage or HostUsage(host.worker)
    return {
        "worker": host.worker,
        "error": host.error or None,
        "state": None if host.status is None else str(host.status.state),
        **step,
        **{name: getattr(usage, name) for name in HOST_FIGURES},
        "cpus": usage.cpus or None,
        **{name: host.figures.get(name) for name in FIGURES},
        "chips": [
            {name: getattr(chip, name) for name in ("device", "port", *CHIP_FIGURES)} for chip in host.chips
        ],
        "silent": [{"port": each.port, "why": each.why, "hangs": each.hangs} for each in host.silent],
    }


CHIP_FIGURES = ("duty_percent", "hbm_used", "hbm_total", "queue")
HOST_FIGURES = (
    "cpu_percent",
    "memory_used",
    "memory_total",
    "disk_read_s",
    "disk_written_s",
    "net_in_s",
    "net_out_s",
)


def _steps(status: WorkerStatus | None) -> dict[str, float | None]:
    if status is None:
        return dict.fromkeys(("step", "step_age_s", "steps_per_s"))
    since = None if status.state is WorkerState.EXITED else status.step_at
    age = None if since is None else max(0.0, status.time - since)
    rate = status.recent_rate if status.recent_rate is not None else step_rate(status)
    return {"step": status.step, "step_age_s": age, "steps_per_s": rate}


def chip_rows(hosts: Sequence[HostSample]) -> list[FigureRow]:
    """A row for each chip, by its place on its host, and one for services of which nothing is known."""
    rows = []
    for host in hosts:
        for place, chip in enumerate(host.chips):
            rows.append(FigureRow(host.worker, place, _chip_figures(chip)))
        text = _silence(host)
        if text:
            rows.append(FigureRow(host.worker, NO_PLACE, dict.fromkeys(CHIP_FIGURES), text))
    return rows


def _chip_figures(chip: ChipSample) -> dict[str, float | None]:
    return {name: getattr(chip, name) for name in CHIP_FIGURES}


def _silence(host: HostSample) -> str:
    """Why nothing is known of chips, alike for all hosts of which the same is true."""
    if host.error:
        return ""
    hanging = [each.port for each in host.silent if each.hangs]
    if hanging:
        return f"port {fold_workers(hanging)} hangs"
    if host.chips or not host.silent:
        return ""
    return "no server"


def host_rows(frame: TopFrame) -> list[FigureRow]:
    """A row for each host; why some do not answer is said without their names, so that they share a line."""
    rows = []
    for host in frame.hosts:
        usage = host.usage or HostUsage(host.worker)
        own = {name: getattr(usage, name) for name in HOST_FIGURES}
        figures = {**_steps(host.status), **own, **{name: host.figures.get(name) for name in FIGURES}}
        rows.append(
            FigureRow(host.worker, 0, figures, common_cause(f"{frame.slice.name}-{host.worker}", host.error))
        )
    return rows


def slowest_of(hosts: Sequence[HostSample]) -> Any:
    """Who is behind all others, if somebody is."""
    steps = {host.worker: _steps(host.status) for host in hosts}
    known = {
        name: {worker: value for worker, each in steps.items() if (value := each[name]) is not None}
        for name in ("step", "steps_per_s")
    }
    duty = {
        host.worker: mean(told)
        for host in hosts
        if (told := [chip.duty_percent for chip in host.chips if chip.duty_percent is not None])
    }
    return find_slowest(known["step"], known["steps_per_s"], duty)
