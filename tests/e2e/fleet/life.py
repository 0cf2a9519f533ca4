"""The life of a fleet: its users, two watchdogs on two machines, and what befalls them; one seed, one story."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tests.e2e.fleet.auditor import Auditor
from tests.e2e.fleet.observer import QUEUED_ALIVE, Broken, Observer
from tests.e2e.fleet.training import Training
from tests.e2e.fleet.weather import DAY, HOUR, MINUTE, ZONES, DrawnDelays, Weather
from tests.support.crashing import Crash, CrashPoint, make_crashing
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.model.cloud import Tier
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.runs.progress import go_on
from tpuctl.sim.wire.status import ApiError, Code
from tpuctl.slices.desired import request_down, request_slice
from tpuctl.state.repository import active_runs
from tpuctl.watch.reconciler import run_pass

RUNTIMES = {"v6e": "v2-alpha-tpuv6e", "v5e": "v2-alpha-tpuv5-lite", "v4": "tpu-ubuntu2204-base"}
TYPES = {
    "v6e": (("v6e-8", 1, 8), ("v6e-16", 4, 16)),
    "v5e": (("v5litepod-8", 1, 8), ("v5litepod-16", 4, 16)),
    "v4": (("v4-8", 1, 4), ("v4-16", 2, 8)),
}
"""Types by generation: name, hosts, chips."""
COUNTS = {"v6e": 18, "v5e": 14, "v4": 8}
"""Forty slices of these generations."""
SMALL = 0.3
"""The share of twelve slices."""
KILLED = 1 / 150
"""How often a pass is killed."""


@dataclass(frozen=True)
class Drawn:
    """One slice as its user asks for it."""

    name: str
    spec: SliceSpec
    zones: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """How long a life lasts, and when the second machine cannot reach port 22 (seconds from the start).

    `share` is the part of the forty slices, and of the chips of all zones, that this fleet has.
    """

    seed: int
    length_s: float
    blocked_from_s: float
    blocked_s: float
    share: float = 1.0
    skew_s: float = 2 * MINUTE
    """How far the second machine's clock is ahead."""
    one_runs_in: int = 3
    """Of so many slices one has a run, which costs a pass as much as ten without."""
    calm_s: float = 75 * MINUTE
    """Longer than any back-off, boot, doubt and patience in a row."""


def week(seed: int) -> Plan:
    return Plan(seed, 7 * DAY, 3 * DAY, DAY)


def half_a_day(seed: int, share: float = 1.0, one_runs_in: int = 3) -> Plan:
    return Plan(seed, 12 * HOUR, 4 * HOUR, 4 * HOUR, share, one_runs_in=one_runs_in)


def draw_slices(chance: random.Random, share: float) -> list[Drawn]:
    slices = []
    for generation, most in COUNTS.items():
        count = round(most * share)
        zones = [zone.name for zone in ZONES if zone.generation == generation]
        for number in range(count):
            kind, hosts, chips = chance.choices(TYPES[generation], (3, 1))[0]
            asked = chance.sample(zones, chance.randint(1, len(zones)))
            spec = SliceSpec(
                kind, asked[0], Tier.SPOT, RUNTIMES[generation], hosts, chips, queued=chance.random() < 0.7
            )
            slices.append(Drawn(f"{generation}x{number:02d}", spec, tuple(asked)))
    return slices


