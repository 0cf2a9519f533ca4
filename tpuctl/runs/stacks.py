"""Stacks of the processes of a run, from its workers: what a program that stands still is doing."""

from __future__ import annotations

from collections.abc import Collection

from tpuctl.engine.services import Services
from tpuctl.errors import NotFoundError
from tpuctl.hosts.deadline import HOST_TIME_S
from tpuctl.hosts.protocol import ProcessStack, WorkerStacks
from tpuctl.runs.attempt import AttemptHosts, find_hosts
from tpuctl.state.repository import get_run


def dump_stacks(services: Services, run_id: str, workers: Collection[int] | None = None) -> list[WorkerStacks]:
    """The stacks of the current attempt, by worker; `workers` None means all. They are kept beside its logs.

    Raises NotFoundError where nothing of it runs.
    """
    run = get_run(services, run_id).record
    hosts = find_hosts(services, run, services.clock.now() + HOST_TIME_S)
    if hosts is None or run.state.final:
        raise NotFoundError(f"run {run.id} runs nowhere: it is {run.state}", hint=f"tpuctl logs {run.id}")
    return keep_stacks(hosts, workers)


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


def _paragraph(process: ProcessStack) -> str:
    waits = f", waits in {process.waits_in}" if process.waits_in else ""
    which = "" if process.process is None else f"process {process.process}: "
    head = f"{which}pid {process.pid} ({process.command[:120]}) state {process.state}{waits}"
    return f"{head}; by {process.by}:\n{process.text.rstrip()}\n" if process.text else f"{head}; no stack\n"
