"""Where a program stands still: what its processes do, and what their chips execute."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from msgspec import Struct

from tpuctl.engine.services import Services
from tpuctl.errors import NotFoundError, TpuctlError
from tpuctl.hosts.deadline import HOST_TIME_S
from tpuctl.hosts.protocol import ProcessStack, WorkerStacks, WorkerState
from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.lib.codec import to_data
from tpuctl.lib.text import fold_workers, group_equal
from tpuctl.model.processes import worker_of
from tpuctl.model.shipped_files import load_hang_table
from tpuctl.runs.attempt import AttemptHosts, find_hosts
from tpuctl.runs.triage import HangCause, gather_facts, judge_hang, parse_hangs
from tpuctl.state.repository import get_run
from tpuctl.telemetry.read import read_cores
from tpuctl.telemetry.sample import FIRST_PORT, CoreState, NoServer


class Evidence(Struct, frozen=True):
    """What was seen of the workers of an attempt at one moment, and what keeps it, where that can be told.
    `silent` are services that did not answer: nothing is known of their cores."""

    stacks: tuple[WorkerStacks, ...]
    cores: tuple[CoreState, ...] = ()
    silent: tuple[NoServer, ...] = ()
    cause: HangCause | None = None

    def rows(self) -> list[dict[str, Any]]:
        """One for each worker, with what its cores execute; the cause is with those who are named."""
        named = {worker_of(place) for place in self.cause.places} if self.cause is not None else set()
        return [
            {
                **to_data(each),
                "cores": [to_data(core) for core in self.cores if core.worker == each.worker],
                "cause": self.cause.said if self.cause is not None and each.worker in named else None,
            }
            for each in self.stacks
        ]


def running_hosts(services: Services, run_id: str, until: float | None = None) -> AttemptHosts:
    """The hosts of the current attempt. Raises NotFoundError where nothing of the run runs."""
    run = get_run(services, run_id).record
    hosts = find_hosts(services, run, until)
    if hosts is None or run.state.final:
        raise NotFoundError(f"run {run.id} runs nowhere: it is {run.state}", hint=f"tpuctl logs {run.id}")
    return hosts


def find_evidence(services: Services, run_id: str, workers: Collection[int] | None = None) -> Evidence:
    """The current attempt, by worker; `workers` None means all: only then something may be said of the cause.
    It is kept beside its logs. Raises NotFoundError where nothing of it runs."""
    return examine(running_hosts(services, run_id, services.clock.now() + HOST_TIME_S), (), workers)


def examine(
    hosts: AttemptHosts, status: Sequence[WorkerStatus], workers: Collection[int] | None = None
) -> Evidence:
    """Asks the workers and the chips of those that answer, and keeps what they say. `status`: what is known of
    the workers besides."""
    # One that does not answer would be waited for, while nobody is told.
    answering = [each.worker for each in status if each.state is not WorkerState.UNREACHABLE]
    stacks = keep_stacks(hosts, answering if workers is None and answering else workers)
    ports = _ports(hosts, stacks)
    cores, silent = _read_cores(hosts, ports)
    named = {(each.worker, port) for each in stacks for process in each.processes for port in process.ports}
    silent = [each for each in silent if not each.absent or (each.worker, each.port) in named]
    for worker in sorted({each.worker for each in cores} | {each.worker for each in silent}):
        hosts.append(worker, "cores", render_cores(worker, cores, silent).encode())
    cause = None
    if workers is None:
        table = parse_hangs(load_hang_table())
        facts = gather_facts(table, status, stacks, cores, hosts.run.spec.stall_s)
        cause = judge_hang(table, facts, hosts.run.id, hosts.run.slice_name)
    return Evidence(tuple(stacks), tuple(cores), tuple(silent), cause)


def keep_stacks(hosts: AttemptHosts, workers: Collection[int] | None = None) -> list[WorkerStacks]:
    """Asks the workers, and appends what they say to `worker-N.stacks.log` beside their output."""
    found = hosts.stacks(workers)
    for each in found:
        hosts.append(each.worker, "stacks", render_stacks(each).encode())
    return found


def render_stacks(found: WorkerStacks) -> str:
    """For people: a paragraph for each process."""
    if found.error:
        return f"worker {found.worker}: {found.error}\n"
    return "\n".join(_paragraph(process) for process in found.processes)


def render_cores(worker: int, cores: Sequence[CoreState], silent: Sequence[NoServer]) -> str:
    """For people: a line for each core of a worker, and for each service that did not answer."""
    lines = [_core_line(each) for each in cores if each.worker == worker]
    lines += [f"port {each.port}: {each.why}" for each in silent if each.worker == worker]
    return "".join(f"{line}\n" for line in lines)


def describe_silent(silent: Sequence[NoServer]) -> list[str]:
    """For people: a line for all workers and ports of which the same is true."""
    groups = group_equal(silent, lambda each: "no server" if each.absent else each.why)
    return [
        f"worker {fold_workers({e.worker for e in group})}: port {fold_workers({e.port for e in group})}: {why}"
        for why, group in groups
    ]


def describe_ended(stacks: Sequence[WorkerStacks], run_id: str) -> list[str]:
    """For people: which workers' programs have ended. Where all have, nobody has taken note yet."""
    ended = [each for each in stacks if each.ended]
    note = f": `tpuctl attach {run_id}` takes note" if len(ended) == len(stacks) else ""
    groups = group_equal(ended, lambda e: f" (exit {e.exit_status})" if e.exit_status is not None else "")
    return [
        f"its program has ended{how} on worker {fold_workers(each.worker for each in group)}{note}"
        for how, group in groups
    ]


def _core_line(core: CoreState) -> str:
    words = [
        f"program {core.fingerprint}" if core.fingerprint else "",
        f"launch {core.launch_id}" if core.launch_id is not None else "",
        f"run {core.run_id}" if core.run_id is not None else "",
        f"{core.queued} queued",
        f"error: {core.error}" if core.error else "",
    ]
    chip = f" of chip {core.chip}" if core.chip is not None else ""
    return f"core {core.core}{chip}: {', '.join(filter(None, words))}"


def _paragraph(process: ProcessStack) -> str:
    waits = f", waits in {process.waits_in}" if process.waits_in else ""
    which = "" if process.process is None else f"process {process.process}: "
    head = f"{which}pid {process.pid} ({process.command[:120]}) state {process.state}{waits}"
    return f"{head}; by {process.by}:\n{process.text.rstrip()}\n" if process.text else f"{head}; no stack\n"


def _ports(hosts: AttemptHosts, stacks: Sequence[WorkerStacks]) -> dict[int, Sequence[int]]:
    """Where the chips of workers may tell how they are: what the variables of their processes say, else the
    ports of as many processes as there are chips. A program on CPUs has none."""
    if not hosts.is_for_chips():
        return {}
    spec = hosts.slice.spec
    usual = range(FIRST_PORT, FIRST_PORT + max(1, spec.chips // max(1, spec.hosts)))
    told = {
        each.worker: {port for p in each.processes for port in p.ports} for each in stacks if each.processes
    }
    return {worker: sorted(ports) or usual for worker, ports in told.items()}


def _read_cores(
    hosts: AttemptHosts, ports: dict[int, Sequence[int]]
) -> tuple[Sequence[CoreState], Sequence[NoServer]]:
    """Stacks say most of it: what fails here is told as what it is, and the rest goes on."""
    targets = [target for target in hosts.targets if target.worker in ports]
    if not targets:
        return [], []
    try:
        return read_cores(hosts.services, targets, ports)
    except TpuctlError as error:
        return [], [NoServer(worker, asked[0], error.message) for worker, asked in ports.items()]
