"""What else befalls single slices: repairs, maintenance, stops, hosts that come and go, nodes that vanish.

They act on the simulated world directly, past the faults, which are for tpuctl, and past the observer.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.support.memory.host import Condition
from tests.support.memory.services import MemoryPlace
from tpuctl.sim.world.state import Node

MINUTE, HOUR = 60.0, 3600.0
MOVED = frozenset({"REPAIRING", "UNKNOWN", "STOPPED", "STARTING"})
"""Node states that only a misfortune brings about here."""

Later = Callable[[float, Callable[[], None]], None]


class Misfortunes:
    """`later` puts an action on somebody's schedule; `calm` undoes what has not passed yet."""

    def __init__(self, place: MemoryPlace, chance: random.Random, later: Later) -> None:
        self._place = place
        self._chance = chance
        self._later = later
        self._kernel = place.world._kernel

    def strike(self) -> None:
        """One of them befalls one READY node."""
        ready = [node for node in self._kernel.nodes.values() if node.state == "READY" and not node.preempted]
        if ready:
            node = self._chance.choice(ready)
            kinds = (self._trip, self._reboot, self._sicken, self._repair, self._stop, self._hide, self._drop)
            [kind] = self._chance.choices(kinds, (6, 3, 2, 2, 1, 2, 2))
            kind(node)

    def calm(self) -> None:
        self._kernel.hidden.clear()
        for node in self._kernel.nodes.values():
            if node.state in MOVED:
                node.data["state"] = "READY"
            if node.state == "READY":
                node.data["health"] = "HEALTHY"

    def _minutes(self, least: float, most: float) -> float:
        return self._chance.uniform(least, most) * MINUTE

    def _lives(self, node: Node) -> bool:
        return self._kernel.current(node) and not node.preempted

    def _trip(self, node: Node) -> None:
        """One host's sshd dies, or its network; most come back before anybody gives them up."""
        host = self._chance.choice(self._place.hosts.hosts_of(node.key))
        self._chance.choice((host.refuse, host.vanish))()

        def recover() -> None:
            if self._lives(node) and host.condition is not Condition.UP:
                host.recover()

        self._later(self._minutes(1, 12 if self._chance.random() < 0.8 else 40), recover)

    def _reboot(self, node: Node) -> None:
        """In turn in order, as maintenance does it, and like a loss of power."""
        host = self._chance.choice(self._place.hosts.hosts_of(node.key))
        if host.boots % 2 == 0:
            host.shut_down()
        host.reboot()

    def _sicken(self, node: Node) -> None:
        """A maintenance notice: the API calls the node unhealthy, its hosts answer."""
        node.data["health"] = "UNHEALTHY_MAINTENANCE"

        def recover() -> None:
            if self._lives(node) and "health" in node.data:
                node.data["health"] = "HEALTHY"

        self._later(self._minutes(5, 60), recover)

    def _repair(self, node: Node) -> None:
        """REPAIRING with its hosts away, sometimes UNKNOWN after that, and READY again."""
        self._move(node, "REPAIRING")
        unknown = self._chance.random() < 0.3
        self._later(self._minutes(3, 30), lambda: self._move(node, "UNKNOWN" if unknown else "READY"))
        if unknown:
            self._later(self._minutes(31, 60), lambda: self._move(node, "READY"))

    def _stop(self, node: Node) -> None:
        """A person stops it by hand, and starts it again an hour later."""
        self._move(node, "STOPPED")
        self._later(HOUR, lambda: self._move(node, "STARTING"))
        self._later(HOUR + MINUTE, lambda: self._move(node, "READY"))

    def _move(self, node: Node, state: str) -> None:
        if not self._lives(node) or (state != "REPAIRING" and state != "STOPPED" and node.state not in MOVED):
            return
        node.data["state"] = state
        for host in self._place.hosts.hosts_of(node.key):
            if state == "READY":
                host.reboot()
                host.recover()
            elif host.condition is Condition.UP:
                host.crash()
                host.refuse()

    def _hide(self, node: Node) -> None:
        """Reads do not show the node for a while, under a queued resource that says ACTIVE."""
        if node.queued is not None:
            self._kernel.hidden.add(node.path.name)
            self._later(self._minutes(1, 8), lambda: self._kernel.hidden.discard(node.path.name))

    def _drop(self, node: Node) -> None:
        """The node vanishes for good, and its queued resource goes on saying ACTIVE."""
        if node.queued is not None:
            self._place.world._nodes.finish_deletion(node)
