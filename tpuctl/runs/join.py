"""Did a run's processes come up on the chips, all of them? Reports of workers to what is wrong, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from tpuctl.hosts.protocol import WorkerState
from tpuctl.hosts.worker_status import JoinReport, WorkerStatus
from tpuctl.lib.text import Place, counted, fold_workers
from tpuctl.model.processes import place_of
from tpuctl.model.records import RunRecord, SliceRecord

BACKEND = "tpu"


class JoinVerdict(Struct, frozen=True):
    """What is wrong, or with which devices all workers run; neither while that is open."""

    trouble: str = ""
    joined: str = ""


def judge_join(run: RunRecord, slice_: SliceRecord | None, workers: Sequence[WorkerStatus]) -> JoinVerdict:
    """What the workers of the run's attempt say of their devices. Those of which no process uses a framework
    say nothing, and nothing is wrong with that while nobody waits for them."""
    if slice_ is None or run.attempt is None or run.attempt.joined:
        return JoinVerdict()
    hosts = max(1, slice_.spec.hosts)
    expected = len(run.chips) or slice_.spec.chips * len(run.attempt.workers) // hosts
    wrong: dict[str, list[Place]] = {}
    joined: list[Place] = []
    idle: list[Place] = []
    waited = 0.0
    for worker, process in _processes(run.attempt.processes, workers):
        place = place_of(worker.worker, process)
        own = [report for report in worker.join if process is None or report.process == process]
        mine = [report for report in own if not report.chosen]
        on_chips = [report for report in mine if report.backend == BACKEND]
        elsewhere = [report for report in mine if report.backend not in ("", BACKEND)]
        if on_chips:
            what = _fewer(on_chips, expected)
            joined += [place] if not what else []
        else:
            what = f"came up on {elsewhere[0].backend}, not on the chips" if elsewhere else ""
        if what:
            wrong.setdefault(what, []).append(place)
        waited = max([waited, *(worker.time - report.since for report in mine if report.waits)])
        if not mine and worker.state is WorkerState.RUNNING:
            idle.append(place)
    if wrong:
        said = "; ".join(f"{_named(members)} {what}" for what, members in wrong.items())
        return JoinVerdict(trouble=f"{said} (--allow-cpu if that is wanted, else tpuctl smoke {slice_.name})")
    if idle and waited >= run.spec.join_limit:
        late = f"the others wait since {waited:.0f} s (--join-limit allows more)"
        return JoinVerdict(trouble=f"{_named(idle)} did not come to take the chips: {late}")
    if len(joined) == len(run.attempt.workers) * run.attempt.processes:
        said = f"{counted(expected, 'chip')}, {counted(len(run.attempt.workers), 'worker')}"
        several = f", {counted(len(joined), 'process', 'processes')}" if run.attempt.processes > 1 else ""
        return JoinVerdict(joined=f"{said}{several}")
    return JoinVerdict()


def _processes(count: int, workers: Sequence[WorkerStatus]) -> Iterator[tuple[WorkerStatus, int | None]]:
    """Each worker, or each of its processes where it has several."""
    numbers: Sequence[int | None] = range(count) if count > 1 else [None]
    return ((worker, number) for worker in workers for number in numbers)


def _fewer(reports: Sequence[JoinReport], expected: int) -> str:
    most = max(report.devices for report in reports)
    if most >= expected or any(report.bounded for report in reports):
        return ""
    return f"sees {most} of {counted(expected, 'device')}"


def _named(places: Sequence[Place]) -> str:
    return f"worker {fold_workers(places)}"
