"""What a cloud does to a fleet, drawn from one seed: capacity that comes and goes, lives, delays, errors.

The distributions follow a public log of TRC spot capacity (411 creates of one project over 35 hours in March
2026, about 65 s between its polls): 17 of 100 creates became READY, after 131 s (p10) to 196 s (p50); the
others vanished after 65 to 593 s (p50, by zone); in us-east1-d a node lived 2 minutes (p10), 22 minutes (p50)
or 4.7 hours (p90), in europe-west4-a 36 minutes (p50).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.e2e.fleet.misfortunes import Misfortunes
from tests.support.memory.host import Condition
from tests.support.memory.services import MemoryPlace
from tpuctl.errors import NotFoundError
from tpuctl.sim.world.delays import Delays
from tpuctl.sim.world.world import Resident

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
MISFORTUNE_S = 12 * MINUTE
"""Between two of them on average, in a fleet of forty."""
LIFE_SIGMA = 1.99
"""Of the logarithm of a life: 22 minutes in the middle and 4.7 hours at p90 give p10 at 1.7 minutes."""


@dataclass(frozen=True)
class Zone:
    """`chips` that this project gets on a good day, and the median life of a node."""

    name: str
    generation: str
    chips: int
    life_s: float


ZONES = (
    Zone("us-east1-d", "v6e", 72, 22 * MINUTE),
    Zone("europe-west4-a", "v6e", 72, 36 * MINUTE),
    Zone("us-east5-b", "v6e", 48, 2 * HOUR),
    Zone("europe-west4-b", "v5e", 80, 3 * HOUR),
    Zone("us-central1-a", "v5e", 64, 3 * HOUR),
    Zone("us-central2-b", "v4", 48, 12 * HOUR),
)


class DrawnDelays:
    """Like `sim.options.Delays`, most of them drawn anew for every use."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def _around(self, median_s: float, sigma: float) -> float:
        return self._chance.lognormvariate(math.log(median_s), sigma)

    @property
    def node_create(self) -> float:
        return self._around(196.0, 0.314)

    @property
    def create_failure(self) -> float:
        return self._around(self._chance.choice((588.0, 593.0, 131.0, 65.0)), 0.3)

    @property
    def node_delete(self) -> float:
        return self._around(65.0, 0.3)

    @property
    def preempt_visible(self) -> float:
        return self._chance.uniform(1.0, 65.0)

    @property
    def queued_wait(self) -> float:
        return self._around(45.0, 0.5)

    @property
    def queued_suspend(self) -> float:
        return self._chance.uniform(10.0, 60.0)

    @property
    def queued_delete(self) -> float:
        return self._chance.uniform(10.0, 120.0)

    def __getattr__(self, name: str) -> float:
        return float(getattr(Delays(), name))


ERRORS: tuple[tuple[int, dict[str, Any]], ...] = (
    (4, {"preset": "queued-internal"}),
    (3, {"preset": "stockout-now"}),
    (3, {"preset": "rate-limit"}),
    (3, {"preset": "blip", "method": "*.list"}),
    (2, {"preset": "blip", "method": "*.get"}),
    (2, {"preset": "blip", "method": "*.create"}),
    (2, {"preset": "blip", "method": "*.delete"}),
    (2, {"preset": "lost-response", "method": "nodes.create"}),
    (2, {"preset": "lost-response", "method": "queuedResources.create"}),
    (2, {"preset": "lost-response", "method": "*.delete"}),
    (2, {"preset": "slow-operation", "method": "nodes.create"}),
    (1, {"preset": "slow-operation", "method": "nodes.create", "seconds": 1800.0}),
    (2, {"preset": "late-create", "seconds": 60.0}),
    (1, {"preset": "late-create", "seconds": 110.0}),
    (1, {"kind": "error", "method": "*.create", "code": 6, "message": "Resource already exists"}),
)
"""Kinds of trouble and their weights; each strikes one to three times."""


