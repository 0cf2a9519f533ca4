"""What only the owner of a simulated cloud can do to it: states and symptoms of nodes, capacity, reservations.

Names that nobody knows are refused with the one that was meant. Nothing here is reachable by Google's APIs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from tpuctl.errors import NotFoundError, UsageError
from tpuctl.sim.wire.payload import load_types
from tpuctl.sim.wire.status import Json
from tpuctl.sim.wire.timestamps import rfc3339
from tpuctl.sim.world.faults import check_word
from tpuctl.sim.world.reservations import chips_used, set_aside
from tpuctl.sim.world.state import Kernel, Node, Queued, Reservation

_TYPES = load_types("tpu.v2")
NODE_STATES = tuple(_TYPES.enums["Node.State"])[1:]
HEALTHS = tuple(_TYPES.enums["Node.Health"])[1:]
SYMPTOMS = tuple(_TYPES.enums["Symptom.SymptomType"])[1:]
MAINTENANCE = (*tuple(_TYPES.enums["UpcomingMaintenance.Type"])[1:], "NONE")
QUEUED_STATES = tuple(_TYPES.enums["QueuedResourceState.State"])[1:]
WINDOW_STARTS_S = 86_400.0
WINDOW_S = 14_400.0
"""Maintenance is announced for the next day and takes up to four hours."""
NONE = "NONE"
"""Takes a symptom, a description or a maintenance away again."""


class Steering:
    """Thread-safe."""

    def __init__(self, kernel: Kernel, wake: Callable[[], None]) -> None:
        self._kernel = kernel
        self._wake = wake
        """Gives requests that wait for capacity another turn."""
        self._setters: Mapping[str, Callable[[Node, str], None]] = {
            "state": partial(self._set_word, "state", NODE_STATES),
            "health": partial(self._set_word, "health", HEALTHS),
            "healthDescription": self._set_description,
            "symptom": self._add_symptom,
            "maintenance": self._announce,
        }

    def set_fields(self, name: str, zone: str | None, fields: Mapping[str, str]) -> list[str]:
        """Makes the API show these fields of the nodes called `name`, or the state of a queued resource of that
        name; the full names. What the cloud does later goes on from there. Raises NotFoundError, UsageError."""
        with self._kernel.lock:
            nodes = [node for node in self._kernel.nodes.values() if _is_called(node, name, zone)]
            queued = [each for each in self._kernel.queued.values() if _is_called(each, name, zone)]
            if not nodes and not queued:
                known = [each.path.id for each in self._kernel.nodes.values()]
                known += [each.path.id for each in self._kernel.queued.values()]
                raise NotFoundError(
                    f"no node or queued resource {name} in {zone or 'any zone'}",
                    hint=f"there are: {', '.join(sorted(set(known))) or 'none'}",
                )
            if not nodes:
                for field, value in fields.items():
                    check_word("field of a queued resource", field, ["state"])
                    state = check_word("state of a queued resource", value, QUEUED_STATES)
                    for each in queued:
                        each.data["state"] = {"state": state, "stateInitiator": "SERVICE"}
                return [each.path.name for each in queued]
            for field in fields:
                check_word("field of a node", field, self._setters)
            for field, value in fields.items():
                for node in nodes:
                    self._setters[field](node, value)
            return [node.path.name for node in nodes]

    @staticmethod
    def _set_word(field: str, known: tuple[str, ...], node: Node, value: str) -> None:
        node.data[field] = check_word(f"{field} of a node", value, known)

    @staticmethod
    def _set_description(node: Node, value: str) -> None:
        node.data["healthDescription"] = value
        if value in ("", NONE):
            del node.data["healthDescription"]

    def _add_symptom(self, node: Node, value: str) -> None:
        """`OUT_OF_MEMORY` or, of one worker, `OUT_OF_MEMORY:3`."""
        kind, _, worker = value.partition(":")
        if check_word("symptom", kind, (*SYMPTOMS, NONE)) == NONE:
            node.data.pop("symptoms", None)
            return
        if worker and not (worker.isdecimal() and int(worker) < node.offer.hosts):
            raise UsageError(f"no worker `{worker}` of {node.path.id}", hint=f"0 to {node.offer.hosts - 1}")
        node.data.setdefault("symptoms", []).append(
            {
                "createTime": self._kernel.timestamp(),
                "symptomType": kind,
                "details": f"{kind.lower().replace('_', ' ')} on worker {worker or 0}",
                "workerId": worker or "0",
            }
        )

    def _announce(self, node: Node, value: str) -> None:
        if check_word("maintenance", value, MAINTENANCE) == NONE:
            node.data.pop("upcomingMaintenance", None)
            return
        start = self._kernel.clock.now() + WINDOW_STARTS_S
        node.data["upcomingMaintenance"] = {
            "type": value,
            "maintenanceStatus": "PENDING",
            "canReschedule": value == "SCHEDULED",
            "windowStartTime": rfc3339(start),
            "windowEndTime": rfc3339(start + WINDOW_S),
            "latestWindowStartTime": rfc3339(start + WINDOW_STARTS_S),
        }

    # Time.

    def set_delays(self, delays: Mapping[str, float]) -> Json:
        """Changes single delays from now on, in seconds before the speed is applied; all of them. Raises
        UsageError."""
        with self._kernel.lock:
            now = asdict(self._kernel.delays)
            for name, seconds in delays.items():
                check_word("delay", name, now)
                if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e9:
                    raise UsageError(f"delay {name}: {seconds!r} is no number of seconds", hint=f"{name}=5")
            self._kernel.delays = replace(self._kernel.delays, **delays)
            return asdict(self._kernel.delays)

    # Capacity.

    def set_capacity(self, capacity: Mapping[str, int | None]) -> Json:
        """How many chips there are in zones, None for plenty; all limits that are set now.

        Less takes nothing away from nodes that are there; more serves who waits. Raises UsageError.
        """
        zones = self._kernel.catalog.zones()
        for zone, chips in capacity.items():
            check_word("zone", zone, zones)
            if chips is not None and (isinstance(chips, bool) or not isinstance(chips, int) or chips < 0):
                raise UsageError(f"capacity of {zone}: {chips!r} is no number of chips", hint=f"{zone}=32")
        with self._kernel.lock:
            for zone, chips in capacity.items():
                if chips is None:
                    self._kernel.capacity.pop(zone, None)
                else:
                    self._kernel.capacity[zone] = chips
            now: Json = dict(self._kernel.capacity)
        self._wake()
        return now

    def set_reservation(self, name: str, zone: str, generation: str, chips: int) -> list[Json]:
        """Makes or changes a reservation, or takes it away with 0 chips; all of them. Raises UsageError."""
        check_word("zone", zone, self._kernel.catalog.zones())
        check_word("generation", generation, self._kernel.catalog.generations(zone))
        if isinstance(chips, bool) or not isinstance(chips, int) or chips < 0:
            raise UsageError(f"reservation {name}: {chips!r} is no number of chips", hint="32")
        with self._kernel.lock:
            set_aside(self._kernel, Reservation(name, zone, generation, chips))
            return self.reservations()

    def reservations(self) -> list[Json]:
        """All of them, with what is used."""
        with self._kernel.lock:
            found = self._kernel.reservations.values()
            return [{**asdict(each), "used": chips_used(self._kernel, each)} for each in found]


def _is_called(found: Node | Queued, name: str, zone: str | None) -> bool:
    return name in (found.path.id, found.path.name) and zone in (None, found.path.zone)


def parse_chips(words: Iterable[str]) -> dict[str, int | None]:
    """`ZONE=CHIPS` or `ZONE=plenty`. Raises UsageError."""
    found: dict[str, int | None] = {}
    for word in words:
        zone, _, chips = word.partition("=")
        if chips != "plenty" and not chips.isdecimal():
            raise UsageError(f"{word!r} is not ZONE=CHIPS", hint="us-central2-b=32, or us-central2-b=plenty")
        found[zone] = None if chips == "plenty" else int(chips)
    return found


def parse_seconds(words: Iterable[str]) -> dict[str, float]:
    """`DELAY=SECONDS`. Raises UsageError."""
    found = {}
    for name, value in parse_fields(words, "node_create=5").items():
        try:
            found[name] = float(value)
        except ValueError as error:
            text = f"delay {name}: {value!r} is no number of seconds"
            raise UsageError(text, hint=f"{name}=5") from error
    return found


def parse_fields(words: Iterable[str], example: str = "state=REPAIRING") -> dict[str, Any]:
    """`FIELD=VALUE`. Raises UsageError."""
    found = {}
    for word in words:
        field, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"{word!r} is not NAME=VALUE", hint=example)
        found[field] = value
    return found
