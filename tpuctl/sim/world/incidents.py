"""What happens to machines: they are preempted, rebooted, die, lose their connections, or seem busy.

All of it is asked for by name, and done to every machine behind that name at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor

from tpuctl.errors import NotFoundError, UsageError
from tpuctl.lib.text import suggest
from tpuctl.sim.world.call_log import Journal
from tpuctl.sim.world.state import Kernel, Machine


class Incidents:
    """Thread-safe."""

    def __init__(self, kernel: Kernel, journal: Journal) -> None:
        self._kernel = kernel
        self.journal = journal

    def preempt(self, name: str, zone: str | None = None, workers: Collection[int] | None = None) -> list[str]:
        """Preempts the READY nodes and running instances called `name`, or belonging to a queued resource or
        group of that name, of a group those of some `workers`; their names.

        Blocks until their hosts are dead, at most the time that they have to end in order. Raises
        NotFoundError when there is none, and UsageError for some of the hosts of one node.
        """
        with self._kernel.lock:
            meant = [each for each in self._kernel.machines() if _is_meant(each, name, zone)]
        for each in meant if workers else ():
            if len(each.workers) > len({*each.workers} & {*(workers or ())}) > 0:
                raise UsageError(
                    f"the hosts of {each.path.id} are preempted together", hint="leave --worker out"
                )
        return self._at_once("preempt", name, zone, workers, lambda each, _: each.life.preempt(each))

    def reboot(self, name: str, zone: str | None = None, workers: Collection[int] | None = None) -> list[str]:
        """Reboots the hosts of all `workers`, or of some, of those called `name`; the machines' names.

        Blocks until they are off; they come back by themselves. Raises NotFoundError when there is no such
        machine or worker.
        """
        return self._at_once("reboot", name, zone, workers, lambda each, some: each.life.reboot(each, some))

    def _at_once(
        self,
        verb: str,
        name: str,
        zone: str | None,
        workers: Collection[int] | None,
        work: Callable[[Machine, Collection[int] | None], None],
    ) -> list[str]:
        """Does something to all machines behind a name at the same time, each with those of the workers that it
        has; None for all."""
        with self._kernel.lock:
            known = self._kernel.machines()
            meant = [each for each in known if _is_meant(each, name, zone)]
            live = [each for each in meant if each.live]
            states = [f"{each.path.id} is {each.state}" for each in meant]
        if not live:
            raise NotFoundError(
                f"nothing to {verb} under the name {name} in {zone or 'any zone'}: "
                f"{', '.join(states) or 'no such node'}",
                hint=_preempt_hint(name, [each.path.id for each in known]),
            )
        there = sorted({worker for each in live for worker in each.workers})
        for worker in workers or ():
            if worker not in there:
                raise NotFoundError(f"{name} has no worker {worker}", hint=f"its workers are 0 to {there[-1]}")
        chosen = [each for each in live if workers is None or {*workers} & {*each.workers}]
        for each in chosen:
            self.journal.record(f"sim.{verb}", each.path.name, "OK")

        def act(machine: Machine) -> None:
            work(machine, None if workers is None else [each for each in workers if each in machine.workers])

        if len(chosen) == 1:
            act(chosen[0])
        else:
            with ThreadPoolExecutor(len(chosen)) as pool:
                list(pool.map(act, chosen))
        self._kernel.schedule.flush()
        return [each.path.name for each in chosen]

    def cut_connections(self, name: str) -> None:
        """Breaks every SSH connection to those called `name`; their processes live on."""
        with self._kernel.lock:
            found = [each for each in self._kernel.machines() if name in each.names]
        for each in found:
            self._kernel.hosts.cut(each.key)

    def fail_hosts(
        self, name: str, zone: str | None = None, workers: Collection[int] | None = None
    ) -> list[str]:
        """The hosts of those called `name`, or of some workers, die at once and stay off, and the API goes on
        calling them READY or RUNNING, as happens; their names. Raises NotFoundError."""
        stop = self._kernel.hosts.stop
        return self._at_once("crash", name, zone, workers, lambda each, some: stop(each.key, some))

    def set_load(
        self, name: str, zone: str | None, workers: Collection[int] | None, fields: Mapping[str, str] | None
    ) -> list[str]:
        """What libtpu's metrics service tells on all workers of those called `name`, or on some: `fields` of
        `Load` over those of before, None for no service; their names. Raises NotFoundError and UsageError."""

        def load(machine: Machine, some: Collection[int] | None) -> None:
            machine.life.load(machine, some, fields)

        return self._at_once("load", name, zone, workers, load)


def _is_meant(machine: Machine, name: str, zone: str | None) -> bool:
    return name in machine.names and zone in (None, machine.path.zone)


def _preempt_hint(name: str, known: list[str]) -> str:
    """The node that was meant, if that can be guessed, such as `big-3` for the slice `big`."""
    near = next((each for each in reversed(known) if each.startswith(f"{name}-")), suggest(name, known))
    if near:
        return f"did you mean {near}? `tpuctl sim status` lists all nodes"
    return "`tpuctl sim status` lists the nodes"
