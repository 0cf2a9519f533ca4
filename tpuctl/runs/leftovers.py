"""What may be left on hosts of earlier attempts and of others: programs, and their hold on the chips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from tpuctl.engine.events import Note
from tpuctl.hosts.agent import Reply
from tpuctl.hosts.protocol import ChipHolder, ChipLock, HostFacts, WorkerState
from tpuctl.hosts.provision import PROVISION
from tpuctl.hosts.requests import FreeChipsRequest
from tpuctl.hosts.worker_status import AttemptsReply
from tpuctl.lib.shell import quote
from tpuctl.lib.text import fold_workers
from tpuctl.lib.time import render_moment
from tpuctl.model import timeouts
from tpuctl.runs.attempt import AttemptHosts, busy, in_the_way, is_own_probe, kill_hint
from tpuctl.runs.chips import are_shared, describe_chips
from tpuctl.runs.states import RunEvent, RunFinding
from tpuctl.runs.trouble import suspected_since
from tpuctl.state.repository import active_runs, find_run
from tpuctl.transfer.host_copies import COMMANDS, is_copy, is_copy_of
from tpuctl.transfer.prepare import require_values


def stop_leftovers(hosts: AttemptHosts, running: Sequence[Reply[AttemptsReply]]) -> RunFinding | None:
    """Ends what is left of earlier attempts and of runs that are over, which a worker out of reach or the
    program of a supervisor that died may have survived: two attempts must not hold the chips or write the
    same checkpoints."""
    known, beside = require_values(running, "say what runs there"), _runs_beside(hosts)
    for target, said in zip(hosts.targets, known, strict=True):
        for each in said.attempts:
            if each.state is WorkerState.EXITED and each.survivors and each.run not in beside:
                why = f"what outlived attempt {each.attempt} of {each.run}: {each.survivors_said}"
                hint = kill_hint(hosts.run.slice_name, target.worker, each.survivors)
                return in_the_way(hosts, f"worker {target.worker} has {why}", hint)
    found = hosts.stop_alive(running, partial(_is_left_over, hosts))
    names = ", ".join(f"attempt {attempt} of {run}" for run, attempt in found if not is_copy(run))
    left = "; ".join(each.survivors_said for one in known for each in one.attempts if each.survivors)
    return busy(f"what is left of {names} to end{f' ({left})' if left else ''}") if names else None


def are_fresh(running: Sequence[Reply[AttemptsReply]]) -> bool:
    """Whether all hosts have just said that no run was ever prepared there, and that no code is on its way."""
    known = [reply.value.attempts for reply in running if reply.value is not None]
    return bool(known) and all(each.run.startswith(PROVISION) for attempts in known for each in attempts)


def _is_left_over(hosts: AttemptHosts, run: str, attempt: str) -> bool:
    """Environments that are being installed, and runs of other stores, are no business of this run; copies
    are for one attempt at a time, or for a command."""
    if is_copy(run):
        return run != COMMANDS and not is_copy_of(hosts.owner, run, attempt)
    if run == hosts.run.id:
        return attempt != hosts.attempt.attempt_id and not is_own_probe(hosts, run, attempt)
    return _is_over(hosts, run)


def _is_over(hosts: AttemptHosts, run: str) -> bool:
    other = find_run(hosts.services, run)
    return other is not None and other.record.state.final


def free_chips(hosts: AttemptHosts, facts: Sequence[HostFacts]) -> RunFinding | None:
    """Who holds the chips and is in the way. What dead runs of ours left there goes, nothing of runs beside
    this one."""
    left: dict[int, list[int]] = {}
    locks: dict[int, ChipLock] = {}
    beside = _runs_beside(hosts)
    for target, fact in zip(hosts.targets, facts, strict=True):
        if fact.chips is None:
            continue
        taken, lock = fact.chips.taken_by, fact.chips.lockfile
        # Their supervisor is gone, and their run is ours to end.
        gone = [
            it for it in taken if it.left_by and (it.left_by == hosts.run.id or _is_over(hosts, it.left_by))
        ]
        mine = {fact.chips.devices[chip] for chip in hosts.run.chips if chip < len(fact.chips.devices)}
        others = [each for each in taken if each not in gone and _is_in_the_way(hosts, each, mine, beside)]
        if others:
            why = f"worker {target.worker}: {', '.join(holder.said for holder in others)} has the chips"
            return in_the_way(
                hosts, why, kill_hint(hosts.run.slice_name, target.worker, [each.pid for each in others])
            )
        if gone:
            left[target.worker] = [holder.pid for holder in gone]
        if lock is not None and lock.foreign:
            locks[target.worker] = lock
    return _end_holders(hosts, left, locks) or _wait_for_chips(hosts, facts)


def _runs_beside(hosts: AttemptHosts) -> set[str]:
    """The runs that have other chips of the slice."""
    runs = active_runs(hosts.services, hosts.run.slice_name) if hosts.run.chips else []
    return {run.id for run in runs if are_shared(run, hosts.run)}


def _is_in_the_way(hosts: AttemptHosts, holder: ChipHolder, mine: set[str], beside: set[str]) -> bool:
    """Of a process that holds chips, or the lock on them: one that has chips of its own open is in the way of
    these, others of all but the runs beside theirs."""
    if hosts.run.chips and holder.devices:
        return not mine.isdisjoint(holder.devices)
    return holder.run not in beside


def _wait_for_chips(hosts: AttemptHosts, facts: Sequence[HostFacts]) -> RunFinding | None:
    """The kernel gives a chip free some time after its process was killed. The record has since when it is not:
    another process, also one after a crash, counts on."""
    found = [
        (target.worker, chips)
        for target, fact in zip(hosts.targets, facts, strict=True)
        if (chips := fact.chips) and chips.busy
    ]
    if not found:
        return None
    worker, chips = found[0]
    numbers = [chips.devices.index(device) for device in chips.busy]
    said, now = f"{describe_chips(numbers)} of worker {worker}", hosts.services.store.now()
    hint = f"tpuctl exec --worker {worker} {hosts.run.slice_name} -- sudo fuser -v {' '.join(chips.busy)}"
    since = suspected_since(hosts.attempt, hint)
    if since is None:
        why = f"{said}, busy since {render_moment(now)}"
        return RunFinding(
            RunEvent.REFUSED, why, changes={"suspect_since": now, "suspect_why": why, "mend": hint}
        )
    if now < since + timeouts.CHIPS_BUSY_S:
        return busy(f"{said}, busy since {render_moment(since)}")
    return in_the_way(hosts, f"{said}: busy since {render_moment(since)}, and nobody is seen to have it", hint)


def _end_holders(
    hosts: AttemptHosts, left: Mapping[int, list[int]], locks: Mapping[int, ChipLock]
) -> RunFinding | None:
    """Ends processes by worker, and removes files of locks that nobody holds and our user cannot open."""
    chosen = [target for target in hosts.targets if target.worker in left or target.worker in locks]
    answers = hosts.agent.ask(
        chosen, lambda it: FreeChipsRequest(tuple(left.get(it.worker, ())), it.worker in locks)
    )
    stay: dict[int, str] = {}
    for target, reply in zip(chosen, require_values(answers, "free their chips"), strict=True):
        if target.worker in locks and not reply.removed:
            stay[target.worker] = reply.why
        if reply.ended:
            ended = ", ".join(map(str, reply.ended))
            said = f"worker {target.worker}: ended {ended}, left on the chips by a run that is over"
            hosts.services.emit(Note(hosts.run.id, said))
    if stay:
        lock, workers = locks[min(stay)], fold_workers(sorted(stay))
        why = f"worker {workers}: {lock.path} is {lock.owner}'s, and libtpu of another user cannot open it"
        hint = f"tpuctl exec --worker {workers} {hosts.run.slice_name} -- sudo rm {quote(lock.path)}"
        return in_the_way(hosts, f"{why}; {stay[min(stay)]}", hint)
    return busy("chips that were left behind") if left else None