class Weather:
    """Acts on the world of `place` while `blow` is called; `calm` ends all trouble."""

    def __init__(self, place: MemoryPlace, chance: random.Random, share: float = 1.0) -> None:
        self._place = place
        self._share = share
        self._chance = chance
        self._events: list[tuple[float, Callable[[], None]]] = []
        self._known: set[str] = set()
        self.sick: set[str] = set()
        """Nodes, by key, whose hosts do not all answer although the API calls them READY."""
        self.dark: dict[str, int] = {}
        """Zones that cannot be read, and the fault that says so."""
        for zone in ZONES:
            self._change_capacity(zone)
        self._misfortunes = Misfortunes(place, chance, self._in)
        self._in(chance.expovariate(1 / (20 * MINUTE)), self._trouble)
        self._in(chance.expovariate(1 / MISFORTUNE_S), self._misfortune)

    def blow(self) -> None:
        """What is due by now happens."""
        self._meet_nodes()
        now = self._place.clock.now()
        while self._events and min(self._events, key=_when)[0] <= now:
            event = min(self._events, key=_when)
            self._events.remove(event)
            event[1]()
            self._place.clock.actions += 1

    def calm(self) -> None:
        """Plenty of capacity, no errors, no preemptions, every host answers."""
        self._events.clear()
        self._place.world.faults.clear()
        self._place.clock.actions += 1
        self.dark.clear()
        self._misfortunes.calm()
        for zone in ZONES:
            self._place.world.set_capacity(zone.name, None)
        for host in self._place.hosts.all():
            if host.condition is not Condition.UP:
                host.recover()
        self.sick.clear()

    def _in(self, seconds: float, action: Callable[[], None]) -> None:
        self._events.append((self._place.clock.now() + seconds, action))

    # Capacity and lives.

    def _change_capacity(self, zone: Zone) -> None:
        drought = self._chance.random() < 0.4
        share = self._chance.uniform(0.0, 0.3) if drought else self._chance.uniform(0.4, 1.2)
        self._place.world.set_capacity(zone.name, round(zone.chips * share * self._share))
        live = [each for each in self._live_nodes() if each.path.zone == zone.name]
        while live and self._place.world.room(zone.name) < 0:
            self._preempt(live.pop(self._chance.randrange(len(live))))
        self._in(self._chance.expovariate(1 / (50 * MINUTE)), lambda: self._change_capacity(zone))

    def _live_nodes(self) -> list[Resident]:
        return [each for each in self._place.world.census() if each.kind == "node" and each.state == "READY"]

    def _meet_nodes(self) -> None:
        """A node that has become READY gets its life, and perhaps hosts that boot slowly or never."""
        zones = {zone.name: zone for zone in ZONES}
        live = self._live_nodes()
        for node in live:
            if node.key in self._known:
                continue
            self._known.add(node.key)
            median = zones[node.path.zone].life_s
            life = self._chance.lognormvariate(math.log(median), LIFE_SIGMA)
            self._in(life, lambda node=node: self._preempt(node))
            self._boot(node)
        self._known &= {node.key for node in live}

    def _preempt(self, node: Resident) -> None:
        current = [each for each in self._live_nodes() if each.key == node.key]
        if current:
            try:
                self._place.world.preempt(node.path.name)
            except NotFoundError:
                return  # it is on its way out already
            self.sick.discard(node.key)

    def _boot(self, node: Resident) -> None:
        hosts = self._place.hosts.hosts_of(node.key)
        fate = self._chance.random()
        if fate < 0.5:
            return
        chosen = hosts if self._chance.random() < 0.5 else [self._chance.choice(hosts)]
        for host in chosen:
            host.refuse()
        self.sick.add(node.key)
        if fate < 0.97:
            slow = self._chance.uniform(20.0, 90.0) if fate < 0.92 else self._chance.uniform(2.0, 12.0) * MINUTE
            self._in(slow, lambda: self._recover(node))

    def _recover(self, node: Resident) -> None:
        if node.key in self.sick:
            self.sick.discard(node.key)
            for host in self._place.hosts.hosts_of(node.key):
                host.recover()

    # Errors.

    def _trouble(self) -> None:
        self._in(self._chance.expovariate(1 / (20 * MINUTE)), self._trouble)
        if self._chance.random() < 0.12:
            self._darken(self._chance.choice(ZONES).name)
            return
        [chosen] = self._chance.choices([spec for _, spec in ERRORS], [weight for weight, _ in ERRORS])
        fault = self._place.world.faults.add({**chosen, "times": self._chance.randrange(1, 4)})
        self._in(HOUR, lambda: self._place.world.faults.remove(fault.id))

    def _misfortune(self) -> None:
        self._in(self._chance.expovariate(1 / MISFORTUNE_S), self._misfortune)
        self._misfortunes.strike()

    def _darken(self, zone: str) -> None:
        """Mostly for minutes, now and then for hours."""
        if zone in self.dark:
            return
        for_hours = self._chance.random() < 0.1
        fault = self._place.world.faults.add({"kind": "unreachable", "zone": zone, "times": 0})
        self.dark[zone] = fault.id
        length = (
            self._chance.uniform(1.0, 4.0) * HOUR if for_hours else self._chance.uniform(5.0, 40.0) * MINUTE
        )
        self._in(length, lambda: self._lighten(zone))

    def _lighten(self, zone: str) -> None:
        self._place.world.faults.remove(self.dark.pop(zone))


def _when(event: tuple[float, Callable[[], None]]) -> float:
    return event[0]