class Life:
    """One fleet from its first `up` to the calm at the end."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._chance = random.Random(plan.seed)
        self.place = MemoryPlace(
            seed=plan.seed,
            delays=DrawnDelays(random.Random(plan.seed + 1)),  # type: ignore[arg-type]
            entries_kept=30,
        )
        self._began = self.place.clock.now()
        self._weather = Weather(self.place, random.Random(plan.seed + 2), plan.share)
        self.observer = Observer(self.place, self._weather)
        self.training = Training(self.place, random.Random(plan.seed + 3))
        self.auditor = Auditor(self.place, self.training)
        self._processes = 0
        self._asked = self._calm = False
        self.results: Counter[str] = Counter()
        self.kills = self.passes = 0
        self._drawn = draw_slices(self._chance, plan.share)
        self._run_on = {drawn.name for drawn in self._drawn[:: plan.one_runs_in]}
        self._next_whim = self._began + HOUR

    def live(self) -> None:
        """All of it; raises `Broken` at the first broken promise."""
        self.live_for(self.plan.length_s)
        self.calm_down()
        self.observer.check_end()
        self.auditor.check_end()

    def calm_down(self) -> None:
        """From now on there is room for everything, nothing goes wrong, and time to come to rest."""
        self._weather.calm()
        self._calm = True
        self.live_for(self.plan.calm_s)

    def live_for(self, seconds: float) -> None:
        """Some more of it. A watchdog passes every minute on each machine, half a minute apart."""
        if not self._asked:
            self._asked = True
            self._ask_for("a", 0.0)
            self._ask_for("b", self.plan.skew_s)
        end = self.place.clock.now() + seconds
        while self.place.clock.now() < end:
            self._half_a_minute("a", 0.0)
            if not self._calm:
                self._have_a_whim()
            self._half_a_minute("b", self.plan.skew_s)

    def close(self) -> None:
        self.place.close()

    def age(self) -> float:
        """Seconds since its beginning, by the clock of the world."""
        return self.place.clock.now() - self._began

    def _process(self, machine: str, skew_s: float = 0.0) -> MemoryServices:
        """Every pass is a process of its own."""
        self._processes += 1
        return self.place.machine(
            machine,
            process=self._processes,
            skew_s=skew_s,
            reaches=lambda _host: not (machine == "b" and self._blocked()),
        )

    def _blocked(self) -> bool:
        return 0 <= self.age() - self.plan.blocked_from_s < self.plan.blocked_s

    def _ask_for(self, machine: str, skew_s: float) -> None:
        """Every machine asks for half of the slices."""
        services = self._process(machine, skew_s)
        for number, drawn in enumerate(self._drawn):
            if number % 2 == (machine == "b"):
                self._up(services, drawn)

    def _up(self, services: MemoryServices, drawn: Drawn) -> None:
        request_slice(services, drawn.name, drawn.spec, pay=True, zones=drawn.zones, admit=lambda: None)
        if drawn.name in self._run_on and not active_runs(services, drawn.name):
            self.training.submit(services, drawn.name)

    def _half_a_minute(self, machine: str, skew_s: float) -> None:
        self._let_time_pass(30.0)
        self._pass(machine, skew_s, kill=not self._calm and self._chance.random() < KILLED)
        self.observer.look()
        self.auditor.look()

    def _let_time_pass(self, seconds: float) -> None:
        """What is due then has happened when the next command looks."""
        self.place.clock.advance(seconds)
        if not self._calm:
            self._weather.blow()
        self.observer.see_who_is_well()

    def _pass(self, machine: str, skew_s: float, *, kill: bool) -> None:
        services: Any = self._process(machine, skew_s)
        self.passes += 1
        if kill:
            make_crashing(services, CrashPoint(self._chance.randint(1, 12), after=self._chance.random() < 0.5))
        try:
            for line in run_pass(services):
                self.results[line.result] += 1
                if line.why.startswith("a defect"):
                    raise Broken(f"{line.subject}: {line.why}")
            self.observer.check_leases(services.lease_owner)
        except Crash:
            self.kills += 1
        finally:
            services.remote.close()
        for broken in (self.observer.broken, self.auditor.broken):
            if broken is not None:
                raise broken

    def _have_a_whim(self) -> None:
        """About once an hour a user takes a slice down or wants one back, sees to a run, or deletes a node."""
        now = self.place.clock.now()
        if now < self._next_whim:
            return
        self._next_whim = now + self._chance.expovariate(1 / HOUR)
        drawn = self._chance.choice(self._drawn)
        services = self._process(self._chance.choice("ab"))
        document = self.place.server.find(f"slices/{drawn.name}")
        assert document is not None
        wanted, state = document.data["desired"] == "up", document.data["state"]
        if not wanted or state in ("removed", "refused"):
            if state not in ("deleting",):
                self._up(services, drawn)
        elif self._chance.random() < 0.25:
            self._delete_by_hand(document.data)
        elif self._chance.random() < 0.15:
            self._regret(services, drawn)
        elif drawn.name in self._run_on and self._chance.random() < 0.7:
            self._see_to_the_run(services, drawn)
        else:
            self.auditor.taken_down.add(drawn.name)
            request_down(services, drawn.name)

    def _see_to_the_run(self, services: MemoryServices, drawn: Drawn) -> None:
        """Its user answers its question, or begins the next one."""
        runs = active_runs(services, drawn.name)
        if not runs:
            self.training.submit(services, drawn.name)
        for run in (each for each in runs if each.question):
            self.training.go_ons[run.id] += 1
            go_on(services, run.id)

    def _delete_by_hand(self, record: Any) -> None:
        """The node, which suspends its queued resource, or the queued resource with all that is under it."""
        name = record["incarnation"]["cloud_name"]
        found = [each for each in self.place.world.census() if each.path.id == name]
        nodes = [each for each in found if each.kind == "node" and each.state == "READY"]
        queued = [each for each in found if each.kind == "queued" and each.state in QUEUED_ALIVE]
        # Past the faults, which are for tpuctl, and past the observer, who watches tpuctl.
        handlers = self.place.world.handlers
        self.place.clock.actions += 1
        try:
            if queued and self._chance.random() < 0.3:
                handlers["queuedResources.delete"]({"name": queued[0].path.name, "force": "true"}, "v2")
            elif nodes:
                handlers["nodes.delete"]({"name": nodes[0].path.name}, "v2")
        except ApiError as error:
            # What passes, or is held by an operation, cannot be deleted now: the person lets it be.
            if error.code not in {Code.FAILED_PRECONDITION, Code.ABORTED}:
                raise

    def _regret(self, services: MemoryServices, drawn: Drawn) -> None:
        """`down` when a create has just gone out whose answer is lost and whose effect is late."""
        self.auditor.taken_down.add(drawn.name)
        request_down(services, drawn.name)
        self._let_time_pass(300.0)
        self._up(services, drawn)
        faults = self.place.world.faults
        struck = [
            faults.add({"preset": "lost-response", "method": "*.create", "name": f"{drawn.name}-*"}),
            faults.add({"preset": "late-create", "name": f"{drawn.name}-*", "seconds": 100.0}),
        ]
        run_pass(self._process("a"))
        request_down(services, drawn.name)
        for fault in struck:
            faults.remove(fault.id)


def live(plan: Plan) -> Life:
    """A whole life. Raises `Broken`, an AssertionError, at the first broken promise."""
    life = Life(plan)
    try:
        life.live()
    finally:
        life.close()
    return life
